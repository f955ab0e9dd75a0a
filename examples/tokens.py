"""Tokens in, tokens out: a program with a tokenizer of its own, for models it trains or prompts it builds.

weft serve path/to/checkpoint
pip install tokenizers
python examples/tokens.py --tokenizer path/to/checkpoint/tokenizer.json
"""

import argparse
import json
from urllib.request import Request, urlopen

from tokenizers import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", required=True, help="the tokenizer.json of the model")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--prompt", default="The capital of France is")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(args.tokenizer)
    body = {
        "token_ids": tokenizer.encode(args.prompt).ids,
        "sampling_params": {"temperature": 0, "max_tokens": 16, "logprobs": 1, "detokenize": False},
    }
    request = Request(
        f"{args.url}/inference/v1/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=300) as answer:
        choice = json.load(answer)["choices"][0]
    print(choice["token_ids"])
    print(repr(tokenizer.decode(choice["token_ids"])))


if __name__ == "__main__":
    main()
