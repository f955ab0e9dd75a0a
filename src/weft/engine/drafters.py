"""Which `Drafter` an engine has, by its configuration."""

from weft.compute.backends import backend_of
from weft.core.config import EngineConfig
from weft.engine.engine_model import EngineModel
from weft.engine.model_drafter import ModelDrafter
from weft.engine.mtp_drafter import MtpDrafter
from weft.engine.scheduling.drafter import Drafter, NgramDrafter


def open_drafter(config: EngineConfig, model: EngineModel) -> Drafter | None:
    """What drafts; None where nothing does."""
    speculation = config.scheduler_config.speculation
    if speculation is None:
        return None
    if model.draft is None:
        return NgramDrafter(speculation)
    sampler, block_size = backend_of(config).sampler, config.cache_config.block_size
    if model.draft.config.is_mtp:
        return MtpDrafter(
            model,
            model.draft,
            sampler,
            vocab_size=config.model_config.vocab_size,
            block_size=block_size,
        )
    return ModelDrafter(
        model.draft,
        sampler,
        vocab_size=config.model_config.vocab_size,
        block_size=block_size,
        max_rows=config.scheduler_config.max_num_batched_tokens,
    )
