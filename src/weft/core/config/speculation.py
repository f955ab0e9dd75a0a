"""How tokens are drafted, as an engine runs with it."""

import msgspec


class DraftModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model that drafts: what finds it, as `ModelConfig` has it, and what it takes.

    It is computed as the model that it drafts for, but for what linear layers are in. Beyond `max_model_len` tokens
    it drafts nothing. `is_mtp`: it is the model's own head for multi-token prediction.
    """

    model: str
    revision: str | None
    load_dtype: str
    quantization: str | None
    max_model_len: int
    vocab_size: int
    weight_bytes: int
    kv_bytes_per_token: int
    is_mtp: bool = False


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are drafted, at most `num_speculative_tokens` a step.

    "ngram" continues an earlier place that ends with the same tokens, `prompt_lookup_max` to
    `prompt_lookup_min` of them; "draft_model" asks another model, `draft`, and "mtp" a head of the model's own. With
    `recomputes` states of the model's layers stop before drafts, and those that came true are computed once more in the
    next step.
    """

    method: str
    num_speculative_tokens: int
    prompt_lookup_max: int = 0
    prompt_lookup_min: int = 0
    draft: DraftModelConfig | None = None
    recomputes: bool = False
