"""`examples/transcription.py` and `translation.py`, before an engine that hears what the bytes of a file say."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.cli.running import clean_environment
from tests.doubles.fake_speech import FakeSpeechEngine
from tests.web.http.serving import serving

pytestmark = pytest.mark.slow  # they import a client
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BOTH = "whole: hello world\nstreamed: hello world\n"


@pytest.mark.parametrize(
    ("name", "flags", "shown"),
    [
        ("transcription.py", [], BOTH),
        ("transcription.py", ["--language", "de"], BOTH),
        ("transcription.py", ["--times"], "  0.00   1.00 hello\n  2.00   3.00 world\n"),
        ("translation.py", ["--language", "it"], BOTH),
    ],
)
async def test_a_recording_is_shown_whole_and_streamed(tmp_path, name, flags, shown):
    """As their first lines say."""
    file = tmp_path / "speech.wav"
    file.write_bytes(b"hello|world")
    async with serving(engine=FakeSpeechEngine()) as site:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLES / name), str(file), *flags,
            env=clean_environment(OPENAI_BASE_URL=f"{site.url}/v1"),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate()
    assert (process.returncode, output.decode()) == (0, shown)
