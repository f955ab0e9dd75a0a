"""A model whose numbers overflow fails the requests that meet them, with the reason, and no other."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import GenerationError
from weft.core.values.types import OutputKind, SamplingParams, StructuredOutputsParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.start.fit import fit
from weft.model.open import open_model

HUGE = 3e38  # a number, of which the square is none
REASON = "the model produced logits that are not numbers"
BAD, GOOD = [5, 7, 9], [10, 11, 12]
GREEDY = SamplingParams(
    temperature=0.0, max_tokens=4, ignore_eos=True, output_kind=OutputKind.FINAL_ONLY
)
RUNNERS = {
    "reference": {"compute": "reference"},
    "native": {"compute": "native"},
    "native bfloat16": {"compute": "native", "dtype": "bfloat16"},
    "reference int8": {"compute": "reference", "quantization": "int8", "kv_cache_dtype": "int8"},
    "native int8": {"compute": "native", "quantization": "int8", "kv_cache_dtype": "int8"},
}
WAYS = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 1, "top_k": 5},
    "logprobs": {"logprobs": 2},
    "prompt logprobs": {"prompt_logprobs": 1},
    "allowed tokens": {"allowed_token_ids": [65, 66]},
    "penalty": {"repetition_penalty": 1.5},
    "grammar": {"structured_outputs": StructuredOutputsParams(regex="[a-z]+")},
    "several": {"n": 2, "temperature": 1.0, "seed": 1},
}


def plain_tensors() -> dict[str, NDArray[np.float32]]:
    """Small numbers, and norms that leave them as they are."""
    tensors = tensors_of(CONFIG)
    return {
        name: np.ones_like(tensor) if name.endswith("norm.weight") else tensor
        for name, tensor in tensors.items()
    }


def overflowing_at(directory: Path, token_id: int) -> Path:
    """A checkpoint where the values of one token are beyond float32: the others have no part in them."""
    tensors = plain_tensors()
    for name, tensor in tensors.items():
        if name.endswith("embed_tokens.weight"):
            tensor[:, 0] = 0
            tensor[token_id, 0] = 1
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[0] = 0
        if name.endswith("v_proj.weight"):
            tensor[:, 0] = HUGE
    return write_checkpoint(directory, tensors=tensors)


def overflowing_in(directory: Path, name: str) -> Path:
    """A checkpoint with huge numbers all over a tensor."""
    tensors = plain_tensors()
    found = next(tensor for key, tensor in tensors.items() if key.endswith(name))
    found[...] = HUGE
    return write_checkpoint(directory, tensors=tensors)


async def answers(
    directory: Path, prompts: list[list[int]], params: SamplingParams, **options: str
) -> list[object]:
    """What comes of the prompts, asked at once: token ids, or an error."""
    settings = EngineOptions(model=str(directory), num_gpu_blocks_override=64, **options)
    checkpoint = open_model(settings.model, dtype=settings.dtype)
    fitted = fit(checkpoint, settings)
    client = await LocalClient.start(fitted.checkpoint, fitted.config)

    async def answer(prompt: list[int]) -> list[int]:
        outputs = client.generate({"prompt_token_ids": prompt}, params, str(prompt))
        return [token_id async for output in outputs for token_id in output.outputs[0].token_ids]

    try:
        return await asyncio.gather(*map(answer, prompts), return_exceptions=True)
    finally:
        client.shutdown()
        await client.wait_closed()


@pytest.mark.parametrize("runner", RUNNERS)
async def test_a_token_that_overflows_fails_who_uses_it(tmp_path: Path, runner: str):
    """Its neighbour in the step gets what it gets without it."""
    spoilt = overflowing_at(tmp_path / "m", BAD[1])
    (alone,) = await answers(spoilt, [GOOD], GREEDY, **RUNNERS[runner])
    bad, good = await answers(spoilt, [BAD, GOOD], GREEDY, **RUNNERS[runner])
    assert isinstance(bad, GenerationError)
    assert str(bad) == REASON
    assert good == alone
    assert len(good) == 4


@pytest.mark.parametrize("runner", ["reference", "native"])
@pytest.mark.parametrize("way", WAYS)
async def test_whatever_is_requested_ends_with_the_reason(tmp_path: Path, runner: str, way: str):
    """Every way to choose and to score sees that there is nothing to choose from."""
    spoilt = overflowing_at(tmp_path / "m", BAD[1])
    params = msgspec.structs.replace(GREEDY, **WAYS[way])
    bad, good = await answers(spoilt, [BAD, GOOD], params, **RUNNERS[runner])
    assert str(bad) == REASON
    assert isinstance(good, list)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    "name",
    ["q_proj.weight", "v_proj.weight", "gate_proj.weight",
     "lm_head.weight"],
)  # fmt: skip
async def test_wherever_it_overflows_nobody_is_answered_with_noise(
    tmp_path: Path, runner: str, name: str
):
    """In every tensor that all tokens go through."""
    spoilt = overflowing_in(tmp_path / "m", name)
    both = await answers(spoilt, [BAD, GOOD], GREEDY, **RUNNERS[runner])
    assert [str(each) for each in both] == [REASON] * 2
