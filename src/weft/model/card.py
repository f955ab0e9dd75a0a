"""`ModelCard`: the facts of a checkpoint that other parts size, validate and report by."""

from collections.abc import Mapping
from dataclasses import dataclass

from weft.model.pooling import PoolingSpec


@dataclass(frozen=True, slots=True)
class AdapterBytes:
    """Memory of a LoRA adapter that is on every matrix of a model, in the runner that will serve it.

    By rank, of matrices with an adapter by themselves, in pairs and in threes: the ranks of those that
    are computed together lie side by side, and are padded together to a multiple of `padded_to`.
    """

    per_rank: tuple[int, int, int]
    padded_to: int

    def of(self, rank: int) -> int:
        """With each matrix of that rank."""
        step = self.padded_to
        return sum(
            -(-count * rank // step) * step * size for count, size in enumerate(self.per_rank, 1)
        )


@dataclass(frozen=True, slots=True)
class ModelCard:
    """`eos_token_ids[0]` is the primary end-of-sequence id; `dtype` is that of the weights as served."""

    name: str
    model_type: str
    architectures: tuple[str, ...]
    vocab_size: int  # width of the logits
    max_position_embeddings: int  # after the rope scaling rules
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    dtype: str  # float32, bfloat16 or float16
    default_sampling_params: Mapping[str, float | int]
    num_parameters: int
    weight_bytes: int  # of memory, once loaded by the runner that will serve it
    kv_bytes_per_token: int  # of the runner that will serve it
    notice: str | None  # one sentence that the start banner shows
    max_new_tokens: int | None = None  # of an answer; None: what the context leaves
    # Beside that, of layers that keep states in place of keys and values; of the runner that will serve it.
    state_bytes_per_block: int = 0
    state_bytes_per_slot: int = 0  # of a sequence, or of a snapshot, in layers with a recurrence
    kv_dtype: str = "float32"  # of the runner that will serve it
    adapter: AdapterBytes | None = None  # None: the model is served without adapters
    pooling: PoolingSpec | None = None  # None: the model generates text
    stored_bits: int | None = None  # of linear layers that are computed as they are stored
    embedding_size: int | None = None  # numbers in a row of the table; None: there is none
    num_idle_parameters: int = 0  # of experts that a token does not go through
    keeps_latents: bool = False  # in place of keys and values, which are made of them
    is_causal: bool = True  # tokens see those before them only, so a prompt may be run in chunks

    @property
    def keeps_states(self) -> bool:
        """Whether some layers keep states in place of keys and values: they cannot go back to one before."""
        return bool(self.state_bytes_per_block or self.state_bytes_per_slot)

    @property
    def num_active_parameters(self) -> int:
        """Those that a token goes through."""
        return self.num_parameters - self.num_idle_parameters
