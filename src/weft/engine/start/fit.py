"""`fit`: decides all settings of an engine for a model, within the limits of this machine."""

from dataclasses import dataclass, replace

import msgspec

from weft.compute.backends import BACKENDS, choose
from weft.core.config.engine import EngineConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.config.ranks import RanksConfig
from weft.engine.settings.speculation import Draft, find_draft
from weft.engine.start.configure import resolve
from weft.engine.step.step_size import row_bytes
from weft.model.files.checkpoint import Checkpoint
from weft.model.open import OnBytes, find_model
from weft.model.overrides import read_overrides

_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Fitted:
    """A checked model that fits into memory; its weights are not read yet.

    Before `with_tokenizer` the configuration lacks special tokens; an engine process does not need them, because
    requests contain them.
    """

    checkpoint: Checkpoint
    config: EngineConfig
    free_bytes: int
    draft: Draft | None = None

    def with_tokenizer(self) -> "Fitted":
        """Returns the model with the special tokens of its tokenizer in the configuration.

        Raises `ConfigError` if the tokenizer does not match the model or the draft model.
        """
        checkpoint = self.checkpoint.with_tokenizer()
        if self.draft is not None:
            self.draft.check_vocabulary(checkpoint)
        card = checkpoint.card
        model = msgspec.structs.replace(
            self.config.model_config,
            eos_token_ids=card.eos_token_ids,
            bos_token_id=card.bos_token_id,
            pad_token_id=card.pad_token_id,
        )
        config = msgspec.structs.replace(self.config, model_config=model)
        return replace(self, checkpoint=checkpoint, config=config)


def find_and_fit(
    options: EngineOptions,
    *,
    is_shared: bool = False,
    on_bytes: OnBytes | None = None,
    ranks: RanksConfig | None = None,
    free_bytes: int | None = None,
) -> Fitted:
    """Finds and checks the model that the options name, and decides open settings, as `find_model` and `fit`
    describe.
    """
    checkpoint = find_model(
        options.model,
        revision=options.revision,
        dtype=options.dtype,
        runner=options.runner,
        overrides=read_overrides(options),
        on_bytes=on_bytes,
    )
    return fit(checkpoint, options, is_shared=is_shared, ranks=ranks, free_bytes=free_bytes)


def fit(
    checkpoint: Checkpoint,
    options: EngineOptions,
    *,
    is_shared: bool = False,
    ranks: RanksConfig | None = None,
    free_bytes: int | None = None,
) -> Fitted:
    """Decides all open settings of an engine for a checkpoint.

    Raises a `ConfigError` that names the option that cannot be met, or that says that the model does not fit. With
    `is_shared` a single engine runs in this process, not in its own. If `ranks` has no engine on this machine, this
    machine's memory is not a limit. `free_bytes` is the memory that the model may have; by default what is free
    now.
    """
    compute = choose(options, checkpoint.card, checkpoint.spec)
    options = msgspec.structs.replace(options, compute=compute.compute)
    backend = BACKENDS[compute.compute]
    if is_shared and options.num_threads is None and options.data_parallel_size == 1:
        threads = backend.shared_threads(checkpoint.card)
        options = msgspec.structs.replace(options, num_threads=threads)
    if options.memory_share is None:
        options = msgspec.structs.replace(options, memory_share=backend.usual_memory_share)
    checkpoint = backend.sized(checkpoint, compute)
    draft = find_draft(options, checkpoint, compute)
    drafts = None if draft is None else draft.config
    is_elsewhere = ranks is not None and not ranks.num_local
    if free_bytes is None:
        free_bytes = _NO_LIMIT if is_elsewhere else backend.free_bytes()
    config = resolve(options, checkpoint.card, free_bytes, ranks, drafts, row_bytes(checkpoint))
    return Fitted(checkpoint, config, free_bytes, draft)
