"""Sounds from a request to an answer, on small random models of every family that hears."""

import base64

import numpy as np
import pytest
import torch

import weft
from tests.doubles.hearing import ANCHOR, ASKED, extractor_of, silence, write_hearing
from tests.doubles.websocket_client import connected
from tests.doubles.whisper import sound
from tests.vllm.llava import TEMPLATE
from tests.web.openai.calls import CHAT, answer
from tests.web.serving import http_serving, serving
from weft.core.errors import BadRequest
from weft.core.values.types import RequestOptions, SamplingParams
from weft.media.sounds.recordings import RATE, decode_sound
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.request import to_generation
from weft.web.realtime.sounds import wav_file

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SETTINGS = {"max_model_len": 512, "block_size": 16, "num_gpu_blocks_override": 256}
CHATS = {"max_model_len": 512, "mm_processor_cache_gb": 0.1}
LOW, HIGH = sound(1.0), sound(1.5, 3000.0)
# Of the one and of the other.
TOKENS = {"qwen2_audio": (25, 37), "voxtral": (25, 25), "qwen3_asr": (13, 20)}


# The last one differs in its encoder alone, whose bits tests/compute compares.
FAMILIES = ("qwen2_audio", "voxtral", "qwen3_asr")


@pytest.fixture(scope="module", params=FAMILIES[:2])
def saved(request, tmp_path_factory):
    """A model of transformers, and the directory that it is saved in with its processor and a tokenizer."""
    directory = tmp_path_factory.mktemp(request.param)
    return write_hearing(request.param, directory), str(directory)


def prompt(*sounds: bytes, before: str = "What is it? ") -> dict:
    """A prompt of texts and sounds for Python programs."""
    text = before + " and ".join(ASKED for _ in sounds)
    return {"prompt": f"{text} Say it.", "multi_modal_data": {"audio": list(sounds)}}


def expected(model, token_ids: list[int], *sounds: bytes) -> list[int]:
    """Greedy tokens of transformers, with its own processor."""
    family = model.config.model_type
    padding = True if family == "qwen3_asr" else "max_length"
    made = [
        extractor_of(family)(
            decode_sound(data), sampling_rate=RATE, padding=padding,
            return_attention_mask=True, return_tensors="np",
        )
        for data in sounds
    ]  # fmt: skip
    inputs = {"input_features": joined([one.input_features for one in made])}
    mask = joined([one.attention_mask for one in made]).long()
    masks = {"qwen2_audio": "feature_attention_mask", "qwen3_asr": "input_features_mask"}
    if family in masks:
        inputs[masks[family]] = mask
    ids = list(token_ids)
    for _ in range(GREEDY.max_tokens):
        tensor = torch.tensor([ids])
        with torch.no_grad():
            output = model(input_ids=tensor, attention_mask=torch.ones_like(tensor), **inputs)
        ids.append(int(output.logits[0, -1].argmax()))
    return ids[len(token_ids) :]


def joined(arrays: list[np.ndarray]) -> torch.Tensor:
    """Arrays [1, ..., columns] as one, with zeros behind the shorter ones."""
    size = max(one.shape[-1] for one in arrays)
    padded = [
        np.pad(one, [(0, 0)] * (one.ndim - 1) + [(0, size - one.shape[-1])]) for one in arrays
    ]
    return torch.tensor(np.concatenate(padded))


def tokens_of(llm, *prompts: dict) -> list[list[int]]:
    """The answer to each prompt."""
    outputs = llm.generate(list(prompts), GREEDY, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", ["native", "reference"])
@pytest.mark.parametrize("saved", FAMILIES, indirect=True)
def test_greedy_tokens_are_those_of_transformers(saved, compute):
    """From files of sounds to tokens: processor, encoder and text model together."""
    model, name = saved
    with weft.LLM(name, compute=compute, **SETTINGS) as llm:
        [output] = llm.generate([prompt(LOW, HIGH)], GREEDY, use_tqdm=False)
    ids, made = output.prompt_token_ids, output.outputs[0].token_ids
    assert ids.count(ANCHOR) == sum(TOKENS[model.config.model_type])
    assert made == expected(model, ids, LOW, HIGH)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 16},
        {
            "enable_prefix_caching": False,
            "max_num_batched_tokens": 40,
            "num_gpu_blocks_override": 34,
        },
        {"mm_processor_cache_gb": 0.0},
    ],
    ids=["chunked", "preempted", "not cached"],
)
def test_an_answer_is_the_same_alone_batched_chunked_preempted_and_cached(saved, settings):
    """The way of a request through the engine changes no token."""
    _, name = saved
    with weft.LLM(name, **SETTINGS) as llm:
        alone = [tokens_of(llm, prompt(*s))[0] for s in ((LOW, HIGH), (LOW,), (HIGH, LOW))]
        again = tokens_of(llm, prompt(LOW, HIGH))
    assert again == alone[:1]
    assert len({tuple(tokens) for tokens in alone}) == 3
    with weft.LLM(name, **{**SETTINGS, **settings}) as llm:
        batch = tokens_of(llm, *(prompt(*s) for s in ((LOW, HIGH), (LOW,), (HIGH, LOW), (LOW,))))
    assert batch == [*alone, alone[1]]


def test_text_before_a_sound_and_the_same_sound_are_cached(saved):
    """The second request begins behind the sound; another sound shares the text before it alone."""
    before = "A text of more than one block. " * 3
    with weft.LLM(saved[1], **SETTINGS) as llm:

        def cached(data: bytes) -> int:
            [output] = llm.generate([prompt(data, before=before)], GREEDY, use_tqdm=False)
            return output.num_cached_tokens

        assert cached(LOW) == 0
        assert cached(LOW) > len(before)
        assert cached(sound(1.0, 700.0)) == len(before) // 16 * 16


