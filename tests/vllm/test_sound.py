"""Sound in chats through our servers, to vLLM's engine and to our own: every way in, and what is refused."""

import base64
import json

import grpc
import pytest

from tests.cli.running import running
from tests.doubles.whisper import sound
from tests.vllm.qwen_audio import AUDIO_TOKEN_ID, TOKENS_A_SECOND, write_qwen_audio
from tests.vllm.served import fetched, refused, serving
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

ASKED = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
CHAT = "/v1/chat/completions"
MOST_SECONDS = 60  # by the server's variable
VLLM = pytest.param("vllm", marks=pytest.mark.vllm)


@pytest.fixture(scope="module", params=[VLLM, pytest.param("own", marks=pytest.mark.slow)])
def engine(request):
    """The engine behind the server."""
    return request.param


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny Qwen2-Audio."""
    return write_qwen_audio(tmp_path_factory.mktemp("vllm") / "qwen_audio")


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """A directory with a second and two of a tone."""
    directory = tmp_path_factory.mktemp("sounds")
    (directory / "low.wav").write_bytes(sound(1.0))
    (directory / "high.wav").write_bytes(sound(2.0, 3000.0))
    return directory


@pytest.fixture(scope="module")
def server(engine, checkpoint, sounds):
    """Which reads files of that directory."""
    flags = (
        "--allowed-local-media-path", str(sounds), "-c", "1024", "--served-model-name", "hears",
        "--limit-mm-per-prompt", '{"audio": 2}',
    )  # fmt: skip
    limit = {"VLLM_MAX_AUDIO_DECODE_DURATION_S": str(MOST_SECONDS)}
    start = running(str(checkpoint), *flags)
    if engine == "vllm":
        start = serving(checkpoint, *flags, **limit)
    with start as started:
        yield started


def encoded(path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def in_body(data: str):
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def at(url: str | None, **fields):
    return {"type": "audio_url", "audio_url": url and {"url": url}, **fields}


def asking(*parts, **fields):
    """A body of a chat with these parts before a text."""
    content = [*parts, {"type": "text", "text": "What is it?"}]
    return {"messages": [{"role": "user", "content": content}], **ASKED, **fields}


def answered(server, *parts, **fields):
    """The answer to it."""
    return json.loads(fetched(server, CHAT, asking(*parts, **fields)))


def tokens(answer) -> list[int]:
    return answer["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def expected(server, sounds):
    """The answer to a sound that comes in the body, as OpenAI has it."""
    return answered(server, in_body(encoded(sounds / "low.wav")))


def test_a_sound_is_heard(server, expected, sounds):
    """As many tokens as it is long, which usage counts; another sound has another answer."""
    deaf = answered(server)
    other = answered(server, in_body(encoded(sounds / "high.wav")))
    for answer, seconds in ((expected, 1), (other, 2)):
        num_tokens = answer["prompt_token_ids"].count(AUDIO_TOKEN_ID)
        assert num_tokens == seconds * TOKENS_A_SECOND
    assert len({tuple(tokens(one)) for one in (deaf, expected, other)}) == 3


def test_it_is_the_same_wherever_it_comes_from(server, expected, sounds):
    """By address, from a file, and by its uuid once it has been heard."""
    url = f"data:audio/wav;base64,{encoded(sounds / 'low.wav')}"
    ways = [
        at(url),
        at((sounds / "low.wav").as_uri()),
        at(url, uuid="low"),
        at(None, uuid="low"),
    ]
    assert [tokens(answered(server, way)) for way in ways] == [tokens(expected)] * len(ways)


def test_two_are_heard_in_their_order(server, sounds):
    """Each at its anchor."""
    low, high = (in_body(encoded(sounds / name)) for name in ("low.wav", "high.wav"))
    first, second = answered(server, low, high), answered(server, high, low)
    for answer in (first, second):
        assert answer["prompt_token_ids"].count(AUDIO_TOKEN_ID) == 3 * TOKENS_A_SECOND
    assert tokens(first) != tokens(second)


def anchored(expected) -> list[int]:
    """The prompt with one token for the sound."""
    ids = expected["prompt_token_ids"]
    first = ids.index(AUDIO_TOKEN_ID)
    return [*ids[: first + 1], *ids[first + ids.count(AUDIO_TOKEN_ID) :]]


async def generated(server, message):
    """The last reply."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        replies = [reply async for reply in VllmEngineStub(channel).Generate(message)]
    return replies[-1].complete


