"""Traces of steps, as an operator configures them."""

from typing import Annotated, Literal

import msgspec


class ProfilerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where traces of steps may be written, and of how many steps, in the words of vLLM.

    The first `delay_iterations` steps after a start are left out; after `max_iterations` it ends by itself,
    0: not before it is stopped. `profiler` is what vLLM calls traces that open in the same viewers.
    """

    torch_profiler_dir: str
    profiler: Literal["torch"] = "torch"
    torch_profiler_use_gzip: bool = True
    delay_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
