"""Configuration of traces of engine steps."""

from typing import Annotated, Literal

import msgspec


class ProfilerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Directory for traces of steps, and the number of traced steps, under vLLM's names.

    The first `delay_iterations` steps after a start of the trace are left out. The trace ends after `max_iterations`
    steps; with 0, it ends only when it is stopped. `profiler` is vLLM's name for traces in a format that the same
    viewers open.
    """

    torch_profiler_dir: str
    profiler: Literal["torch"] = "torch"
    torch_profiler_use_gzip: bool = True
    delay_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
