"""Chat with a model, whole or as it comes.

weft serve
pip install openai
python examples/chat.py --stream
"""

import argparse
import os

from openai import OpenAI

QUESTIONS = ["What is the capital of France?", "What can you do?"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stream", action="store_true", help="print the answer as it comes")
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = client.models.list().data[0].id
    messages = []
    for question in QUESTIONS:
        print(f"> {question}")
        messages.append({"role": "user", "content": question})
        if args.stream:
            answer = ""
            stream = client.chat.completions.create(model=model, messages=messages, stream=True)
            for chunk in stream:
                piece = chunk.choices[0].delta.content or ""
                print(piece, end="", flush=True)
                answer += piece
            print()
        else:
            completion = client.chat.completions.create(model=model, messages=messages)
            answer = completion.choices[0].message.content or ""
            print(answer)
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
