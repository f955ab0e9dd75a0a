"""The shipped model `embedded:tiny-whisper`: small, and right about tones, languages and times."""

from contextlib import aclosing
from pathlib import Path

import pytest

from tests.contract.engines import resolved
from training.whisper.tones import WORDS, Said, say, text_of, wav
from weft.core.values.speech import ClipOutput, Speech, SpeechTask
from weft.core.values.types import OutputKind, RequestOptions, SamplingParams
from weft.engine.clients.local_client import LocalClient

FOLDER = Path(__file__).resolve().parents[2] / "src/weft/model/embedded/tiny-whisper"
GREEDY = SamplingParams(temperature=0.0, output_kind=OutputKind.FINAL_ONLY)
SAID = [("low", "high"), ("rising", "hiss", "low"), ("falling", "middle")]


@pytest.fixture
async def client():
    """The model in Weft's engine."""
    model, config = resolved("embedded:tiny-whisper", max_model_len=64)
    made = await LocalClient.start(model, config)
    yield made
    made.shutdown(timeout=0)
    await made.wait_closed()


async def hear(client: LocalClient, said: Said, task: SpeechTask) -> list[ClipOutput]:
    """What the model makes of a recording whose language it is not told."""
    speech = Speech(task=task, data=wav(said.samples), has_timestamps=True)
    options = RequestOptions(request_id="r")
    async with aclosing(client.run_speech(speech, GREEDY, options)) as clips:
        return [clip async for clip in clips]


def text(clips: list[ClipOutput]) -> str:
    """The words of all windows."""
    return " ".join(clip.output.outputs[0].text.strip() for clip in clips).strip()


def test_the_folder_is_small():
    """The package ships it, so everything together stays within 0.7 MB."""
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 700_000


async def test_it_writes_down_tones_in_two_languages(client):
    """Examples and tests of speech may rely on this: transcripts, translations, and the language that was found."""
    for sounds in SAID:
        for language in ("en", "de"):
            said = say(sounds, language)
            clips = await hear(client, said, SpeechTask.TRANSCRIBE)
            assert text(clips) == text_of(sounds, language)
            assert clips[0].recording.language == language
            translated = await hear(client, said, SpeechTask.TRANSLATE)
            assert text(translated) == text_of(sounds, "en")


async def test_a_recording_of_several_windows_and_silence_are_heard(client):
    """The words of the first window are right, and silence is known to be none."""
    first, second = say(("low", "high", "low"), begin=0.1), say(("hiss", "rising"), begin=1.6)
    samples = [*first.samples, *second.samples]
    long = Said(samples, (*first.sounds, *second.sounds), "en", 0.1, 0.0)
    clips = await hear(client, long, SpeechTask.TRANSCRIBE)
    words = text(clips).split()
    assert len(clips) > 1
    assert words[:3] == ["low", "high", "low"]
    assert set(words) <= {names["en"] for names in WORDS.values()}
    silent = Said([0.0] * 24_000, (), "en", 0.0, 0.0)
    [quiet] = await hear(client, silent, SpeechTask.TRANSCRIBE)
    assert clips[0].no_speech_prob < 0.1
    assert quiet.no_speech_prob > 0.9
