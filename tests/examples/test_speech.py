"""`examples/transcription.py` and `translation.py`: before the toy that hears tones, and before an engine that hears
what the bytes of a file say.
"""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.cli.running import clean_environment
from tests.doubles.fake_speech import FakeSpeechEngine
from tests.web.http.serving import serving as fake_serving
from tests.web.serving import http_serving, serving
from training.whisper.tones import say, wav

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BOTH = "whole: hello world\nstreamed: hello world\n"


async def run(at: str, name: str, *argv: str) -> str:
    """What the example prints before the server at this address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / name), *argv,
        env=clean_environment(OPENAI_BASE_URL=f"{at}/v1"),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_tones_are_transcribed_and_translated(tmp_path):
    """The toy in the package answers, so that this runs without a download."""
    file = tmp_path / "tones.wav"
    file.write_bytes(wav(say(("low", "high"), "de").samples))
    async with (
        serving("embedded:tiny-whisper", max_model_len=64) as served,
        http_serving(served) as at,
    ):
        whole, translated = await asyncio.gather(
            run(at, "transcription.py", str(file)),
            run(at, "translation.py", str(file), "--language", "de"),
        )
    assert whole == "whole: tief hoch\nstreamed: tief hoch\n"
    assert translated == "whole: low high\nstreamed: low high\n"


@pytest.mark.slow  # they import a client
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
    async with fake_serving(engine=FakeSpeechEngine()) as site:
        assert await run(site.url, name, str(file), *flags) == shown
