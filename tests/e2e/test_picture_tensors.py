"""Pictures as the tensors of a model's processor, over gRPC, to our own engine."""

import numpy as np
import pytest

from tests.doubles.pictures import noise
from tests.e2e.test_pictures import (
    CHATS,
    END,
    IMAGE,
    START,
    TEMPLATE,
    chat,
    image,
    save_with,
    theirs,
)
from tests.web.openai.calls import CHAT, answer
from tests.web.serving import serving
from weft.core.values.types import RequestOptions
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.request import to_generation


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A Qwen2.5-VL of random numbers."""
    return save_with("qwen2_5_vl", theirs(4), tmp_path_factory.mktemp("qwen2_5_vl"))[1]


def tensor(values: np.ndarray, dtype: str) -> pb.TensorData:
    """An array on the wire."""
    return pb.TensorData(dtype=dtype, shape=values.shape, inline=values.tobytes())


def message(before: list[int], *seeds: int) -> pb.GenerateRequest:
    """A prompt of a text and pictures, as a gateway with the model's processor sends it."""
    made = theirs(4)([noise(seed) for seed in seeds], return_tensors="np")
    grids, patches = made["image_grid_thw"], made["pixel_values"]
    ids, places = list(before), []
    for grid in grids.tolist():
        ids.append(START)
        places.append(pb.PlaceholderRange(offset=len(ids), length=grid[1] * grid[2] // 4))
        ids += [*[IMAGE] * (grid[1] * grid[2] // 4), END]
    inputs = {
        "pixel_values": tensor(patches.astype(np.float32), "float32"),
        "model_specific_tensors": {
            "image_grid_thw": tensor(grids.astype(np.int64), "int64"),
            "patches_per_image": tensor(grids.prod(axis=1).astype(np.int64), "int64"),
        },
        "mm_placeholders": places,
        "mm_hashes": [f"hash {seed}" for seed in seeds],
        "batched_keys": ["image_grid_thw"],
        "flat_keys": {"pixel_values": "patches_per_image"},
        "im_token_id": IMAGE,
    }
    return pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=ids),
        mm_inputs=pb.MultimodalInputs(**inputs),
        sampling_params=pb.SamplingParams(temperature=0.0, max_tokens=8),
    )


async def run(served, given: pb.GenerateRequest) -> list[int]:
    """The tokens of the answer."""
    client = served.client
    call = to_generation(given, client.info.limits, client.model_config.media)
    request = await client.prepare(call.prompt, call.params, RequestOptions(request_id="g"))
    return [t async for out in client.run(request) for t in out.outputs[0].token_ids]


async def test_tensors_are_answered_as_files_are(saved):
    """One picture and two; the same tensors again are found in the cache."""
    async with serving(saved, template=TEMPLATE, **CHATS) as served:
        before = served.tokenizer.encode("What is it? ", add_special_tokens=False)
        for seeds in ((1,), (1, 2)):
            body = await answer(served, CHAT, chat(*(image(seed) for seed in seeds)))
            for _ in range(2):
                text = served.tokenizer.decode(await run(served, message(before, *seeds)))
                assert text == body["choices"][0]["message"]["content"]
