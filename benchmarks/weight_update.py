"""Times an update of a model's weights while it serves, beside a start and a copy of as many bytes.

    python -m benchmarks.weight_update [qwen3-0.6b | smollm2-135m]

The checkpoint is made where it is not there yet, of random numbers. The sender is this process, the engine
another one, as behind a server; what is timed is what the sender waits for.
"""

import json
import mmap
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.checkpoints import checkpoint
from benchmarks.steps.timing import timed
from weft import LLM
from weft.core.values.prompts import TokensPrompt
from weft.core.values.types import SamplingParams
from weft.model.files.safetensors_files import StoredTensor, find_tensors

SEGMENT = Path("/dev/shm/weft-benchmark")  # noqa: S108 - shared memory is what is timed
REPEATS = 3
PROMPT: TokensPrompt = {"prompt_token_ids": list(range(100, 612))}
PARAMS = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def put(tensors: dict[str, StoredTensor]) -> dict[str, Any]:
    """The tensors in a segment, and what is said of them."""
    with SEGMENT.open("wb") as segment:
        for tensor in tensors.values():
            with (
                tensor.path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            ):
                segment.write(mapped[tensor.offset : tensor.offset + tensor.num_bytes])
    return {
        "segment": SEGMENT.name,
        "names": list(tensors),
        "dtype_names": [tensor.dtype for tensor in tensors.values()],
        "shapes": [list(tensor.shape) for tensor in tensors.values()],
    }


def update(llm: LLM, info: dict[str, Any]) -> tuple[float, float]:
    """Seconds to send all, and seconds until it is served."""
    llm.start_weight_update()
    return timed(lambda: llm.update_weights(info)), timed(llm.finish_weight_update)


def engine(model: Path, transfer: dict[str, Any]) -> LLM:
    """One that takes weights so."""
    return LLM(str(model), max_model_len=2048, weight_transfer_config=transfer)


def main() -> None:
    """One line of JSON for each backend."""
    name = sys.argv[1] if len(sys.argv) > 1 else "qwen3-0.6b"
    model = checkpoint(name)
    tensors = find_tensors(model)
    size = sum(tensor.num_bytes for tensor in tensors.values())
    source = np.zeros(size, np.uint8)
    copy = min(timed(source.copy) for _ in range(REPEATS))
    del source
    shared = put(tensors)
    try:
        for transfer, info in (
            ({"backend": "shared_memory"}, shared),
            (
                {"backend": "safetensors", "directory": str(model.resolve().parents[1])},
                {"path": str((model / "model.safetensors").resolve())},
            ),
        ):
            start = time.perf_counter()
            with engine(model, transfer) as llm:
                started = time.perf_counter() - start
                llm.init_weight_transfer_engine()
                runs = [update(llm, info) for _ in range(REPEATS)]
                llm.generate([PROMPT], PARAMS, use_tqdm=False)
            sent, served = min(runs)
            figures = {"send_s": sent, "finish_s": served, "start_s": started, "memcpy_s": copy}
            rounded = {key: round(value, 3) for key, value in figures.items()}
            print(json.dumps({"model": name, "bytes": size, **transfer, **rounded}), flush=True)
    finally:
        SEGMENT.unlink()


if __name__ == "__main__":
    main()
