"""A model that drafts without being one: `FakeRunner` in the place of a small checkpoint."""

from dataclasses import dataclass

from tests.doubles.fake_runner import FakeRunner
from tests.doubles.stepping import SteppingEngine
from weft.compute.native import NativeSampler
from weft.core.config.speculation import DraftModelConfig, SpeculativeConfig
from weft.engine.drafting.model_drafter import ModelDrafter
from weft.engine.scheduling.draft_payoff import DraftPayoff


@dataclass
class FakeDraft:
    """What of a `DraftModel` its drafter uses."""

    config: DraftModelConfig
    runner: FakeRunner


def by_model(num=4, vocab_size=64, max_model_len=128) -> SpeculativeConfig:
    """Drafts by a model of that vocabulary."""
    draft = DraftModelConfig(
        model="fake",
        revision=None,
        load_dtype="auto",
        quantization=None,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        weight_bytes=0,
        kv_bytes_per_token=0,
    )
    return SpeculativeConfig(method="draft_model", num_speculative_tokens=num, draft=draft)


def draft_with(
    engine: SteppingEngine, runner: FakeRunner, payoff: DraftPayoff | None = None
) -> None:
    """Let an engine whose speculation is `by_model` draft with that runner."""
    scheduler, cache = engine.config.scheduler_config, engine.config.cache_config
    runner.allocate_kv(num_blocks=cache.num_blocks, block_size=cache.block_size)
    drafter = ModelDrafter(
        FakeDraft(scheduler.speculation.draft, runner),
        NativeSampler(),
        vocab_size=engine.config.model_config.vocab_size,
        block_size=cache.block_size,
        max_rows=scheduler.max_num_batched_tokens,
    )
    engine.scheduler.draft_by(drafter, payoff)
