"""Read a model's reasoning apart from its answer, over two turns.

    weft serve
    pip install openai
    python examples/reasoning.py --stream

A server finds how a model marks its reasoning in the chat template; --reasoning-parser names another.
Models with a switch for it take it so: extra_body={"chat_template_kwargs": {"enable_thinking": True}}.
"""

import argparse
import os
from typing import Any

from openai import OpenAI

QUESTIONS = ["What is two plus three?", "And four plus four?"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stream", action="store_true", help="print both as they come")
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = client.models.list().data[0].id
    messages: list[Any] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(
            model=model,
            messages=messages,
            stream=args.stream,
            temperature=0,
            extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        )
        reasoning = content = ""
        if args.stream:
            for chunk in answer:
                # No field of OpenAI's: it is there in the chunks that have some.
                reasoning += getattr(chunk.choices[0].delta, "reasoning", "")
                content += chunk.choices[0].delta.content or ""
        else:
            message = answer.choices[0].message
            reasoning, content = getattr(message, "reasoning", None) or "", message.content or ""
        print(f"> {question}\nreasoning: {reasoning.strip()}\nanswer: {content.strip()}")
        messages.append({"role": "assistant", "content": content})


if __name__ == "__main__":
    main()
