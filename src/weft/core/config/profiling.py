"""Configuration of step traces."""

from typing import Annotated, Literal

import msgspec


class ProfilerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Directory for traces of steps, and the number of steps, under vLLM's names.

    The first `delay_iterations` steps after a start are left out. The trace ends after `max_iterations` steps; with
    0, only when it is stopped. `profiler` is vLLM's name for traces that open in the same viewers.
    """

    torch_profiler_dir: str
    profiler: Literal["torch"] = "torch"
    torch_profiler_use_gzip: bool = True
    delay_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
