"""How far logits are from those of transformers in float32: `python benchmarks/numerics.py`.

Relative L2 error of all logits of one prompt, in the shapes of the peers, with their random weights. The
last two columns are transformers in float32 with linear layers rounded as int8 is here, on paper only: what
the format itself costs, of the weights and of weights and activations.
"""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers.checkpoints import SHAPES, Shape, write_checkpoint
from benchmarks.peers.environments import ROOT
from benchmarks.steps.timing import Shape as StepShape
from benchmarks.steps.timing import fill_pool, make_batch
from weft.compute.backends import BACKENDS, choose
from weft.compute.protocols.runner import Batch
from weft.core.config.engine_options import EngineOptions
from weft.model.open import find_model

NUM_TOKENS = 96
Logits = NDArray[np.float32]
COLUMNS = (
    "transformers bfloat16",
    "weft bfloat16",
    "weft int8",
    "weights alone rounded",
    "weights and activations rounded",
)


def errors(shape: Shape) -> Iterator[float]:
    """By `COLUMNS`."""
    path = write_checkpoint(shape, ROOT / shape.name)
    step = StepShape("prompt", 1, NUM_TOKENS, NUM_TOKENS)
    batch = replace(make_batch(step, shape.vocab), logit_rows=np.arange(NUM_TOKENS, dtype=np.int32))
    ids = torch.from_numpy(batch.token_ids.astype(np.int64))[None]
    expected = _logits(_open(path, torch.float32), ids)

    def error(logits: Logits) -> float:
        return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))

    yield error(_logits(_open(path, torch.bfloat16), ids))
    for quantization in (None, "int8"):
        yield error(_weft(path, batch, step.num_blocks, quantization))
    model = _open(path, torch.float32)
    _round_weights(model)
    yield error(_logits(model, ids))
    _round_activations(model)
    yield error(_logits(model, ids))


def _weft(
    path: Path, batch: Batch, num_blocks: int, quantization: Literal["int8"] | None
) -> Logits:
    checkpoint = find_model(str(path))
    options = EngineOptions(compute="native", quantization=quantization)
    compute = choose(options, checkpoint.card)
    runner = BACKENDS["native"].load(checkpoint, compute, max_model_len=512)
    fill_pool(runner, num_blocks)
    logits: Logits = runner.forward(batch)
    return logits


def _open(path: Path, dtype: torch.dtype) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype)


def _logits(model: Any, ids: torch.Tensor) -> Logits:
    with torch.no_grad():
        logits: Logits = model(ids).logits[0].float().numpy()
    return logits


def _round_weights(model: Any) -> None:
    # The head's own: it is tied to the embedding, which is looked up as it is.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    for linear in _linears(model):
        linear.weight.data = _rounded(linear.weight.data)


def _round_activations(model: Any) -> None:
    for linear in _linears(model):
        linear.register_forward_pre_hook(lambda _, inputs: (_rounded(inputs[0]),))


def _linears(model: Any) -> list[torch.nn.Linear]:
    return [module for module in model.modules() if isinstance(module, torch.nn.Linear)]


def _rounded(rows: torch.Tensor) -> torch.Tensor:
    """To 8 bits, each row by its largest magnitude."""
    scale = rows.abs().amax(-1, keepdim=True) / 127
    return torch.round(rows / scale) * scale


def main() -> None:
    """One row a shape."""
    warnings.filterwarnings("ignore")
    print("| shape | " + " | ".join(COLUMNS) + " |\n|---" + "|---" * len(COLUMNS) + "|")
    for shape in SHAPES:
        print(
            f"| {shape.name} | " + " | ".join(f"{one:.4f}" for one in errors(shape)) + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
