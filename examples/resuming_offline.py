"""The same without a server: an engine inside a program is killed under its requests, and they continue.

python examples/resuming_offline.py
"""

import argparse
import threading
import time

import psutil  # comes with Weft

from weft import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The capital of France is", "My favourite animal is"]


def count(llm: LLM, name: str) -> int:
    """The sum of a counter, or the number of values of a histogram, over all engines."""
    found = [metric for metric in llm.get_metrics() if metric.name == name]
    return int(sum(getattr(one, "value", None) or getattr(one, "count", 0) for one in found))


def kill_an_engine(llm: LLM) -> None:
    """Kill an engine's process as soon as the next request has a token."""
    first_tokens = count(llm, "vllm:time_to_first_token_seconds")
    while count(llm, "vllm:time_to_first_token_seconds") == first_tokens:
        time.sleep(0.001)
    engines = psutil.Process().children(recursive=True)
    max(engines, key=lambda one: one.memory_info().rss).kill()


def main(num_engines: int, max_tokens: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    # With a single engine its requests wait for its next start: at most three in a row.
    options = {"data_parallel_size": num_engines} if num_engines > 1 else {"engine_restarts": 3}
    with LLM("embedded:tiny", **options) as llm:
        undisturbed = llm.generate(PROMPTS, params)
        killing = threading.Thread(target=kill_an_engine, args=(llm,))
        killing.start()
        disturbed = llm.generate(PROMPTS, params)
        killing.join()
        num_continued = count(llm, "vllm:resumed_requests")
    texts = [[output.outputs[0].text for output in outputs] for outputs in (undisturbed, disturbed)]
    print(f"{num_continued} requests continued")
    print("the same answers" if texts[0] == texts[1] else "other answers")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=400)
    args = parser.parse_args()
    main(args.engines, args.max_tokens)
