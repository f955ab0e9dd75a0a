"""Recordings through our server to our own engine: the cases of every engine, and windows."""

import grpc
import openai
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import running
from tests.doubles.whisper import CLIP_S, write_whisper
from tests.rpc.calls import refusal
from tests.speech_cases import SpeechCases, heard
from weft.pb import vllm_control_pb2 as control_pb
from weft.pb import vllm_engine_pb2 as pb
from weft.pb import vllm_inference_pb2 as inference_pb
from weft.pb.vllm_control_pb2_grpc import ControlStub
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.pb.vllm_inference_pb2_grpc import InferenceStub

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`weft serve` of a tiny Whisper."""
    checkpoint = write_whisper(tmp_path_factory.mktemp("whisper"))
    with running(str(checkpoint), "--served-model-name", "whisper") as started:
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


def test_segments_of_a_long_recording_go_on_through_all_windows(client):
    """Their times rise up to the end, and subtitles have as many."""
    seconds = 2.5 * CLIP_S
    verbose = heard(client, seconds, response_format="verbose_json")
    assert verbose.duration == seconds
    assert [one.id for one in verbose.segments] == list(range(len(verbose.segments)))
    assert all(0 <= one.start <= one.end <= seconds for one in verbose.segments)
    assert all(0 <= one.no_speech_prob <= 1 for one in verbose.segments)
    assert verbose.segments[-1].end > seconds - CLIP_S
    for name in ("srt", "vtt"):
        assert heard(client, seconds, response_format=name).count(" --> ") == len(verbose.segments)


async def test_no_protocol_of_grpc_takes_prompts_for_a_model_of_speech(server):
    """The refusal says why, and the facts of the model say so before."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        older = pb.GenerateRequest(text="a")
        newer = inference_pb.GenerateRequest(text="a", stopping={"max_new_tokens": 1})
        inference = InferenceStub(channel)
        for call in (
            VllmEngineStub(channel).Generate(older),
            inference.Generate(newer),
            inference.GenerateStream(newer),
        ):
            code, details = await refusal(call)
            assert code is grpc.StatusCode.UNIMPLEMENTED
            assert "it only transcribes speech" in details
        facts = await ControlStub(channel).GetModelInfo(control_pb.GetModelInfoRequest())
    assert (facts.supports_text_input, facts.supports_token_ids_input) == (False, False)
