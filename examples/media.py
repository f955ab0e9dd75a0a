"""Ask about pictures, sound and videos: each is a file, which is sent along, or a URL, which the server fetches.

    weft serve embedded:tiny-vision
    pip install openai
    python examples/media.py --image red.png "What colour is the background?"
    python examples/media.py --image red.png --image blue.png "What is in the second picture?"

Weft's own engine takes pictures. Sound and videos need vLLM's engine and a model that takes them:

    weft serve llava-hf/llava-onevision-qwen2-0.5b-ov-hf --engine vllm --allowed-media-domains upload.wikimedia.org
    python examples/media.py --audio speech.wav --stream "What is said here?"

The server fetches from the hosts that it is allowed to, and from no other.
"""

import argparse
import base64
import mimetypes
import os
from pathlib import Path
from typing import Any

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("question")
    parser.add_argument("--image", action="append", default=[], help="file or URL; repeatable")
    parser.add_argument("--audio", action="append", default=[], help="file or URL; repeatable")
    parser.add_argument("--video", action="append", default=[], help="file or URL; repeatable")
    parser.add_argument("--stream", action="store_true", help="print the answer as it comes")
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    content: list[Any] = [
        *(part("image_url", source) for source in args.image),
        *(part("audio_url", source) for source in args.audio),
        *(part("video_url", source) for source in args.video),
        {"type": "text", "text": args.question},
    ]
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": content}],
        stream=args.stream,
    )
    if not args.stream:
        print(answer.choices[0].message.content)
        return
    for chunk in answer:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


def part(kind: str, source: str) -> dict[str, Any]:
    """A part of a message. Sound in a file may be of type input_audio too, as OpenAI has it."""
    if "://" in source:
        return {"type": kind, kind: {"url": source}}
    path = Path(source)
    data = base64.b64encode(path.read_bytes()).decode()
    if kind == "audio_url":
        sound = {"data": data, "format": path.suffix.removeprefix(".")}
        return {"type": "input_audio", "input_audio": sound}
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return {"type": kind, kind: {"url": f"data:{media_type};base64,{data}"}}


if __name__ == "__main__":
    main()
