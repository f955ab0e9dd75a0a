"""transformers' continuous batching as one of the engines, with a manager that stays."""

import os
import sys
import time
from typing import Any

import torch
import transformers
from protocol import claim_stdout, report, serve
from transformers.generation import ContinuousBatchingConfig

# All that the workloads need at once, as Weft's pool; left to itself it takes nine tenths of all memory.
KV_TOKENS = 20480
PAGE_SIZE = 256
BATCH_TOKENS = 512


def main() -> None:
    """Load, then answer."""
    pipe = claim_stdout()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
    manager = model.init_continuous_batching(
        transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        ContinuousBatchingConfig(
            page_size=PAGE_SIZE, num_blocks=KV_TOKENS // PAGE_SIZE, max_batch_tokens=BATCH_TOKENS
        ),
    )
    manager.start()

    def answer(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        started = time.perf_counter()
        for prompt in prompts:
            manager.add_request(prompt, max_new_tokens=max_tokens, streaming=True)
        firsts: dict[str, float] = {}
        num_tokens, num_open = 0, len(prompts)
        while num_open:
            output = manager.get_result(timeout=1.0)
            if output is None:
                if not manager.is_running():
                    raise RuntimeError("the manager has stopped")
                continue
            if output.error is not None:
                raise RuntimeError(output.error)
            firsts.setdefault(output.request_id, time.perf_counter() - started)
            if output.is_finished():
                num_tokens += len(output.generated_tokens)
                num_open -= 1
        return report(started, list(firsts.values()), num_tokens)

    try:
        serve(pipe, answer, "transformers continuous batching", transformers.__version__)
    finally:
        manager.stop(block=True)


if __name__ == "__main__":
    main()
