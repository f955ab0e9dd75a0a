"""`AsyncRunner`: a runner that computes launched steps while the host continues.

The loop launches step N + 1 before the tokens of step N are on the host: the token of a row may be one that the sampler
has chosen and that is still on the device.

The device executes steps, samplings and copies of blocks in the order of their calls. So a freed block can be given to
another sequence without a wait, and a block can be copied out of the pool without a wait before a later step writes to
it.
"""

from typing import Any, Protocol, runtime_checkable

from weft.compute.protocols.runner import Batch, Rows, Runner


@runtime_checkable
class AsyncRunner(Runner, Protocol):
    """A runner whose `forward` returns before the step is computed; the host waits only when it reads rows.

    The caller may reuse the arrays of a batch as soon as `forward` or `forward_after` returns.
    """

    def forward_after(self, batch: Batch, device_token_ids: Any) -> Rows:
        """Runs `forward` on a batch with `token_sources`: indexes of tokens that the previous step sampled.

        `device_token_ids` are these tokens on the device, from the `Sampled` of the previous step.
        """

    def wait(self, rows: Rows) -> None:
        """Waits until the step that returned these rows is computed; an error that this call raises ends the engine."""
