"""Time the front half of a client with and without metrics, and the two kinds of histogram.

`python benchmarks/metrics.py`; README.md says how to read the table.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

import msgspec
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from weft.core.config.engine import EngineConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.observe.metrics import Metrics
from weft.core.observe.stats import StepStats
from weft.core.observe.tally import Tally
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.types import FinishReason, OutputKind, SamplingParams, SequenceOutput
from weft.engine.front.client import FrontClient
from weft.engine.ipc.messages import Add, Command, Event, StepOutput
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.text.tokenizer import Tokenizer

MODEL = "embedded:echo"
NUM_STEPS = 300
ROUNDS = 25
BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
          20.0, 40.0, 80.0)  # fmt: skip


class ReplayClient(FrontClient):
    """Its engine is a recording: each request gets `NUM_STEPS` tokens, one a step."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, metrics: Metrics | None) -> None:
        super().__init__(config, tokenizer, metrics)
        self.engine_ids: list[str] = []
        self._decoder = msgspec.msgpack.Decoder(Event)

    def _send(self, command: Command) -> None:
        if isinstance(command, Add):
            self.engine_ids.append(command.request.engine_id)

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing runs."""

    async def wait_closed(self) -> None:
        """Nothing runs."""

    def replay(self, frame: bytes) -> None:
        """Take a frame as if it came from the engine's process."""
        self._on_event(self._decoder.decode(frame))


def frames(engine_ids: list[str]) -> list[bytes]:
    """What an engine would send."""
    encoder = msgspec.msgpack.Encoder()
    width = len(engine_ids)
    return [
        encoder.encode(
            StepOutput(
                outputs=[
                    SequenceOutput(
                        engine_id=engine_id,
                        index=0,
                        token_ids=[65 + step % 26],
                        finish_reason=FinishReason.LENGTH if step == NUM_STEPS - 1 else None,
                    )
                    for engine_id in engine_ids
                ],
                load=EngineLoad(num_running=width),
                stats=StepStats(
                    num_computed_tokens=width,
                    intervals=[(0.02, width)] if step else [],
                    total_generated_tokens=width * step,
                ),
            )
        )
        for step in range(NUM_STEPS)
    ]


async def cost_ns(client: ReplayClient, width: int) -> float:
    """Processor time of the front a token: decode, detokenise, wake the reader, read."""
    client.engine_ids.clear()
    params = SamplingParams(max_tokens=NUM_STEPS, output_kind=OutputKind.DELTA)

    async def read(name: str) -> None:
        async with aclosing(client.generate([65, 66, 67], params, name)) as outputs:
            async for _ in outputs:
                pass

    tasks = [asyncio.create_task(read(f"r{number}")) for number in range(width)]
    await asyncio.sleep(0)
    recorded = frames(client.engine_ids)
    started = time.process_time_ns()
    for frame in recorded:
        client.replay(frame)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return (time.process_time_ns() - started) / (width * NUM_STEPS)


def each_ns(act: Callable[[float], None]) -> float:
    """Processor time of one call."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        for _ in range(10_000):
            act(0.021)
        best = min(best, (time.process_time_ns() - started) / 10_000)
    return best


async def main() -> None:
    """Print the tables."""
    checkpoint = open_model(MODEL)
    options = EngineOptions(model=MODEL, max_model_len=2048, num_gpu_blocks_override=4096)
    config = resolve(options, checkpoint.card, 8 << 30)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files)
    metrics = Metrics()
    plain = ReplayClient(config, tokenizer, None)
    watched = ReplayClient(config, tokenizer, metrics)
    print("| sequences | front, µs a token | with metrics | added |\n| --- | --- | --- | --- |")
    for width in (1, 8, 64):
        # Turn about, and the best of each: other work on the machine only ever adds.
        rounds = [
            (await cost_ns(plain, width), await cost_ns(watched, width)) for _ in range(ROUNDS)
        ]
        without, with_metrics = (min(column) / 1e3 for column in zip(*rounds, strict=True))
        added = with_metrics / without - 1
        print(f"| {width} | {without:.2f} | {with_metrics:.2f} | {added:.1%} |")
    started = time.process_time()
    for _ in range(100):
        generate_latest(metrics.registry)
    print(f"\nscrape: {(time.process_time() - started) * 10:.2f} ms")
    histogram = Histogram("h", "h", ["a"], buckets=BOUNDS, registry=CollectorRegistry())
    print(f"Histogram.observe: {each_ns(histogram.labels('x').observe):.0f} ns")
    print(f"Tally.add: {each_ns(Tally(BOUNDS).add):.0f} ns")


if __name__ == "__main__":
    asyncio.run(main())
