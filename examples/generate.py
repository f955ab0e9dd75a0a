"""The plain endpoint of demonstrations: a text, and what follows it. No package is needed.

weft serve
python examples/generate.py --stream --n 2
"""

import argparse
import json
from urllib.request import Request, urlopen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--n", type=int, default=1, help="how many continuations")
    parser.add_argument("--stream", action="store_true", help="show them grow")
    args = parser.parse_args()
    body = {
        "prompt": args.prompt,
        "n": args.n,
        "temperature": 0.8,
        "max_tokens": 16,
        "stream": args.stream,
    }
    request = Request(
        f"{args.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=300) as answer:
        # A streamed answer has a line for each step, and every line holds all the text so far.
        for line in answer:
            print(*json.loads(line)["text"], sep="\n")


if __name__ == "__main__":
    main()
