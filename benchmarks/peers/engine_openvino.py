"""OpenVINO GenAI as one of the engines: its pipeline with continuous batches, with a prefix cache."""

import itertools
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai
from protocol import claim_stdout, report, serve

CACHE_GIB = 4
STEP_TOKENS = 2048  # of all prompts in a step; its default of 256 makes whole batches slower


class OpenVino:
    """One pipeline on the CPU; what products are computed in is its own choice."""

    def __init__(self, path: str) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = STEP_TOKENS
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU")
        self._ids = itertools.count()

    def run(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Greedy, all prompts at once."""
        options = openvino_genai.GenerationConfig(
            max_new_tokens=max_tokens, ignore_eos=True, do_sample=False
        )
        started = time.perf_counter()
        handles = [
            self._pipeline.add_request(
                next(self._ids), openvino.Tensor(np.array([prompt], np.int64)), options
            )
            for prompt in prompts
        ]
        first_s = [0.0] * len(handles)
        num_tokens = 0
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter() - started
            for place, handle in enumerate(handles):
                if handle.can_read():
                    num_tokens += sum(len(one.generated_ids) for one in handle.read().values())
                    first_s[place] = first_s[place] or now
        return report(started, first_s, num_tokens)


def main() -> None:
    """Load, then answer."""
    pipe = claim_stdout()
    serve(pipe, OpenVino(sys.argv[1]).run, "OpenVINO GenAI", openvino_genai.__version__)


if __name__ == "__main__":
    main()
