"""Recordings through our server to vLLM's engine: what is heard, whole and streamed, and what is refused."""

import openai
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.whisper import CLIP_S, write_whisper
from tests.speech_cases import MOST, SpeechCases, heard
from tests.vllm.served import serving

pytestmark = pytest.mark.vllm

FIRST_TIMESTAMP_ID = 364


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`weft serve` of a tiny Whisper."""
    checkpoint = write_whisper(tmp_path_factory.mktemp("vllm") / "whisper")
    with serving(checkpoint, "--served-model-name", "whisper") as started:
        yield started


@pytest.fixture(scope="module")
def client(server):
    """OpenAI's own, which repeats nothing."""
    with openai.OpenAI(
        base_url=f"{server.http}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
    ) as made:
        yield made


class TestSpeech(SpeechCases):
    """The cases of every engine."""


def test_a_long_recording_is_several_clips(client):
    """Three and more, cut where it is quiet; each has as many tokens as it may, and segments go on through all."""
    seconds = 2.5 * CLIP_S
    chunks = list(heard(client, seconds, stream=True, extra_body={"stream_include_usage": True}))
    num_clips, rest = divmod(chunks[-1].usage["completion_tokens"], MOST)
    assert (num_clips in (3, 4), rest) == (True, 0)
    verbose = heard(client, seconds, response_format="verbose_json")
    assert verbose.duration == seconds
    assert [one.id for one in verbose.segments] == list(range(len(verbose.segments)))
    assert all(0 <= one.start <= one.end <= seconds for one in verbose.segments)
    assert all(token < FIRST_TIMESTAMP_ID for one in verbose.segments for token in one.tokens)
    assert verbose.segments[-1].end > 2 * CLIP_S - 1