def generation(ids, **fields) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=ids),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True),
        **fields,
    )


async def test_grpc_takes_its_address(server, expected, sounds):
    """Beside token ids with one anchor."""
    url = f"data:audio/wav;base64,{encoded(sounds / 'low.wav')}"
    ref = pb.MediaRef(modality=common_pb2.AUDIO, url=url)
    message = generation(anchored(expected), media_refs=pb.MediaRefs(items=[ref]))
    complete = await generated(server, message)
    assert list(complete.output_ids) == tokens(expected)
    assert complete.prompt_tokens == len(expected["prompt_token_ids"])


def tensor(array, dtype) -> pb.TensorData:
    return pb.TensorData(shape=array.shape, dtype=dtype, inline=array.tobytes())


@pytest.mark.parametrize("engine", [VLLM], indirect=True)
async def test_grpc_takes_tensors(server, expected, checkpoint):
    """What the model's own processor makes gives the same tokens; what it would not make is refused."""
    import numpy as np
    import transformers

    extractor = transformers.WhisperFeatureExtractor.from_pretrained(checkpoint)
    wave = np.frombuffer(sound(1.0)[44:], "<i2").astype(np.float32) / 32768
    made = extractor(
        wave, sampling_rate=16_000, return_attention_mask=True, padding="max_length",
        return_tensors="np",
    )  # fmt: skip
    features = made["input_features"].astype(np.float32)
    mask = made["attention_mask"].astype(np.int64)
    ids = expected["prompt_token_ids"]
    first, num_tokens = ids.index(AUDIO_TOKEN_ID), ids.count(AUDIO_TOKEN_ID)

    def message(features, mask=mask, name="low"):
        return generation(
            ids,
            mm_inputs=pb.MultimodalInputs(
                modality=common_pb2.AUDIO, pixel_values=tensor(features, "float32"),
                encoder_input_key="input_features",
                model_specific_tensors={"feature_attention_mask": tensor(mask, "int64")},
                mm_placeholders=[pb.PlaceholderRange(offset=first, length=num_tokens)],
                mm_hashes=[name], batched_keys=["input_features", "feature_attention_mask"],
            ),
        )  # fmt: skip

    assert list((await generated(server, message(features))).output_ids) == tokens(expected)
    for wrong, words in (
        (message(features[:, :8], name="b"), "input_features"),
        (message(features[..., :1500], name="c"), "input_features"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generated(server, wrong)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in caught.value.details()
    again = await generated(server, message(features, name="d"))
    assert list(again.output_ids) == tokens(expected)


@pytest.mark.parametrize(
    ("data", "words", "own_words"),
    [
        (sound(1.0)[:30], "not in a known format", "no samples"),
        (b"no sound at all", "audio: Invalid or corrupted", "audio: this is not a WAV"),
        (
            sound(MOST_SECONDS + 1),
            "audio: Audio exceeds maximum allowed duration",
            "audio: the 61 seconds of the recording exceed the maximum allowed duration of 30 seconds",
        ),
        (sound(0.001), "too short", "too short"),
    ],
    ids=["cut", "bytes", "long", "short"],
)
def test_what_cannot_be_heard_is_refused(server, engine, data, words, own_words):
    """As any wrong field is, with the reason."""
    code, error = refused(server, CHAT, asking(in_body(base64.b64encode(data).decode())))
    assert (code, error["type"]) == (400, "invalid_request_error")
    assert (words if engine == "vllm" else own_words) in error["message"]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (in_body("%%%"), "is not base64"),
        (at("https://example.com/a.wav"), "is not among the hosts"),
        (at("file:///etc/hostname"), "is no file below the directory"),
        (at(None, uuid="never heard"), "audio"),
        ({"type": "text", "text": "<|AUDIO|>"}, "one for each audio"),
        ({"type": "video_url", "video_url": "data:,"}, "video: this model takes none"),
    ],
    ids=["base64", "host", "file", "uuid", "anchor", "video"],
)
def test_what_is_nowhere_to_be_had_is_refused(server, part, words):
    """Likewise."""
    code, error = refused(server, CHAT, asking(part))
    assert (code, error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]


def test_no_more_are_taken_than_the_server_allows(server, sounds):
    """By vLLM's own flag."""
    one = in_body(encoded(sounds / "low.wav"))
    code, error = refused(server, CHAT, asking(one, one, one))
    assert (code, "audio: at most 2 may be given" in error["message"]) == (400, True)
