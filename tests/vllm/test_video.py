"""Videos through our servers to vLLM's engine, beside pictures of the same model: every way in, and what is refused."""

import base64
import json

import grpc
import pytest

from tests.vllm.llava import vision_path
from tests.vllm.onevision import FRAME_TOKENS, IMAGE_TOKEN_ID, SIDE, VIDEO_TOKEN_ID, write_onevision
from tests.vllm.served import fetched, refused, serving
from weft.core.errors import BadRequest
from weft.core.values.media import Media, MediaItem
from weft.media.limits import MediaLimits, MediaSources
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.vllm.media import MediaReader

pytestmark = pytest.mark.vllm

ASKED = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
CHAT = "/v1/chat/completions"
NUM_FRAMES = 6  # of the files
TAKEN = 4  # of these, by the server's flag


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """A directory with two, MP4, and a picture."""
    import cv2  # there is none where these tests do not run
    import numpy as np

    directory = tmp_path_factory.mktemp("videos")
    for name, color in (("red.mp4", (30, 60, 200)), ("blue.mp4", (250, 20, 10))):
        writer = cv2.VideoWriter(
            str(directory / name), cv2.VideoWriter_fourcc(*"mp4v"), 4, (64, 48)
        )
        for i in range(NUM_FRAMES):
            frame = np.full((48, 64, 3), color, np.uint8)
            frame[:, : 8 * (i + 1)] //= 2
            writer.write(frame)
        writer.release()
    cv2.imwrite(str(directory / "one.png"), frame)
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory, videos):
    """A tiny LLaVA-OneVision, which reads files of that directory."""
    checkpoint = write_onevision(tmp_path_factory.mktemp("vllm") / "onevision")
    flags = (
        "--allowed-local-media-path", str(videos), "-c", "1024", "--served-model-name", "onevision",
        "--limit-mm-per-prompt", '{"image": 2, "video": 2}',
        "--media-io-kwargs", json.dumps({"video": {"num_frames": TAKEN}}),
    )  # fmt: skip
    with serving(checkpoint, *flags, PYTHONPATH=vision_path()) as started:
        yield started


def data_url(path, kind="video/mp4") -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def video(url, **fields):
    return {"type": "video_url", "video_url": {"url": url}, **fields}


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
def expected(server, videos):
    """The answer to a video that comes in the body."""
    return answered(server, video(data_url(videos / "red.mp4")))


def test_a_video_is_seen(server, expected, videos):
    """Some tokens a frame and one for its end, which usage counts; another video has another answer."""
    num_tokens = TAKEN * FRAME_TOKENS + 1
    blind = answered(server)
    assert expected["prompt_token_ids"].count(VIDEO_TOKEN_ID) == num_tokens
    assert expected["usage"]["prompt_tokens"] == blind["usage"]["prompt_tokens"] + num_tokens
    other = answered(server, video(data_url(videos / "blue.mp4")))
    assert len({tuple(tokens(one)) for one in (blind, expected, other)}) == 3


def test_it_is_the_same_wherever_it_comes_from(server, expected, videos):
    """From a file, and by its uuid once it has been seen."""
    ways = [
        video((videos / "red.mp4").as_uri()),
        video(data_url(videos / "red.mp4"), uuid="red"),
        {"type": "video_url", "video_url": None, "uuid": "red"},
    ]
    assert [tokens(answered(server, way)) for way in ways] == [tokens(expected)] * len(ways)


def test_a_picture_and_a_video_go_together(server, expected, videos):
    """Each at its anchor, in either order, which matters."""
    picture = {
        "type": "image_url",
        "image_url": {"url": data_url(videos / "one.png", "image/png")},
    }
    clip = video(data_url(videos / "red.mp4"))
    first, second = answered(server, picture, clip), answered(server, clip, picture)
    for answer in (first, second):
        ids = answer["prompt_token_ids"]
        assert ids.count(VIDEO_TOKEN_ID) == expected["prompt_token_ids"].count(VIDEO_TOKEN_ID)
        assert ids.count(IMAGE_TOKEN_ID) > 0
    assert first["prompt_token_ids"].index(IMAGE_TOKEN_ID) < first["prompt_token_ids"].index(
        VIDEO_TOKEN_ID
    )
    assert tokens(first) != tokens(second)


def anchored(expected) -> list[int]:
    """The prompt with one token for the video."""
    ids = expected["prompt_token_ids"]
    first = ids.index(VIDEO_TOKEN_ID)
    return [*ids[: first + 1], *ids[first + ids.count(VIDEO_TOKEN_ID) :]]


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


