"""A page to chat on, made with Gradio, over the API of OpenAI; --once asks without a page.

weft serve
pip install openai gradio
python examples/gradio_chat.py --port 8001
"""

import argparse
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from openai import OpenAI


def messages_of(history: list[dict[str, Any]], message: str) -> list[dict[str, Any]]:
    """The conversation as the API has it: what a page keeps beside a message is of no use to a model."""
    asked = [*history, {"role": "user", "content": message}]
    return [{"role": one["role"], "content": one["content"]} for one in asked]


def answer(
    message: str, history: list[dict[str, Any]], client: OpenAI, options: argparse.Namespace
) -> Iterator[str]:
    """The answer as it grows, from its beginning each time: what Gradio shows in place of what it showed."""
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=messages_of(history, message),
        temperature=options.temp,
        stream=True,
        extra_body={"stop_token_ids": options.stop_token_ids},
    )
    shown = ""
    for chunk in stream:
        shown += chunk.choices[0].delta.content or ""
        yield shown


def show(options: argparse.Namespace, client: OpenAI) -> None:
    import gradio  # noqa: PLC0415  # not needed for --once

    chat = gradio.ChatInterface(partial(answer, client=client, options=options), title="Chat")
    chat.launch(server_name=options.host, server_port=options.port)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--temp", type=float, default=0.0, help="temperature")
    parser.add_argument("--stop-token-ids", type=int, nargs="*", default=[])
    parser.add_argument("--host", default="127.0.0.1", help="of the page")
    parser.add_argument("--port", type=int, default=8001, help="of the page")
    parser.add_argument("--once", help="ask this, and print the answer")
    options = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    if options.once is None:
        show(options, client)
        return
    for shown in answer(options.once, [], client, options):
        print(shown)


if __name__ == "__main__":
    main()
