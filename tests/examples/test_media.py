"""`examples/media.py`, before the toy that sees, and before a model that answers with what it was asked."""

import asyncio
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.running import clean_environment
from tests.web.serving import ECHO, http_serving, serving
from weft.core.values.media import MediaConfig

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "media.py"
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}({{ part['type'] }}){% endif %}"
    "{% endfor %}{% endfor %}"
)


async def run(at: str, *argv: str) -> str:
    """What the example prints before the server at this address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), *argv,
        env=clean_environment(OPENAI_BASE_URL=f"{at}/v1"),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    shown, _ = await process.communicate()
    assert process.returncode == 0
    return shown.decode()


async def test_a_picture_and_several_are_asked_about(tmp_path):
    """The toy in the package answers, so that this runs without a download."""
    paths = [tmp_path / f"{colour}.png" for colour in ("red", "blue")]
    for path in paths:
        Image.new("RGB", (60, 40), path.stem).save(path)
    red, blue = (f"--image={path}" for path in paths)
    question = "What colour is the background?"
    async with serving("embedded:tiny-vision") as served, http_serving(served) as at:
        assert await run(at, red, question) == "Red.\n"
        assert await run(at, red, blue, "--stream", f"In the second picture: {question}")


@pytest.mark.slow  # it imports a client, twice
@pytest.mark.parametrize("flags", [[], ["--stream"]])
async def test_files_and_urls_become_parts(tmp_path, flags):
    """Each with its kind, before the question."""
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    media = MediaConfig(max_items={"image": 2, "audio": 1, "video": 1})
    async with serving(ECHO, template=TEMPLATE, media=media) as served, http_serving(served) as at:
        shown = await run(
            at, "What?", *flags,
            "--image", str(tmp_path / "a.png"), "--image", "https://host/c.png",
            "--audio", str(tmp_path / "b.wav"), "--video", "https://host/d.mp4",
        )  # fmt: skip
    assert shown.startswith("(image)(image)(audio)(video)What?")
