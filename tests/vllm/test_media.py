"""Pictures through our servers, to vLLM's engine and to our own: the same tokens by every way, and what is refused."""

import base64
import http.server
import io
import json
import threading
from functools import partial

import grpc
import pytest

from tests.cli.running import running
from tests.vllm.llava import IMAGE_TOKEN_ID, NUM_PATCHES, vision_path, write_llava
from tests.vllm.served import fetched, refused, serving
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

ASKED = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
CHAT = "/v1/chat/completions"
VLLM = pytest.param("vllm", marks=pytest.mark.vllm)


@pytest.fixture(scope="module", params=[VLLM, pytest.param("own", marks=pytest.mark.slow)])
def engine(request):
    """The engine behind the server."""
    return request.param


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A directory with two."""
    from PIL import Image  # there is none where these tests do not run

    directory = tmp_path_factory.mktemp("pictures")
    for name, color in (("red.png", (200, 30, 60)), ("blue.png", (10, 20, 250))):
        image = Image.radial_gradient("L").resize((40, 48)).convert("RGB")
        Image.blend(image, Image.new("RGB", image.size, color), 0.6).save(directory / name)
    return directory


@pytest.fixture(scope="module")
def site(pictures):
    """The address of a server of these, on this machine."""
    handler = partial(QuietHandler, directory=str(pictures))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Says nothing of what it serves."""

    def log_message(self, *_arguments):
        """Not here."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny LLaVA."""
    return write_llava(tmp_path_factory.mktemp("vllm") / "llava")


@pytest.fixture(scope="module")
def server(engine, checkpoint, pictures):
    """`weft serve` of it, over HTTP and gRPC."""
    flags = (
        "--max-model-len", "512", "--served-model-name", "llava",
        "--allowed-media-domains", "127.0.0.1", "--allowed-local-media-path", str(pictures),
        "--limit-mm-per-prompt", '{"image": 2}',
    )  # fmt: skip
    start = running(str(checkpoint), *flags, "--no-enable-prefix-caching")
    if engine == "vllm":
        start = serving(checkpoint, *flags, PYTHONPATH=vision_path())
    with start as started:
        yield started


def picture(url, **fields):
    return {"type": "image_url", "image_url": {"url": url}, **fields}


def data_url(path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def asking(*parts, text="What is it?", **fields):
    """A body of a chat with these parts before a text."""
    content = [*parts, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}], **ASKED, **fields}


def answered(server, *parts, **fields):
    """The answer to it."""
    return json.loads(fetched(server, CHAT, asking(*parts, **fields)))


def tokens(answer) -> list[int]:
    return answer["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def expected(server, pictures):
    """The answer to a picture that comes in the body."""
    return answered(server, picture(data_url(pictures / "red.png")))


def test_a_picture_is_seen(server, expected, pictures):
    """It becomes a token a patch, which usage counts, and another picture has another answer."""
    blind = answered(server)
    assert tokens(blind) != tokens(expected)
    assert expected["usage"]["prompt_tokens"] == blind["usage"]["prompt_tokens"] + NUM_PATCHES
    assert expected["prompt_token_ids"].count(IMAGE_TOKEN_ID) == NUM_PATCHES
    assert tokens(answered(server, picture(data_url(pictures / "blue.png")))) != tokens(expected)


def test_it_is_the_same_wherever_it_comes_from(server, expected, pictures, site):
    """In the body, from an allowed host, from a file, and by its uuid once it has been seen."""
    ways = [
        picture(f"{site}/red.png"),
        picture((pictures / "red.png").as_uri()),
        picture(data_url(pictures / "red.png"), uuid="red"),
        {"type": "image_url", "image_url": None, "uuid": "red"},
    ]
    assert [tokens(answered(server, way)) for way in ways] == [tokens(expected)] * len(ways)


def test_streams_say_the_same(server, expected, pictures):
    """And count as much."""
    body = asking(
        picture(data_url(pictures / "red.png")), stream=True, stream_options={"include_usage": True}
    )
    lines = fetched(server, CHAT, body).split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line[:7] == "data: {"]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    assert text == expected["choices"][0]["message"]["content"]
    assert events[-1]["usage"] == expected["usage"]


