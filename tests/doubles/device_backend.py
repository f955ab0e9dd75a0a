"""`DeviceBackend`: computes as C++ does, but keeps its logits in a memory that only its sampler reads."""

from dataclasses import dataclass

import msgspec
import numpy as np

from weft.compute.backends import BACKENDS
from weft.compute.native import NativeSampler
from weft.compute.protocols.backend import Backend
from weft.compute.protocols.sampler import Choices


@dataclass(frozen=True)
class DeviceRows:
    """Rows, or one of them; numpy cannot read it."""

    values: np.ndarray

    @property
    def shape(self):
        """As numpy's."""
        return self.values.shape

    def __len__(self):
        return len(self.values)

    def __getitem__(self, places):
        return DeviceRows(self.values[places])

    def __array__(self, *_args, **_kwargs):
        raise AssertionError("logits were copied to the host")


class DeviceSampler:
    """A `Sampler` of `DeviceRows`; `calls` are the choices that each call was asked for."""

    def __init__(self) -> None:
        self.calls: list[Choices] = []

    def sample(self, logits, choices, mode):
        self.calls.append(choices)
        return NativeSampler.sample(logits.values, choices, mode)


class DeviceRunner:
    """The runner of another backend, whose logits stay where they are."""

    adapters = None

    def __init__(self, runner) -> None:
        self.vocab_size = runner.vocab_size
        self.allocate_kv = runner.allocate_kv
        self._runner = runner

    def forward(self, batch):
        return DeviceRows(self._runner.forward(batch))


class DeviceBackend:
    """A `Backend` by itself, under any name; the device has `memory` bytes."""

    def __init__(self, name: str, memory: int = 1 << 30) -> None:
        self.sampler = DeviceSampler()
        self._name = name
        self._memory = memory
        self._native: Backend = BACKENDS["native"]

    def __getattr__(self, name: str):
        return getattr(self._native, name)

    def configure(self, options, card):
        return msgspec.structs.replace(self._native.configure(options, card), compute=self._name)

    def free_bytes(self):
        return self._memory

    def load(self, checkpoint, compute, *, max_model_len):
        return DeviceRunner(self._native.load(checkpoint, compute, max_model_len=max_model_len))
