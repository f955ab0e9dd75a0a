"""Creates the `Drafter` that the configuration names, and the `StepForward` that computes the model's steps."""

from weft.compute.backends import backend_of
from weft.core.config.engine import EngineConfig
from weft.engine.drafting.model_drafter import ModelDrafter
from weft.engine.drafting.mtp_drafter import MtpDrafter
from weft.engine.scheduling.drafter import Drafter, NgramDrafter
from weft.engine.step.step_forward import ModelForward, StepForward
from weft.engine.weights.engine_model import EngineModel


def open_drafter(config: EngineConfig, model: EngineModel) -> tuple[Drafter | None, StepForward]:
    """Returns the drafter, or None without speculative decoding; and the `StepForward`, which computes steps.

    The `StepForward` is the model, or an MTP drafter that wraps the model.
    """
    sampler, block_size = backend_of(config).sampler, config.cache_config.block_size
    alone = ModelForward(model, block_size, config.tower_config)
    speculation = config.scheduler_config.speculation
    if speculation is None:
        return None, alone
    if model.draft is None:
        return NgramDrafter(speculation), alone
    if model.draft.config.is_mtp:
        drafter = MtpDrafter(
            model,
            model.draft,
            sampler,
            vocab_size=config.model_config.vocab_size,
            block_size=block_size,
        )
        return drafter, drafter
    draft_model = ModelDrafter(
        model.draft,
        sampler,
        vocab_size=config.model_config.vocab_size,
        block_size=block_size,
        max_rows=config.scheduler_config.max_num_batched_tokens,
    )
    return draft_model, alone
