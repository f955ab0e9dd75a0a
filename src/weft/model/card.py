"""`ModelCard`: the facts of a checkpoint that other packages use for sizes, checks and reports."""

from collections.abc import Mapping
from dataclasses import dataclass

from weft.core.values.media import SpeechTokens
from weft.core.values.pictures import ItemSettings, ItemTokens, Videos
from weft.model.pooling import PoolingSpec


@dataclass(frozen=True, slots=True)
class AdapterBytes:
    """Memory of a LoRA adapter with all matrices of a model, in the runner that will serve the model.

    `per_rank` has bytes per rank: of matrices whose adapters are computed alone, in pairs, and in threes. The ranks of
    adapters that are computed together are stored side by side, and their sum is padded to a multiple of `padded_to`.
    """

    per_rank: tuple[int, int, int]
    padded_to: int

    def of(self, rank: int) -> int:
        """Returns the bytes of an adapter with this rank on every matrix."""
        step = self.padded_to
        return sum(
            -(-count * rank // step) * step * size for count, size in enumerate(self.per_rank, 1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCard:
    """Facts of a model that takes pictures or sounds in prompts: their processing, their tokens, and the tower's output
    rows.
    """

    settings: ItemSettings
    tokens: ItemTokens
    hidden_size: int
    row_size: int
    sees_both_ways: bool
    has_rope_sections: bool
    videos: Videos | None = None  # None: the model takes no videos


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundCard:
    """Facts of a model of speech: its tokens, and the spectrogram that it hears."""

    tokens: SpeechTokens
    num_mels: int
    num_columns: int


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Facts of a model.

    `eos_token_ids[0]` is the primary end-of-sequence id; `dtype` is the type of the served weights.
    """

    name: str
    model_type: str
    architectures: tuple[str, ...]
    vocab_size: int  # width of the logits
    max_position_embeddings: int  # after the scaling of rotary frequencies
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    dtype: str  # float32, bfloat16 or float16
    default_sampling_params: Mapping[str, float | int]
    num_parameters: int
    weight_bytes: int  # bytes of memory once loaded by the runner that will serve it
    kv_bytes_per_token: int  # in the runner that will serve it
    notice: str | None  # one sentence that the start banner shows
    max_new_tokens: int | None = None  # per answer; None: limited by the context length only
    # For layers that store states instead of keys and values, in the runner that will serve the model.
    state_bytes_per_block: int = 0
    state_bytes_per_slot: int = 0  # per sequence or snapshot, for layers with a recurrence
    kv_dtype: str = "float32"  # in the runner that will serve it
    adapter: AdapterBytes | None = None  # None: the model is served without adapters
    pooling: PoolingSpec | None = None  # None: the model generates text
    stored_bits: int | None = None  # bits of linear layers that are computed in their stored format
    embedding_size: int | None = None  # numbers per row of the embedding table; None: no table
    num_idle_parameters: int = 0  # parameters of experts that a token does not use
    keeps_latents: bool = False  # the KV cache has latent vectors instead of keys and values
    media: ItemCard | None = None  # None: the model takes no pictures or sounds in prompts
    sounds: SoundCard | None = None  # None: this is no model of speech
    is_causal: bool = True  # tokens see earlier tokens only, so a prompt may be computed in chunks

    @property
    def keeps_states(self) -> bool:
        """True if some layers store states instead of keys and values.

        Such layers cannot return to an earlier token.
        """
        return bool(self.state_bytes_per_block or self.state_bytes_per_slot)

    @property
    def num_active_parameters(self) -> int:
        """Number of parameters that each token uses."""
        return self.num_parameters - self.num_idle_parameters
