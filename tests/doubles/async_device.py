"""A device that computes nothing before somebody waits: steps, samplings and copies, in the order of the calls.

So what the loop reads, frees or gives to others while a step is in flight meets that step still to be computed, which
is the latest that it can be.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.doubles.device_backend import DeviceBackend
from weft.compute.native import NativeSampler


@dataclass(eq=False)
class Pending:
    """What a call gives, once it is computed."""

    stream: "Stream"
    value: Any = None

    def sync(self) -> Any:
        """Wait for it, and so for all before it."""
        self.stream.run_to(self)
        return self.value


@dataclass
class Stream:
    """Calls that are still to be done. `fails_at` is the launch, from 0, that fails when it is computed."""

    fails_at: int | None = None
    num_launched: int = 0
    most_open: int = 0
    _calls: list[tuple[Pending, Callable[[], Any]]] = field(default_factory=list)

    def launch(self, call: Callable[[], Any]) -> Pending:
        """Have it done behind all that was launched before."""
        if self.num_launched == self.fails_at:
            call = _fail
        self.num_launched += 1
        pending = Pending(self)
        self._calls.append((pending, call))
        self.most_open = max(self.most_open, len(self._calls))
        return pending

    def run_to(self, last: Pending | None = None) -> None:
        """Compute up to that call; all, without one."""
        while self._calls and (last is None or any(p is last for p, _ in self._calls)):
            pending, call = self._calls.pop(0)
            pending.value = call()


def _fail() -> None:
    raise RuntimeError("the device has failed")


@dataclass(frozen=True)
class DeviceArray:
    """Rows, or tokens, of a call; numpy cannot read them."""

    pending: Pending
    num_rows: int = 0

    def __len__(self) -> int:
        return self.num_rows

    def __array__(self, *_args, **_kwargs):
        raise AssertionError("what is on the device was copied to the host")


class AsyncRunner:
    """The runner of another backend, whose steps are computed when they must be."""

    adapters = None

    def __init__(self, runner: Any, stream: Stream) -> None:
        self.stream = stream
        self.num_followed = 0  # steps that were launched behind one whose tokens were not known
        self.inner = runner
        self.vocab_size = runner.vocab_size
        self.allocate_kv = runner.allocate_kv
        self.kv_layout = getattr(runner, "kv_layout", "")

    @property
    def state_slots(self):
        """See `BlockCopies`: behind what was launched, as all copies."""
        self.stream.run_to()
        return self.inner.state_slots

    def read_block(self, block_id):
        self.stream.run_to()
        return self.inner.read_block(block_id)

    def copy_block(self, block_id, place):
        self.stream.run_to()
        self.inner.copy_block(block_id, place)

    def write_block(self, block_id, data):
        self.stream.run_to()
        self.inner.write_block(block_id, data)

    def block_rows(self, block_id):
        self.stream.run_to()
        return self.inner.block_rows(block_id)

    def forward(self, batch):
        assert batch.token_sources is None
        return self._launch(lambda: self.inner.forward(batch), batch)

    def forward_after(self, batch, device_token_ids):
        sources = batch.token_sources
        assert sources.max() >= 0
        # What stands in place of a token that is not known may not matter.
        unknown = np.where(sources < 0, batch.token_ids, -7).astype(np.int32)
        self.num_followed += 1

        def compute():
            token_ids = device_token_ids.pending.value
            found = np.where(sources < 0, unknown, token_ids[sources]).astype(np.int32)
            return self.inner.forward(replace(batch, token_ids=found, token_sources=None))

        return self._launch(compute, batch)

    def wait(self, rows):
        rows.pending.sync()

    def _launch(self, compute, batch):
        return DeviceArray(self.stream.launch(compute), len(batch.logit_rows))


@dataclass(frozen=True)
class AsyncSampled:
    """A `Sampled` that comes when it is waited for."""

    pending: Pending
    device_token_ids: DeviceArray

    def result(self):
        return self.pending.sync()


class AsyncSampler:
    """A `Sampler` of such rows."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def sample(self, logits, choices, *mode):
        outcome = self.stream.launch(
            lambda: NativeSampler.sample(logits.pending.value, choices, *mode).result()
        )
        token_ids = self.stream.launch(lambda: outcome.value.token_ids)
        return AsyncSampled(outcome, DeviceArray(token_ids, len(choices)))


class AsyncBackend(DeviceBackend):
    """A `Backend` of one such device."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.stream = Stream()
        self.sampler = AsyncSampler(self.stream)
        self.runners: list[AsyncRunner] = []

    def load(self, checkpoint, compute, *, max_model_len):
        runner = self._native.load(checkpoint, compute, max_model_len=max_model_len)
        self.runners.append(AsyncRunner(runner, self.stream))
        return self.runners[-1]
