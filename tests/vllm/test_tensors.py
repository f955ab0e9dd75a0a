"""Media as tensors beside vLLM's own gRPC server: of each message both make the same input. No engine is needed."""

import struct
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest

from tests.doubles.fake_engine import make_config
from weft.core.checks.media_tensors import check_tensors
from weft.core.checks.validate import Limits
from weft.core.values.media import MediaConfig
from weft.pb import common_pb2, vllm_engine_pb2_grpc
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.request import to_generation
from weft.vllm.convert.tensors import ItemForm
from weft.vllm.engine import to_multi_modal_input

pytestmark = pytest.mark.vllm

MEDIA = MediaConfig(max_items={"image": 2, "video": 1})
IDS = [1, 9, 9, 8, 2, 9, 3, 7, 7, 4]
FLOATS = struct.pack("<24f", *(i / 7 for i in range(24)))


def tensor(dtype: str, shape, data: bytes) -> pb.TensorData:
    return pb.TensorData(dtype=dtype, shape=shape, inline=data)


def images(**changes) -> pb.MultimodalInputs:
    """Two, the first of them with another token among its own."""
    fields = {
        "pixel_values": tensor("float32", [2, 3, 4], FLOATS),
        "model_specific_tensors": {
            "half": tensor("bfloat16", [2], FLOATS[:4]),
            "raw": tensor("uint8", [2, 2], b"\1\2\3\4"),
            "ids": tensor("uint32", [2], FLOATS[:8]),
            "scale": tensor("float16", [1], b"\0\x3c"),
        },
        "mm_placeholders": [
            pb.PlaceholderRange(offset=1, length=3),
            pb.PlaceholderRange(offset=5, length=1),
        ],
        "mm_hashes": ["a", "b"],
        "batched_keys": ["pixel_values", "half", "raw", "ids", "absent"],
        "keep_on_cpu_keys": ["raw"],
        "im_token_id": 9,
    }
    return pb.MultimodalInputs(**{**fields, **changes})


def rows(*sizes: int) -> pb.TensorData:
    return tensor("int64", [len(sizes), 1], struct.pack(f"<{len(sizes)}q", *sizes))


VIDEO = pb.MultimodalInputs(
    modality=common_pb2.VIDEO,
    pixel_values=tensor("float32", [6, 4], FLOATS),
    model_specific_tensors={"video_rows": rows(6)},
    mm_placeholders=[pb.PlaceholderRange(offset=7, length=2)],
    mm_hashes=["c"],
    batched_keys=["video_rows"],
    flat_keys={"pixel_values": "video_rows"},
)
FLAT = images(
    pixel_values=tensor("float32", [6, 4], FLOATS),
    model_specific_tensors={"rows": rows(4, 2)},
    batched_keys=["rows"],
    flat_keys={"pixel_values": "rows"},
    encoder_input_key="pixel_values",
)


def ours(message: pb.GenerateRequest, dtype):
    """What we give to the engine."""
    prompt = to_generation(message, Limits.of(make_config()), MEDIA).prompt()
    check_tensors(prompt.media.tensors)
    request = SimpleNamespace(
        prompt_token_ids=prompt.parts[0].token_ids, media=prompt.media, prompt=None, cache_salt=None
    )
    model = SimpleNamespace(model_config=SimpleNamespace(dtype=dtype))
    forms = dict.fromkeys(MEDIA.max_items, ItemForm({}, None))
    return to_multi_modal_input(SimpleNamespace(vllm_config=model), request, forms)


@pytest.fixture(scope="module")
def servicer_of():
    """vLLM's own server, with our classes of the messages: a process has room for one of each name."""
    package, generated = ModuleType("smg_grpc_proto"), ModuleType("smg_grpc_proto.generated")
    generated.common_pb2 = package.common_pb2 = common_pb2
    generated.vllm_engine_pb2 = package.vllm_engine_pb2 = pb
    generated.vllm_engine_pb2_grpc = package.vllm_engine_pb2_grpc = vllm_engine_pb2_grpc
    package.generated = generated
    with pytest.MonkeyPatch.context() as patch:
        for module in (package, generated):
            patch.setitem(sys.modules, module.__name__, module)
        there = import_module("smg_grpc_servicer.vllm.servicer")
    return there.VllmEngineServicer


def theirs(servicer_of, message: pb.GenerateRequest, dtype):
    """What vLLM's own server gives to it."""
    servicer = servicer_of.__new__(servicer_of)
    servicer.engine = SimpleNamespace(model_config=SimpleNamespace(dtype=dtype))
    batches = [message.mm_inputs, *message.extra_mm_inputs]
    return servicer._build_preprocessed_mm_inputs(message.tokenized, batches)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "batches",
    [[images()], [VIDEO], [FLAT], [images(), VIDEO]],
    ids=["batched", "video", "flat", "both"],
)
def test_the_engine_is_given_the_same(servicer_of, batches: list[pb.MultimodalInputs], dtype: str):
    """Numbers, dtypes, layouts and places of every item; hashes with our prefix."""
    import torch

    message = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=IDS),
        mm_inputs=batches[0],
        extra_mm_inputs=batches[1:],
    )
    given = ours(message, getattr(torch, dtype))
    expected = theirs(servicer_of, message, getattr(torch, dtype))
    assert given.keys() == expected.keys()
    for name in ("type", "prompt_token_ids", "mm_placeholders"):
        assert given[name] == expected[name]
    assert given["mm_hashes"] == {
        modality: [f"tensors:{one}" for one in hashes]
        for modality, hashes in expected["mm_hashes"].items()
    }
    assert given["mm_kwargs"].keys() == expected["mm_kwargs"].keys()
    for modality, items in expected["mm_kwargs"].items():
        for one, other in zip(given["mm_kwargs"][modality], items, strict=True):
            assert one.keys() == other.keys()
            for name, element in other.items():
                assert one[name] == element, name
                assert one[name].data.dtype == element.data.dtype
