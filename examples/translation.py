"""What is said in a recording, in English: whole with OpenAI's client, then streamed with an HTTP client.

    weft serve openai/whisper-small
    pip install openai  # which brings httpx2
    python examples/translation.py speech.wav --language it

OpenAI's own API streams no translations, so its client has no way to ask for one.
"""

import argparse
import json
import os
from pathlib import Path

import httpx2
from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--language", default="it", help="code of the language that is spoken")
    args = parser.parse_args()
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    key = os.environ.get("OPENAI_API_KEY", "none")
    client = OpenAI(base_url=url, api_key=key)
    model = client.models.list().data[0].id
    extra = {"language": args.language, "temperature": 0}
    # By its path: the client's own method is one that it is about to lose.
    answer = client.post(
        "/audio/translations",
        cast_to=dict[str, str],
        body={"model": model, **extra},
        files={"file": (args.file.name, args.file.read_bytes())},
        options={"headers": {"Content-Type": "multipart/form-data"}},
    )
    print("whole:", answer["text"])
    print("streamed: ", end="")
    with (
        args.file.open("rb") as file,
        httpx2.stream(
            "POST",
            f"{url}/audio/translations",
            headers={"Authorization": f"Bearer {key}"},
            files={"file": file},
            data={"model": model, "stream": "true", **extra},
            timeout=None,
        ) as response,
    ):
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    print(choice["delta"]["content"], end="", flush=True)
    print()


if __name__ == "__main__":
    main()
