"""All backends by name. A new backend is a package beside this module, and one row in `BACKENDS`."""

import os
from collections.abc import Mapping

from weft.compute.cpu import unknown
from weft.compute.echo import EchoBackend
from weft.compute.gpu.backend import GpuBackend
from weft.compute.native_backend import NativeBackend
from weft.compute.pooler import Pooler, load_pooler
from weft.compute.protocols.backend import Backend, PackedFile, SharingBackend
from weft.compute.protocols.runner import Runner
from weft.compute.reference.backend import ReferenceBackend
from weft.core.config.engine import ComputeConfig, EngineConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.card import ModelCard
from weft.model.files.checkpoint import Checkpoint
from weft.model.spec import EchoSpec, ModelSpec

# "auto" selects the first suitable backend.
BACKENDS: Mapping[str, Backend] = {
    "gpu": GpuBackend(),
    "native": NativeBackend("native"),
    "reference": ReferenceBackend("reference"),
    "echo": EchoBackend(),
}


def choose(
    options: EngineOptions, card: ModelCard, spec: ModelSpec | EchoSpec | None = None
) -> ComputeConfig:
    """Returns the configuration of the chosen backend; raises a `ConfigError` that names an unsupported flag. Without
    a spec, "auto" looks at the card alone.
    """
    name = options.compute
    if name == "auto":
        name = next(name for name, backend in BACKENDS.items() if backend.suits(card, spec))
    if name not in BACKENDS:
        raise ConfigError(unknown("compute", name, ("auto", *BACKENDS)))
    return BACKENDS[name].configure(options, card)


def backend_of(config: EngineConfig) -> Backend:
    """Returns the backend of an engine on this machine."""
    assert config.compute_config is not None, "it computes elsewhere"
    return BACKENDS[config.compute_config.compute]


def shares_weights(compute: ComputeConfig) -> bool:
    """True if several processes with this configuration can share their weights."""
    backend = BACKENDS[compute.compute]
    return isinstance(backend, SharingBackend) and hasattr(os, "memfd_create")


def load_model(
    checkpoint: Checkpoint, config: EngineConfig, file: PackedFile | None = None
) -> tuple[Runner, Pooler | None]:
    """Returns the model's runner, loaded as configured, and its pooler; None for a model without pooling."""
    assert config.compute_config is not None, "it computes elsewhere"
    pooler = load_pooler(checkpoint, config.pooler_config)
    max_model_len = config.model_config.max_model_len
    return load_runner(checkpoint, config.compute_config, max_model_len, file), pooler


def load_runner(
    checkpoint: Checkpoint, compute: ComputeConfig, max_model_len: int, file: PackedFile | None
) -> Runner:
    """Returns the model's runner; its packed weights are in `file` if a file is given."""
    backend = BACKENDS[compute.compute]
    if file is None:
        return backend.load(checkpoint, compute, max_model_len=max_model_len)
    assert isinstance(backend, SharingBackend)
    return backend.load_shared(checkpoint, compute, max_model_len=max_model_len, file=file)