async def test_grpc_takes_its_address(server, expected, videos):
    """Beside token ids with one anchor."""
    ref = pb.MediaRef(modality=common_pb2.VIDEO, url=data_url(videos / "red.mp4"))
    message = generation(anchored(expected), media_refs=pb.MediaRefs(items=[ref]))
    complete = await generated(server, message)
    assert list(complete.output_ids) == tokens(expected)
    assert complete.prompt_tokens == len(expected["prompt_token_ids"])


async def test_grpc_takes_tensors(server, expected):
    """Of any number of frames, each of the model's size; others are refused, and the engine goes on."""
    import numpy as np

    ids = expected["prompt_token_ids"]
    first, num_tokens = ids.index(VIDEO_TOKEN_ID), ids.count(VIDEO_TOKEN_ID)

    def message(pixels, name):
        tensor = pb.TensorData(shape=pixels.shape, dtype="float32", inline=pixels.tobytes())
        return generation(
            ids,
            mm_inputs=pb.MultimodalInputs(
                modality=common_pb2.VIDEO, pixel_values=tensor, im_token_id=VIDEO_TOKEN_ID,
                mm_placeholders=[pb.PlaceholderRange(offset=first, length=num_tokens)],
                mm_hashes=[name], batched_keys=["pixel_values"],
            ),
        )  # fmt: skip

    dark = np.zeros((1, TAKEN, 3, SIDE, SIDE), np.float32)
    light = dark + 1
    answers = [
        list((await generated(server, message(pixels, name))).output_ids)
        for pixels, name in ((dark, "dark"), (light, "light"), (dark, "again"))
    ]
    assert answers[0] == answers[2] != answers[1]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generated(server, message(dark[..., : SIDE // 2], "narrow"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"shape [any, 3, {SIDE}, {SIDE}]" in caught.value.details()
    assert list((await generated(server, message(light, "late"))).output_ids) == answers[1]


def cut(videos) -> str:
    """A file without its end, where an MP4 has its index."""
    data = (videos / "red.mp4").read_bytes()
    return f"data:video/mp4;base64,{base64.b64encode(data[: len(data) // 3]).decode()}"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (cut, "video: Could not open"),
        (
            lambda _: video("data:video/mp4;base64,AAAA")["video_url"]["url"],
            "video: Could not open",
        ),
        (lambda _: "https://example.com/a.mp4", "is not among the hosts"),
        (lambda _: "file:///etc/hostname", "is no file below the directory"),
    ],
    ids=["cut", "bytes", "host", "file"],
)
def test_what_is_no_video_is_refused(server, videos, part, words):
    """As any wrong field is, with the reason."""
    code, error = refused(server, CHAT, asking(video(part(videos))))
    assert (code, error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]


def read(path, limits, **kwargs):
    """What a reader with these limits makes of a prompt with this file twice."""
    reader = MediaReader(MediaSources(limits=limits), {"video": kwargs})
    item = MediaItem(modality="video", data=path.read_bytes())
    return reader.read(Media(items=[item, item]))


@pytest.mark.parametrize("kwargs", [{}, {"video_backend": "opencv_dynamic", "fps": 4}])
async def test_frames_are_counted_before_they_are_decoded(videos, kwargs):
    """Those that the loader takes, of all videos; whichever loader that is."""
    most = MediaLimits(max_pixels=2 * NUM_FRAMES * 64 * 48 // 4)
    made = await read(videos / "red.mp4", most, **kwargs)
    assert [len(one.media[0]) for one in made["multi_modal_data"]["video"]] == [NUM_FRAMES] * 2
    less = MediaLimits(max_pixels=most.max_pixels - 1)
    with pytest.raises(BadRequest, match=f"{less.max_video_pixels} pixels .* 6 of 64 x 48"):
        await read(videos / "red.mp4", less, **kwargs)
    made = await read(videos / "red.mp4", less, **{**kwargs, "num_frames": TAKEN, "fps": 2})
    assert len(made["multi_modal_data"]["video"]) == 2


def test_no_more_are_taken_than_the_server_allows(server, videos):
    """By number, by what the context holds, and none of what the model does not take."""
    one = video(data_url(videos / "red.mp4"))
    code, error = refused(server, CHAT, asking(one, one, one))
    assert (code, "video: at most 2 may be given" in error["message"]) == (400, True)
    code, error = refused(server, CHAT, asking(one, one, max_tokens=1000))
    assert code == 400
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    code, error = refused(server, CHAT, asking(sound))
    assert (code, "audio: this model takes none" in error["message"]) == (400, True)
