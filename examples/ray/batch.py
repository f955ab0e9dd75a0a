"""Answers to a data set's prompts, by engines that Ray Data starts and feeds.

    pip install weft "ray[data]"
    python examples/ray/batch.py --prompts prompts.jsonl --answers answers

A line of the file is {"prompt": "..."}; answers are files of such lines, each with its "answer".
"""

import argparse
from typing import Any

import numpy as np
import ray

import weft


class Answerer:
    """An engine in a process of Ray's, for as long as there are prompts."""

    def __init__(self, model: str, num_threads: int) -> None:
        self._llm = weft.LLM(model, num_threads=num_threads)
        self._params = weft.SamplingParams(temperature=0, max_tokens=32)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        outputs = self._llm.generate(batch["prompt"].tolist(), self._params, use_tqdm=False)
        return {**batch, "answer": np.array([output.outputs[0].text for output in outputs])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="embedded:tiny")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--answers", required=True)
    parser.add_argument("--max-engines", type=int, default=2, help="one is started first")
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--batch-size", type=int, default=64, help="prompts given to one at once")
    args = parser.parse_args()
    answered = ray.data.read_json(args.prompts, lines=True).map_batches(
        Answerer,
        fn_constructor_args=(args.model, args.threads),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=args.max_engines),
        num_cpus=args.threads,
        batch_size=args.batch_size,
    )
    answered.write_json(args.answers)


if __name__ == "__main__":
    main()
