"""`AsyncRunner`: a runner whose steps are launched, and computed while the host goes on.

The loop launches step N + 1 before the tokens of step N are on the host: a row's token may be one that the sampler
has chosen and that is still on the device.

Runner and sampler of such a backend keep one order: steps, samplings and copies of blocks happen on the device as they
were called for, each after all before it. So a block that is freed and given to another sequence needs no wait, and
neither does one that is copied out of the pool before a later step writes to it.
"""

from typing import Any, Protocol, runtime_checkable

from weft.compute.protocols.runner import Batch, Rows, Runner


@runtime_checkable
class AsyncRunner(Runner, Protocol):
    """Its `forward` returns before the step is computed; who reads the rows on the host waits for them.

    The arrays of a batch are the caller's again when `forward` or `forward_after` returns.
    """

    def forward_after(self, batch: Batch, device_token_ids: Any) -> Rows:
        """`forward` of a batch with `token_sources`: places in the tokens that the step before has sampled.

        `device_token_ids` are those, as the `Sampled` of that step has them.
        """

    def wait(self, rows: Rows) -> None:
        """Wait until the step that gave these rows is computed; what is raised here ends the engine."""
