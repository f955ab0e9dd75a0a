"""`examples/media.py`, before a server whose model answers with what it was asked: anchors where items were."""

import asyncio
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.running import clean_environment
from tests.web.serving import ECHO, http_serving, serving
from weft.core.values.media import MediaConfig

pytestmark = pytest.mark.slow  # it imports a client
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "media.py"
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}({{ part['type'] }}){% endif %}"
    "{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("flags", [[], ["--stream"]])
async def test_files_and_urls_become_parts(tmp_path, flags):
    """Each with its kind, before the question."""
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    media = MediaConfig(max_items={"image": 2, "audio": 1, "video": 1})
    async with serving(ECHO, template=TEMPLATE, media=media) as served, http_serving(served) as at:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLE), "What?", *flags,
            "--image", str(tmp_path / "a.png"), "--image", "https://host/c.png",
            "--audio", str(tmp_path / "b.wav"), "--video", "https://host/d.mp4",
            env=clean_environment(OPENAI_BASE_URL=f"{at}/v1"),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        shown, _ = await process.communicate()
    assert process.returncode == 0
    assert shown.decode().startswith("(image)(image)(audio)(video)What?")