def test_the_other_apis_show_it_too(server, expected, pictures):
    """Anthropic's and Responses, in their words."""
    text = expected["choices"][0]["message"]["content"]
    data = base64.b64encode((pictures / "red.png").read_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    said = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    message = json.loads(
        fetched(
            server,
            "/v1/messages",
            {
                "model": "llava",
                "max_tokens": 8,
                "temperature": 0,
                "messages": [{"role": "user", "content": said}],
            },
        )
    )
    assert message["content"][0]["text"] == text
    assert message["usage"]["input_tokens"] == expected["usage"]["prompt_tokens"]
    said = [
        {"type": "input_image", "image_url": data_url(pictures / "red.png")},
        {"type": "input_text", "text": "What is it?"},
    ]
    response = json.loads(
        fetched(
            server,
            "/v1/responses",
            {
                "max_output_tokens": 8,
                "temperature": 0,
                "input": [{"role": "user", "content": said}],
            },
        )
    )
    assert response["output"][0]["content"][0]["text"] == text
    assert response["usage"]["input_tokens"] == expected["usage"]["prompt_tokens"]


async def test_grpc_takes_their_addresses(server, expected, pictures):
    """Beside token ids with one anchor each."""
    ids = expected["prompt_token_ids"]
    first = ids.index(IMAGE_TOKEN_ID)
    anchored = [*ids[:first], *ids[first + NUM_PATCHES - 1 :]]
    message = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=anchored),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True),
        media_refs=pb.MediaRefs(
            items=[pb.MediaRef(modality=common_pb2.IMAGE, url=data_url(pictures / "red.png"))]
        ),
    )
    async with grpc.aio.insecure_channel(server.address) as channel:
        replies = [reply async for reply in VllmEngineStub(channel).Generate(message)]
        assert list(replies[-1].complete.output_ids) == tokens(expected)
        assert replies[-1].complete.prompt_tokens == len(ids)
        del message.media_refs.items[0]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(VllmEngineStub(channel).Generate(message).__aiter__())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def pixels(checkpoint, pictures):
    """What the model's own processor makes of the picture, as float32."""
    from PIL import Image
    from transformers import CLIPImageProcessor

    processor = CLIPImageProcessor.from_pretrained(checkpoint)
    with Image.open(pictures / "red.png") as image:
        return processor(image, return_tensors="np")["pixel_values"].astype("float32")


def batch(pixels, ids, **changes) -> pb.MultimodalInputs:
    """One picture, at all its tokens."""
    fields = {
        "pixel_values": pb.TensorData(shape=pixels.shape, dtype="float32", inline=pixels.tobytes()),
        "im_token_id": IMAGE_TOKEN_ID,
        "mm_placeholders": [
            pb.PlaceholderRange(offset=ids.index(IMAGE_TOKEN_ID), length=NUM_PATCHES)
        ],
        "mm_hashes": ["red"],
        "batched_keys": ["pixel_values"],
    }
    return pb.MultimodalInputs(**{**fields, **changes})


def generation(ids, inputs) -> pb.GenerateRequest:
    """The request whose prompt is all there."""
    return pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=ids),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True),
        mm_inputs=inputs,
    )


@pytest.mark.parametrize("engine", [VLLM], indirect=True)
async def test_grpc_takes_tensors(server, expected, pixels):
    """The same tokens, in each layout that says the same; other numbers have other tokens."""
    ids = expected["prompt_token_ids"]
    sizes = pb.TensorData(shape=[1], dtype="uint32", inline=b"\1\0\0\0")
    ways = [
        batch(pixels, ids),
        batch(
            pixels,
            ids,
            modality=common_pb2.IMAGE,
            mm_hashes=["b"],
            keep_on_cpu_keys=["pixel_values"],
        ),
        batch(pixels, ids, encoder_input_key="pixel_values", mm_hashes=["c"]),
        batch(pixels, ids, model_specific_tensors={"patches_per_image": sizes}, mm_hashes=["d"]),
        batch(pixels * 0, ids, mm_hashes=["e"]),
    ]
    ways[2].ClearField("im_token_id")
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = VllmEngineStub(channel)
        answers = [[r async for r in stub.Generate(generation(ids, way))][-1] for way in ways]
    *same, other = [list(answer.complete.output_ids) for answer in answers]
    assert same == [tokens(expected)] * 4
    assert other != tokens(expected)
    assert {answer.complete.prompt_tokens for answer in answers} == {len(ids)}


