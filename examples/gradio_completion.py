"""A page on which a text is continued, made with Gradio, over /generate; --once asks without a page.

weft serve
pip install gradio
python examples/gradio_completion.py --port 8001
"""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from urllib.request import Request, urlopen


def continued(prompt: str, url: str) -> Iterator[str]:
    """The text with what follows it, longer each time."""
    body = {"prompt": prompt, "stream": True, "max_tokens": 128}
    request = Request(
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=300) as lines:
        for line in lines:
            yield json.loads(line)["text"][0]


def show(options: argparse.Namespace) -> None:
    import gradio  # noqa: PLC0415  # not needed for --once

    with gradio.Blocks(title="Continue a text") as page:
        given = gradio.Textbox(label="Text", placeholder="It begins with ...")
        shown = gradio.Textbox(label="What follows it")
        given.submit(partial(continued, url=options.url), given, shown)
    page.launch(server_name=options.host, server_port=options.port)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--host", default="127.0.0.1", help="of the page")
    parser.add_argument("--port", type=int, default=8001, help="of the page")
    parser.add_argument("--once", help="continue this, and print how it grows")
    options = parser.parse_args()
    if options.once is None:
        show(options)
        return
    for text in continued(options.once, options.url):
        print(text)


if __name__ == "__main__":
    main()
