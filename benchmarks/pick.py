"""What one decision costs, without any wire: `python benchmarks/pick.py`.

Ten endpoints with load, queue + KV + prefix scorers, prompts of token ids of which a half was seen
before. Prints microseconds of processor time per request, and of the hashing in it alone.
"""

import argparse
import asyncio
import time
from collections.abc import Callable

from weft.epp.build import Picker, open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.plugins.producers.tokens import pack
from weft.epp.pool.endpoint import Load
from weft.epp.prefix.keys import FnvKeys, KeyAlgorithm, XxhKeys, chain_hashes, chain_keys
from weft.epp.request.values import InferenceRequest, Prompt

_BUDGET_S = 1.0  # processor time per measurement


def make_request(number: int, num_tokens: int) -> InferenceRequest:
    """A prompt whose first half is one of eight, and whose second half is its own."""
    half = num_tokens // 2
    shared, own = (number % 8) * 1000, 1_000_000 + number * 7
    token_ids = (*range(shared, shared + half), *range(own, own + num_tokens - half))
    return InferenceRequest(
        request_id=str(number), path="/vllm.grpc.engine.VllmEngine/Generate", headers={},
        parser="vllmgrpc-parser", prompts=(Prompt(token_ids=token_ids),), is_grpc=True,
    )  # fmt: skip


async def measure(picker: Picker, num_tokens: int) -> float:
    """Microseconds of processor time per request."""
    number = 0
    spent_s = 0.0
    while spent_s < _BUDGET_S:
        requests = [make_request(number + i, num_tokens) for i in range(50)]
        number += len(requests)
        started = time.process_time()
        for request in requests:
            await picker.director.pick(request, None)
        spent_s += time.process_time() - started
    return spent_s / number * 1e6


async def open_loaded(num_endpoints: int) -> Picker:
    """A picker whose endpoints have told their load; nothing listens, and nothing is polled."""
    endpoints = tuple(f"127.1.{i // 250}.{i % 250 + 1}:8000" for i in range(num_endpoints))
    picker = await open_picker(
        PickerOptions(endpoints=endpoints, refresh_metrics_interval_s=3600.0)
    )
    for i, endpoint in enumerate(picker.pool):
        load = Load(num_waiting=i % 5, num_running=i % 7, kv_usage=i / num_endpoints)
        endpoint.observe(load, polled_at=time.monotonic())
    return picker


def time_hashing(num_tokens: int) -> dict[str, float]:
    """Microseconds per prompt, by algorithm."""
    tokens = pack(Prompt(token_ids=tuple(range(num_tokens))))

    def approximate() -> None:
        chain_hashes(tokens, block_size=64, max_blocks=2048, model="", cache_salt="")

    def precise(keys: KeyAlgorithm) -> Callable[[], None]:
        def run() -> None:
            chain_keys(keys, tokens, block_size=16, parent=keys.root("m"), first_extra=None)

        return run

    works = {
        "approximate, 64 a block": approximate,
        "precise xxh64, 16 a block": precise(XxhKeys("")),
        "precise cbor-fnv, 16 a block": precise(FnvKeys("")),
    }
    return {name: _time(work) for name, work in works.items()}


def _time(work: Callable[[], None]) -> float:
    started, count = time.process_time(), 0
    while time.process_time() - started < _BUDGET_S / 5:
        work()
        count += 1
    return (time.process_time() - started) / count * 1e6


async def run(endpoint_counts: list[int], token_counts: list[int]) -> None:
    """Print every measurement."""
    print("| endpoints | prompt tokens | µs a decision |\n| --- | --- | --- |")
    for num_endpoints in endpoint_counts:
        for num_tokens in token_counts:
            picker = await open_loaded(num_endpoints)
            cost = await measure(picker, num_tokens)
            print(f"| {num_endpoints} | {num_tokens} | {cost:.0f} |")
            await picker.close()
    print("\n| hashing | prompt tokens | µs |\n| --- | --- | --- |")
    for num_tokens in token_counts:
        for name, cost in time_hashing(num_tokens).items():
            print(f"| {name} | {num_tokens} | {cost:.0f} |")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, nargs="+", default=[10])
    parser.add_argument("--tokens", type=int, nargs="+", default=[200, 10_000, 100_000])
    arguments = parser.parse_args()
    asyncio.run(run(arguments.endpoints, arguments.tokens))


if __name__ == "__main__":
    main()
