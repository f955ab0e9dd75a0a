"""`load_runner`: the runner that serves a checkpoint."""

from weft.compute.echo import EchoRunner
from weft.compute.reference import ReferenceRunner
from weft.compute.runner import Runner
from weft.model.checkpoint import Checkpoint
from weft.model.spec import EchoSpec


def load_runner(checkpoint: Checkpoint, *, max_model_len: int | None = None) -> Runner:
    """Load the weights and build the runner.

    `max_model_len` is the longest sequence that will be served (None: all that the model allows);
    models with a second set of rotary frequencies for long contexts choose by it.
    """
    if isinstance(checkpoint.spec, EchoSpec):
        return EchoRunner(checkpoint.spec)
    return ReferenceRunner(
        checkpoint.spec,
        checkpoint.load(),
        max_model_len=max_model_len or checkpoint.card.max_position_embeddings,
    )
