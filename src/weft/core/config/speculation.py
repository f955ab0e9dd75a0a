"""Configuration of speculative decoding."""

import msgspec


class DraftModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The draft model: name, revision and dtype to load it, as in `ModelConfig`, and the memory that it takes.

    The draft model is computed like the main model, except for the quantization of linear layers. For sequences longer
    than `max_model_len` tokens the draft model drafts nothing. `is_mtp`: the draft model is the main model's own head
    for multi-token prediction.
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
    """Speculative decoding with at most `num_speculative_tokens` draft tokens per step.

    The method "ngram" searches the sequence for an earlier place with the same last `prompt_lookup_max` to
    `prompt_lookup_min` tokens, and drafts the tokens that follow this place. "draft_model" uses the draft model
    `draft`, and "mtp" a head of the main model itself. With `recomputes` the states of recurrent layers stop before the
    draft tokens, and the next step computes accepted draft tokens once more.
    """

    method: str
    num_speculative_tokens: int
    prompt_lookup_max: int = 0
    prompt_lookup_min: int = 0
    draft: DraftModelConfig | None = None
    recomputes: bool = False
