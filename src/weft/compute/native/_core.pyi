from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.compute.protocols.runner import Batch, FloatArray, IntArray
from weft.compute.protocols.sampler import Choices

def cpu_architecture() -> str: ...
def cpu_features() -> list[str]: ...
def available_cpus() -> int: ...
def usable_paths() -> list[str]: ...
def trim_heap() -> None: ...
def measure_limits(
    path: str, element: str, quantization: str, num_threads: int
) -> tuple[float, float]: ...
def sample(
    logits: FloatArray, choices: Choices, is_processed: bool, is_normalised: bool
) -> tuple[
    IntArray,
    NDArray[np.bool_],
    tuple[IntArray, IntArray, FloatArray, IntArray, NDArray[np.bool_]] | None,
]: ...
def use_sampling_threads(num_threads: int) -> None: ...
def multiply_int8(path: str, rows: FloatArray, weights: FloatArray, out: FloatArray) -> None: ...
def recurrent_rows(
    path: str,
    num_threads: int,
    spec: MambaSpec | DeltaSpec | Mamba1Spec,
    norm_eps: float,
    vectors: list[FloatArray],
    rows: FloatArray,
    is_begun: bool,
    state: FloatArray,
    out: FloatArray,
) -> None: ...
def round_to_groups(
    values: FloatArray,
    numbers: NDArray[np.uint8],
    scales: NDArray[np.uint16],
    minimums: NDArray[np.uint16],
) -> None: ...
def multiply_grouped(
    path: str,
    form: GroupFormat,
    rows: FloatArray,
    numbers: NDArray[np.uint8],
    scales: NDArray[Any],
    offsets: NDArray[Any] | None,
    out: FloatArray,
) -> None: ...

class GroupFormat:
    def __init__(self, bits: int, group: int, offset: str, scales: str) -> None: ...

class ExpertsSpec:
    count: int
    per_token: int
    inner_size: int
    shared_size: int
    has_shared_gate: bool
    is_normalized: bool
    is_sigmoid: bool
    has_correction: bool
    weighs_inputs: bool
    num_groups: int
    groups_per_token: int
    scale: float
    epsilon: float
    has_norms: bool
    up_groups: GroupFormat | None
    down_groups: GroupFormat | None

class LatentSpec:
    rank: int
    rope_size: int
    key_size: int
    value_size: int
    query_rank: int
    is_interleaved: bool
    norm_eps: float

class MambaSpec:
    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    conv_width: int
    min_step: float
    max_step: float
    is_normed: bool
    is_gated_first: bool

class Mamba1Spec:
    inner_size: int
    state_dim: int
    step_rank: int
    conv_width: int
    has_norms: bool
    step_eps: float

class DeltaSpec:
    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int
    conv_width: int
    is_by_key_head: bool

class LayerSpec:
    rope: int | None
    window: int | None
    chunk: int
    temperature_interval: int
    temperature_slope: float
    has_attention_norm: bool
    has_qk_norm: bool
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    kv_layer: int | None
    conv_width: int
    recurrence: MambaSpec | DeltaSpec | Mamba1Spec | None
    is_beside: bool
    has_mlp: bool
    qkv_groups: GroupFormat | None
    q_b_groups: GroupFormat | None
    o_groups: GroupFormat | None
    up_groups: GroupFormat | None
    down_groups: GroupFormat | None
    experts: ExpertsSpec | None

class Rope:
    frequencies: list[float]
    attention_factor: float
    axes: list[int]

class ProjectionSpec:
    def __init__(
        self,
        *,
        name: str,
        width: int,
        output: int,
        norm: str,
        norm_size: int,
        norm_eps: float,
        inner: int,
        activation: str,
    ) -> None: ...

class ModelSpec:
    vocab_size: int
    num_outputs: int
    has_int8_cache: bool
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: list[LayerSpec]
    ropes: list[Rope]
    is_causal: bool
    num_positions: int
    position_offset: int
    num_token_types: int
    has_embed_norm: bool
    norm_eps: float
    is_gated: bool
    attention_scale: float
    attention_soft_cap: float
    has_sinks: bool
    has_output_gate: bool
    has_value_norm: bool
    has_qk_weights: bool
    per_layer_size: int
    has_layer_scales: bool
    swiglu_limit: float
    swiglu_alpha: float
    final_soft_cap: float
    latent: LatentSpec | None
    embedding_multiplier: float
    residual_multiplier: float
    logits_divisor: float
    joins_hidden: bool
    has_head: bool
    has_last_norm: bool
    projections: list[ProjectionSpec]
    num_cross_keys: int
    @property
    def cross_bytes(self) -> int: ...
    @property
    def tile_bytes(self) -> list[int]: ...
    tied_head: bool
    element: str
    def sizes(self) -> tuple[int, int, int, tuple[int, int, int], int]: ...
    def set_norm(self, name: str, /) -> None: ...
    def set_norm_placement(self, name: str, /) -> None: ...
    def set_qk_norm(self, name: str, /) -> None: ...
    def set_quantization(self, name: str, /) -> None: ...
    def set_activation(self, name: str, /) -> None: ...

class Model:
    def __init__(
        self,
        spec: ModelSpec,
        path: str,
        num_threads: int,
        file: int | None = None,
        is_published: bool = False,
        is_copied: bool = False,
    ) -> None: ...
    def publish(self) -> bool: ...
    @property
    def packed_bytes(self) -> NDArray[np.uint8]: ...
    def vector_bytes(self) -> bytes: ...
    def set_num_threads(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...
    def load(
        self,
        name: str,
        dtype: str,
        tensor: NDArray[Any],
        scales: FloatArray | None,
        is_mapped: bool,
    ) -> bool: ...
    def load_groups(
        self,
        name: str,
        numbers: NDArray[np.uint8],
        scales: NDArray[Any],
        offsets: NDArray[Any] | None,
    ) -> bool: ...
    def load_halves(
        self,
        name: str,
        blocks: NDArray[np.uint8],
        run: int,
        scales: NDArray[Any],
        offsets: NDArray[Any] | None,
    ) -> bool: ...
    def add_adapter(
        self,
        adapter_id: int,
        low_rank: dict[str, tuple[FloatArray, FloatArray]],
        whole: dict[str, FloatArray],
    ) -> None: ...
    def remove_adapter(self, adapter_id: int) -> None: ...
    def allocate_kv(self, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None: ...
    def forward(
        self,
        batch: Batch,
        outputs: FloatArray,
        hidden: FloatArray | None,
        first_layer: int = 0,
        end_layer: int = 0,
    ) -> None: ...
    def project(self, name: str, x: FloatArray, out: FloatArray) -> None: ...
    def pack_memory(self, rows: FloatArray, out: NDArray[np.uint8]) -> None: ...
    def embed(self, token_ids: IntArray, out: FloatArray) -> None: ...
    def logits(self, hidden: FloatArray, out: FloatArray) -> None: ...
    @property
    def kv_bytes(self) -> NDArray[np.uint8]: ...
    @property
    def state_bytes(self) -> NDArray[np.uint8]: ...
    @property
    def slot_bytes(self) -> NDArray[np.uint8]: ...
    def expert_loads(self) -> list[tuple[list[int], int]]: ...
    def expert_balance(self) -> tuple[float, float]: ...
    def seconds(self) -> dict[str, float]: ...
