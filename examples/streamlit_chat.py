"""A page of several chats with a switch for reasoning, made with Streamlit; --once asks without a page.

weft serve
pip install openai streamlit
streamlit run examples/streamlit_chat.py
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any

from openai import OpenAI


def pieces(
    client: OpenAI, messages: list[dict[str, str]], *, thinks: bool
) -> Iterator[tuple[str, str]]:
    """The next message as it comes: ("reasoning" or "content", what is new of it)."""
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=messages,
        stream=True,
        extra_body={"chat_template_kwargs": {"enable_thinking": thinks}},
    )
    for chunk in stream:
        delta = chunk.choices[0].delta
        for kind in ("reasoning", "content"):
            text = getattr(delta, kind, None)
            if text:
                yield kind, text


def page(client: OpenAI) -> None:
    import streamlit as st  # noqa: PLC0415  # not needed for --once

    chats: list[list[dict[str, str]]] = st.session_state.setdefault("chats", [[]])
    if st.sidebar.button("New chat"):
        chats.append([])
    chosen = st.sidebar.radio("Chats", range(len(chats)), format_func=lambda i: f"Chat {i + 1}")
    thinks = st.sidebar.toggle("Reasoning", value=True)
    messages = chats[chosen]
    for message in messages:
        st.chat_message(message["role"]).write(message["content"])
    question = st.chat_input("Ask")
    if question:
        messages.append({"role": "user", "content": question})
        st.chat_message("user").write(question)
        messages.append({"role": "assistant", "content": answer(st, client, messages, thinks)})


def answer(st: Any, client: OpenAI, messages: list[dict[str, str]], thinks: bool) -> str:
    """Show the next message as it grows, its reasoning folded away; what it says."""
    shown = {"reasoning": "", "content": ""}
    with st.chat_message("assistant"):
        places = {"reasoning": st.expander("Reasoning").empty(), "content": st.empty()}
        for kind, text in pieces(client, messages, thinks=thinks):
            shown[kind] += text
            places[kind].markdown(shown[kind])
    return shown["content"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", help="ask this, and print the answer")
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    if args.once is None:
        page(client)
        return
    for kind, text in pieces(client, [{"role": "user", "content": args.once}], thinks=True):
        print(f"{kind}: {text!r}")


if __name__ == "__main__":
    main()