@pytest.mark.parametrize("engine", [VLLM], indirect=True)
async def test_tensors_that_the_model_cannot_take_are_refused(server, expected, pixels):
    """By name, and the engine goes on."""
    ids = expected["prompt_token_ids"]
    first = ids.index(IMAGE_TOKEN_ID)
    place = pb.PlaceholderRange(offset=first, length=NUM_PATCHES - 1)
    sizes = pb.TensorData(shape=[1], dtype="uint32", inline=b"\1\0\0\0")
    flat = {"batched_keys": [], "flat_keys": {"pixel_values": "n"}}
    wrong = {
        "shape [3, 32, 32]": batch(pixels[:, :, :16], ids),
        "this model takes pixel_values": batch(pixels, ids, encoder_input_key="patches"),
        "the encoder has no such input": batch(
            pixels, ids, model_specific_tensors={"image_embeds": sizes}
        ),
        "got [1, 3, 32, 32]": batch(pixels, ids, model_specific_tensors={"n": sizes}, **flat),
        "one for each image": batch(pixels, ids, mm_placeholders=[place]),
        "there is no 7": batch(pixels, ids, im_token_id=7),
        "1 rows": batch(pixels.repeat(2, 0), ids),
    }
    shorter = [*ids[:first], 5, *ids[first + 1 :]]
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = VllmEngineStub(channel)
        for words, inputs in wrong.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(stub.Generate(generation(ids, inputs)).__aiter__())
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert words in caught.value.details()
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # one token of these is a word
            await anext(stub.Generate(generation(shorter, batch(pixels, ids))).__aiter__())
        assert f"takes {NUM_PATCHES} tokens" in caught.value.details()
        replies = [r async for r in stub.Generate(generation(ids, batch(pixels, ids)))]
    assert list(replies[-1].complete.output_ids) == tokens(expected)


def bomb() -> str:
    """A picture of 400 megapixels in half a megabyte."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (lambda: picture("http://example.com/a.png"), "is not among the hosts"),
        (lambda: picture("file:///etc/hostname"), "is no file below the directory"),
        (lambda: picture("data:image/png;base64,AAAA"), "not a picture in one of the formats"),
        (lambda: picture(bomb()), "pixels"),
        (lambda: {"type": "image_url", "uuid": "never seen"}, "image"),
        (lambda: {"type": "text", "text": "<image>"}, "one for each image"),
        (
            lambda: {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "audio: this model takes none",
        ),
    ],
    ids=["host", "file", "bytes", "bomb", "uuid", "anchor", "audio"],
)
def test_what_cannot_be_shown_is_refused(server, part, words):
    """As any wrong field is, with the reason."""
    code, error = refused(server, CHAT, asking(part()))
    assert (code, error["type"]) == (400, "invalid_request_error")
    assert error["param"] in ("messages", "prompt")
    assert words in error["message"]


def test_no_more_are_taken_than_the_server_allows(server, pictures):
    """By vLLM's own flag."""
    one = picture(data_url(pictures / "red.png"))
    assert answered(server, one, one)["usage"]["completion_tokens"] == 8
    code, error = refused(server, CHAT, asking(one, one, one))
    assert code == 400
    assert "at most 2 may be given" in error["message"]


def test_answers_of_one_picture_are_several(server, expected, pictures):
    """Decoded once."""
    answer = answered(server, picture(data_url(pictures / "red.png")), n=2)
    assert [choice["token_ids"] for choice in answer["choices"]] == [tokens(expected)] * 2
