"""Go on from a text: two continuations, with the log-probabilities of their tokens.

weft serve
pip install openai
python examples/completion.py --stream
"""

import argparse
import os

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stream", action="store_true", help="print pieces as they come")
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    body = {
        "model": client.models.list().data[0].id,
        "prompt": "The capital of France is",
        "n": 2,
        "max_tokens": 16,
        "logprobs": 3,
        "seed": 1,
    }
    if args.stream:
        texts = ["", ""]
        for chunk in client.completions.create(**body, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                print(f"{choice.index}: {choice.text!r}")
        print(*texts, sep="\n")
        return
    for choice in client.completions.create(**body).choices:
        print(f"{choice.index}: {choice.text!r}")
        for token, logprob in zip(
            choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True
        ):
            print(f"   {logprob:8.3f}  {token!r}")


if __name__ == "__main__":
    main()