def in_body(data: bytes) -> dict:
    """A part of OpenAI's messages."""
    encoded = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}


def at(data: bytes | None, **fields) -> dict:
    """A part of vLLM's."""
    url = None if data is None else f"data:audio/wav;base64,{base64.b64encode(data).decode()}"
    return {"type": "audio_url", "audio_url": url and {"url": url}, **fields}


def chat(*parts: dict, **fields) -> dict:
    """A body of one message."""
    message = {"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}
    return {"messages": [message], "max_tokens": 8, "temperature": 0, **fields}


def text_of(made: dict) -> str:
    return made["choices"][0]["message"]["content"]


@pytest.mark.parametrize("saved", FAMILIES, indirect=True)
async def test_every_way_in_gives_the_same_answer(saved):
    """Parts of either form, a uuid alone, and gRPC's references; usage counts the tokens of a sound."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        first = await answer(served, CHAT, chat(in_body(LOW)))
        deaf = await answer(served, CHAT, chat())
        ways = [at(LOW), at(LOW, uuid="low"), at(None, uuid="low")]
        made = [await answer(served, CHAT, chat(way)) for way in ways]
        ref = pb.MediaRef(
            modality=common_pb2.AUDIO,
            url=f"data:audio/wav;base64,{base64.b64encode(LOW).decode()}",
        )
        message = pb.GenerateRequest(
            text=f"<|im_start|>user\n{ASKED}What is it?<|im_end|>\n<|im_start|>assistant\n",
            media_refs=pb.MediaRefs(items=[ref]),
            sampling_params=pb.SamplingParams(temperature=0.0, max_tokens=8),
        )
        client = served.client
        call = to_generation(message, client.info.limits, client.model_config.media)
        request = await client.prepare(call.prompt, call.params, RequestOptions(request_id="g"))
        token_ids = [t async for out in client.run(request) for t in out.outputs[0].token_ids]
        assert served.tokenizer.decode(token_ids) == text_of(first)
    assert [text_of(one) for one in made] == [text_of(first)] * len(ways)
    more = first["usage"]["prompt_tokens"] - deaf["usage"]["prompt_tokens"]
    assert more == TOKENS[saved[0].config.model_type][0] + 2


@pytest.mark.parametrize("saved", FAMILIES[:1], indirect=True)
async def test_a_session_hears_what_a_chat_hears(saved):
    """Samples in a session's buffer, and as an item, are the WAV file of a chat."""
    samples = (np.arange(24_000) % 50 * 300).astype("<i2").tobytes()
    encoded = base64.b64encode(samples).decode()
    part = {"type": "input_audio", "audio": encoded}
    text = {"type": "input_text", "text": "What is it?"}
    events = [
        {"type": "input_audio_buffer.append", "audio": encoded},
        {"type": "input_audio_buffer.commit"},
        {"type": "response.create", "response": {"max_output_tokens": 8}},
        {"type": "response.create", "response": {"max_output_tokens": 8, "conversation": "none",
         "input": [{"type": "message", "role": "user", "content": [part]}]}},
        {"type": "response.create", "response": {"max_output_tokens": 8, "conversation": "none",
         "input": [{"type": "message", "role": "user", "content": [text]}]}},
    ]  # fmt: skip
    async with (
        serving(saved[1], template=TEMPLATE, **CHATS) as served,
        http_serving(served) as address,
        connected(address, "/v1/realtime") as client,
    ):
        body = {"role": "user", "content": [in_body(wav_file(samples))]}
        told = await answer(served, CHAT, {"messages": [body], "max_tokens": 8, "temperature": 1.0})
        for event in events[:3]:
            client.send(event)
        made = [(await client.until("response.done"))[-1]["response"]]
        for event in events[3:]:
            client.send(event)
            made.append((await client.until("response.done"))[-1]["response"])
    heard, again, deaf = made
    assert heard["usage"]["input_tokens"] == told["usage"]["prompt_tokens"]
    assert again["usage"]["input_tokens"] == heard["usage"]["input_tokens"]
    assert deaf["usage"]["input_tokens"] != heard["usage"]["input_tokens"]
    assert "audio_tokens" not in heard["usage"]["input_token_details"]
    assert deaf["usage"]["input_token_details"]["audio_tokens"] == 0


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (in_body(b"no sound at all"), "audio: this is not a WAV"),
        (in_body(silence(601)), "audio: .* maximum allowed duration"),
        (at(None, uuid="never heard"), "uuid of audio 2: .* send the sound again"),
        ({"type": "text", "text": "<|AUDIO|>"}, "2 placeholder tokens 259, one for each audio"),
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "image: this model takes none"),
        ({"type": "video_url", "video_url": "data:,"}, "video: this model takes none"),
    ],
    ids=["bytes", "long", "uuid", "anchor", "image", "video"],
)
async def test_bad_sounds_are_refused_in_a_sentence(saved, part, words):
    """The caller's error, before anything runs; other requests go on."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        with pytest.raises(BadRequest, match=words):
            await answer(served, CHAT, chat(in_body(LOW), part))
        assert served.client.num_active_requests == 0
        await answer(served, CHAT, chat(in_body(LOW)))


async def test_a_text_model_refuses_sounds_by_name():
    """A model without an encoder names the part that it does not read."""
    async with serving("embedded:tiny", max_model_len=256) as served:
        with pytest.raises(BadRequest, match="parts of type text, got 'input_audio'"):
            await answer(served, CHAT, chat(in_body(LOW)))
