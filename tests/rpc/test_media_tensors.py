"""Media as tensors on the wire: what they become, and that what is none is refused before it is copied."""

import pytest

from tests.doubles.fake_engine import make_config
from tests.rpc.calls import PROMPT, request
from weft.core.checks.validate import Limits
from weft.core.errors import BadRequest, Unsupported
from weft.core.values.media import MAX_BYTES, Media, MediaConfig, MediaTensors, Tensor
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.request import to_generation
from weft.rpc.options import RpcOptions
from weft.rpc.server import _to_channel_args

LIMITS = Limits.of(make_config())
CONFIG = MediaConfig(max_items={"image": 2, "video": 1, "audio": 1})
DATA = bytes(24)


def tensor(shape=(1, 3, 2), dtype="float32", **payload) -> pb.TensorData:
    return pb.TensorData(shape=shape, dtype=dtype, **(payload or {"inline": DATA}))


def batch(**changes) -> pb.MultimodalInputs:
    """One picture at the second token."""
    fields = {
        "pixel_values": tensor(),
        "mm_placeholders": [pb.PlaceholderRange(offset=1, length=1)],
        "mm_hashes": ["a"],
        "batched_keys": ["pixel_values"],
    }
    return pb.MultimodalInputs(**{**fields, **changes})


def converted(*batches: pb.MultimodalInputs, **fields) -> Media | None:
    """What becomes of a request with these."""
    first, *others = batches
    message = request(mm_inputs=first, extra_mm_inputs=others, **fields)
    return to_generation(message, LIMITS, CONFIG).prompt().media


def test_every_field_is_carried():
    """Names are those of the model; an image is what is not said to be another thing."""
    media = converted(
        batch(
            model_specific_tensors={"n": tensor((1,), "int64", inline=bytes(8))},
            im_token_id=11,
            batched_keys=["n"],
            flat_keys={"pixel_values": "n"},
            keep_on_cpu_keys=["n"],
        )
    )
    assert media == Media(
        tensors=[
            MediaTensors(
                modality="image",
                tensors={
                    "pixel_values": Tensor(dtype="float32", shape=(1, 3, 2), data=DATA),
                    "n": Tensor(dtype="int64", shape=(1,), data=bytes(8)),
                },
                placeholders=[(1, 1)],
                hashes=["a"],
                embed_token_id=11,
                batched=frozenset({"n"}),
                flat={"pixel_values": "n"},
                on_cpu=frozenset({"n"}),
            )
        ]
    )


def test_each_modality_has_its_own():
    """Pixels of videos have a name of their own, wherever they are named; a model may have another for any."""
    video = batch(modality=common_pb2.VIDEO, keep_on_cpu_keys=["pixel_values"])
    audio = batch(modality=common_pb2.AUDIO, encoder_input_key="input_audio")
    given = converted(batch(modality=common_pb2.IMAGE), video, audio).tensors
    assert [one.modality for one in given] == ["image", "video", "audio"]
    assert [list(one.tensors) for one in given] == [
        ["pixel_values"],
        ["pixel_values_videos"],
        ["input_audio"],
    ]
    assert given[1].batched == given[1].on_cpu == {"pixel_values_videos"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (batch(pixel_values=tensor(dtype="float64")), "dtype must be one of"),
        (batch(pixel_values=tensor((1, 0))), "at least 1"),
        (batch(pixel_values=tensor([1] * 9)), "must have at most 8 sizes, got 9"),
        (batch(pixel_values=tensor([2**32 - 1] * 8)), f"may have {MAX_BYTES} bytes together"),
        (batch(pixel_values=tensor([MAX_BYTES // 4]), model_specific_tensors={"n": tensor()}),
         f"got {MAX_BYTES + 24}"),
        (batch(modality=9), "modality must be"),
        (batch(encoder_input_key="n", model_specific_tensors={"n": tensor()}), "duplicate key n"),
    ],
    ids=["dtype", "empty", "sizes", "bytes", "together", "modality", "twice"],
)  # fmt: skip
def test_what_is_no_tensor_is_refused(given: pb.MultimodalInputs, words: str):
    """By name, whatever it claims to be as large as."""
    with pytest.raises(BadRequest, match=words) as caught:
        converted(given)
    assert caught.value.parameter == "mm_inputs"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (batch(pixel_values=tensor(shm=common_pb2.ShmHandle(name="x"))), "shm is not supported"),
        (batch(pixel_values=tensor(remote=common_pb2.RemoteTensorHandle())), "remote is not"),
        (pb.MultimodalInputs(mm_hashes=["a"]), "without pixel_values"),
    ],
    ids=["shm", "remote", "hashes"],
)
def test_what_this_server_does_not_read_is_unsupported(given: pb.MultimodalInputs, words: str):
    """Memory that is not the message's, and a prompt whose media another server has seen."""
    with pytest.raises(Unsupported, match=words):
        converted(given)


def test_placeholders_need_tokens():
    """They count those of the prompt that came."""
    with pytest.raises(BadRequest, match="needs tokenized"):
        converted(batch(), text="a")


@pytest.mark.parametrize("name", ["mm_inputs", "extra_mm_inputs"])
def test_a_model_of_texts_refuses_them(name: str):
    """Either of them, unread."""
    fields = {"mm_inputs": batch()} if name == "mm_inputs" else {name: [batch()]}
    with pytest.raises(BadRequest, match="reads text only") as caught:
        to_generation(request(**fields), LIMITS)
    assert caught.value.parameter == name


def test_messages_with_media_have_room():
    """Only where the model takes some."""
    config = make_config().model_config
    sizes = []
    for media in (None, CONFIG):
        model = type(config)(
            **{name: getattr(config, name) for name in config.__struct_fields__} | {"media": media}
        )
        sizes.append(dict(_to_channel_args(RpcOptions(), model))["grpc.max_receive_message_length"])
    assert sizes[1] == sizes[0] + MAX_BYTES


def test_prompts_have_their_ids_beside_them():
    """As they came: the tokens of media are among them."""
    message = request(mm_inputs=batch())
    (part,) = to_generation(message, LIMITS, CONFIG).prompt().parts
    assert part.token_ids == PROMPT
