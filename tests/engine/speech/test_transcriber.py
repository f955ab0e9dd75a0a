"""Recordings through our own engine with a random Whisper: text, windows, languages, and the same bits for all."""

import asyncio
from contextlib import aclosing
from itertools import pairwise
from unittest.mock import patch

import pytest

from tests.contract.engines import resolved
from tests.doubles.whisper import CLIP_S, sound, write_whisper
from weft.core.errors import BadRequest, ConfigError, GenerationError, Unsupported
from weft.core.values.media import Owner
from weft.core.values.speech import Speech, SpeechTask
from weft.core.values.types import OutputKind, RequestOptions, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.step import step_forward
from weft.engine.step.tower_step import compute_outputs

pytestmark = pytest.mark.filterwarnings("ignore")
FIRST_TIMESTAMP_ID = 364
SMALL = {"max_model_len": 64, "block_size": 16, "num_gpu_blocks_override": 64}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A random Whisper that hears two seconds at a time."""
    return str(write_whisper(tmp_path_factory.mktemp("whisper")))


async def started(checkpoint, **options):
    model, config = resolved(checkpoint, **{**SMALL, **options})
    return await LocalClient.start(model, config)


@pytest.fixture
async def client(checkpoint):
    """An engine on a thread."""
    made = await started(checkpoint)
    yield made
    made.shutdown(timeout=0)
    await made.wait_closed()


def params(**changes):
    return SamplingParams(
        **{
            "temperature": 0.0,
            "max_tokens": 9,
            "logprobs": 0,
            "output_kind": OutputKind.FINAL_ONLY,
            **changes,
        }
    )


async def hear(client, data, changes=None, request_id="r", owner=None, **speech):
    """Clips of a recording."""
    speech = Speech(**{"task": SpeechTask.TRANSCRIBE, "data": data, "language": "en", **speech})
    options = RequestOptions(request_id=request_id, media_owner=owner)
    async with aclosing(client.run_speech(speech, params(**changes or {}), options)) as clips:
        return [clip async for clip in clips]


def contents(clips):
    """What was heard, and where."""
    return [
        (clip.start_s, clip.end_s, clip.output.outputs[0].token_ids, clip.output.outputs[0].text)
        for clip in clips
    ]


async def test_windows_follow_each_other_to_the_end(client):
    """Each begins at or before the end of the one before it; the last one is marked, and no text has times."""
    clips = await hear(client, sound(2.5 * CLIP_S))
    assert clips[0].start_s == 0
    assert [clip.clip for clip in clips] == list(range(len(clips)))
    assert all(before.start_s < after.start_s <= before.end_s for before, after in pairwise(clips))
    assert [clip.is_last for clip in clips] == [False] * (len(clips) - 1) + [True]
    assert clips[-1].end_s == 2.5 * CLIP_S == clips[0].recording.duration_s
    assert clips[0].recording.num_audio_tokens == 250
    assert all(0 <= clip.no_speech_prob <= 1 for clip in clips)
    assert "<|" not in "".join(clip.output.outputs[0].text for clip in clips)


async def test_every_token_has_its_logprob(client):
    """Times among them; the model's end is not one of the tokens."""
    for clip in await hear(client, sound(1.0)):
        [answer] = clip.output.outputs
        assert len(answer.token_ids) == len(answer.logprobs)
        assert all(t in row for t, row in zip(answer.token_ids, answer.logprobs, strict=True))
        assert 256 not in answer.token_ids


async def test_language_task_and_prompt_change_the_text(client):
    """Each is part of what the model continues; a language that is not given is found."""
    data = sound(1.0)
    answers = [
        contents(await hear(client, data, **fields))
        for fields in (
            {},
            {"language": "de"},
            {"task": SpeechTask.TRANSLATE},
            {"prompt": "once upon"},
        )
    ]
    assert len({str(answer) for answer in answers}) == 4
    found = (await hear(client, data, language=None))[0].recording.language
    assert contents(await hear(client, data, language=found)) == contents(
        await hear(client, data, language=None)
    )


async def test_recordings_at_once_give_what_each_gives_alone(checkpoint, client):
    """In one batch, preempted for want of blocks, and with room for one sound's keys and values only."""
    data = [sound(1.5, pitch) for pitch in (200.0, 440.0, 900.0, 3000.0)]
    alone = [contents(await hear(client, one)) for one in data]

    async def all_of(engine):
        heard = (hear(engine, one, request_id=f"r{i}") for i, one in enumerate(data))
        return [contents(clips) for clips in await asyncio.gather(*heard)]

    assert await all_of(client) == alone
    for options in (
        {"num_gpu_blocks_override": 8, "block_size": 8},
        {"mm_processor_cache_gb": 0.0},
        {"max_num_batched_tokens": 3, "max_num_seqs": 2, "compute": "native"},
    ):
        other = await started(checkpoint, **options)
        try:
            assert await all_of(other) == alone
        finally:
            other.shutdown(timeout=0)
            await other.wait_closed()


