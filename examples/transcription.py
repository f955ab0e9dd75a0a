"""What is said in a recording: whole, then as it comes.

    weft serve openai/whisper-small
    pip install openai
    python examples/transcription.py speech.wav --language en
    python examples/transcription.py speech.wav --times

The server has to be one with a model that transcribes, such as `embedded:tiny-whisper`, a toy.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--language", help="code of two letters; without it the model hears it")
    parser.add_argument("--times", action="store_true", help="show when each segment is said")
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    asked: dict[str, Any] = {"model": client.models.list().data[0].id, "file": args.file}
    if args.language is not None:
        asked["language"] = args.language
    if args.times:
        for segment in client.audio.transcriptions.create(
            **asked, response_format="verbose_json"
        ).segments:
            print(f"{segment.start:6.2f} {segment.end:6.2f} {segment.text}")
        return
    # What OpenAI's API does not have goes along as extra_body.
    extra = {"seed": 4419, "repetition_penalty": 1.3}
    whole = client.audio.transcriptions.create(**asked, temperature=0.0, extra_body=extra)
    print("whole:", whole.text)
    print("streamed: ", end="")
    events: Any = client.audio.transcriptions.create(
        **asked, temperature=0.0, stream=True, extra_body=extra
    )
    for event in events:
        for choice in event.choices:
            print(choice["delta"]["content"], end="", flush=True)
    print()


if __name__ == "__main__":
    main()