async def test_the_reference_hears_the_same(checkpoint, client):
    """Greedy tokens of both backends are equal."""
    data = sound(1.0)
    other = await started(checkpoint, compute="reference")
    try:
        assert contents(await hear(other, data)) == contents(await hear(client, data))
    finally:
        other.shutdown(timeout=0)
        await other.wait_closed()


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """Hashes of the windows that the encoder computes."""
    hashes: list[str] = []

    def compute(runner, outputs, config):
        hashes.extend(output.item.hash for output in outputs)
        compute_outputs(runner, outputs, config)

    monkeypatch.setattr(step_forward, "compute_outputs", compute)
    return hashes


async def test_a_sound_is_encoded_once(client, encoded):
    """Requests of one window find its keys and values in the cache, and so does the same recording later."""
    first = await hear(client, sound(1.0))
    outputs = client.vllm_config.sounds_config
    assert outputs.memory_bytes == 2 * 2 * 112 * 64 * 4  # layers, keys and values, rows, hidden
    assert len(encoded) == 1
    assert contents(first) == contents(await hear(client, sound(1.0)))
    assert len(encoded) == 1


async def test_a_tenant_apart_finds_no_sound_of_another(client, encoded):
    """Otherwise the time of an answer would say whether another tenant had sent the same recording."""
    apart = [Owner(tenant=name, is_apart=True) for name in "ab"]
    counts = []
    for owner in (None, Owner(tenant="a"), *apart):
        heard = [await hear(client, sound(1.0), owner=owner) for _ in range(2)]
        assert contents(heard[0]) == contents(heard[1])
        counts.append(len(encoded))
    assert counts == [1, 1, 2, 3]


async def test_a_reader_that_leaves_ends_the_request(client):
    """The engine's work ends, and the next recording is heard."""
    speech = Speech(task=SpeechTask.TRANSCRIBE, data=sound(3 * CLIP_S), language="en")
    clips = client.run_speech(speech, params(), RequestOptions(request_id="gone"))
    await anext(clips)
    await clips.aclose()
    assert client.num_open_answers == 0
    assert await hear(client, sound(1.0))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"language": "xx"}, "language"),
        ({"hotwords": "weft"}, "hotwords"),
        ({"to_language": "de"}, "to_language"),
        ({"data": b"no sound"}, "file"),
        ({"changes": {"temperature": -1.0}}, "temperature"),
        ({"changes": {"n": 2, "temperature": 1.0}}, "n"),
    ],
)
async def test_what_cannot_be_heard_is_refused_by_name(client, fields, name):
    """Before anything is computed."""
    with pytest.raises(BadRequest) as caught:
        await hear(client, **{"data": sound(1.0), **fields})
    assert caught.value.parameter == name


async def test_a_model_of_speech_generates_nothing_else(client):
    """A prompt has no sound, and no sound has tokens of its own."""
    with pytest.raises(Unsupported, match="it only transcribes speech"):
        await client.prepare("a", SamplingParams(), RequestOptions(request_id="r"))
    assert await client.get_supported_tasks() == ("transcription",)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"quantization": "int8"}, "--quantization"),
        ({"logprobs_mode": "raw_logits"}, "--logprobs-mode raw_logits"),
        ({"enable_lora": True}, "--enable-lora"),
    ],
)
def test_flags_that_do_not_go_with_speech_are_refused(checkpoint, options, flag):
    """At the start, by name."""
    with pytest.raises(ConfigError, match=f"{flag} is not supported for models of speech"):
        resolved(checkpoint, **SMALL, **options)


def test_a_context_too_short_for_a_prompt_is_refused(checkpoint):
    """Half of it is for what was said before, and half for the answer."""
    with pytest.raises(ConfigError, match="--max-model-len must be at least 16"):
        resolved(checkpoint, **{**SMALL, "max_model_len": 15})


async def test_english_alone_has_no_languages(tmp_path):
    """Its prompts have neither language nor task, and it translates nothing."""
    directory = write_whisper(tmp_path)
    (directory / "generation_config.json").write_text('{"is_multilingual": false}')
    client = await started(str(directory))
    try:
        assert client.vllm_config.sounds_config.tokens.languages == {}
        [clip, *_] = await hear(client, sound(1.0), language=None)
        assert clip.recording.language == "en"
        with pytest.raises(BadRequest, match="translation of audio"):
            await hear(client, sound(1.0), task=SpeechTask.TRANSLATE)
        with pytest.raises(BadRequest, match="must be one of en"):
            await hear(client, sound(1.0), language="de")
    finally:
        client.shutdown(timeout=0)
        await client.wait_closed()


async def test_a_sound_that_the_encoder_cannot_compute_ends_its_own_request(client, monkeypatch):
    """As without memory. The next request with this recording is answered as ever."""

    def failing(runner, outputs, config):
        with patch.object(type(runner), "remember", side_effect=MemoryError):
            compute_outputs(runner, outputs, config)

    with monkeypatch.context() as changed:
        changed.setattr(step_forward, "compute_outputs", failing)
        with pytest.raises(GenerationError, match="could not compute this sound: MemoryError"):
            await hear(client, sound(1.1), request_id="bad")
    assert contents(await hear(client, sound(1.1))) == contents(await hear(client, sound(1.1)))
