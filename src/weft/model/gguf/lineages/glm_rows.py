"""Rows of GGUF architectures of dense GLM 4, and of ERNIE 4.5 with and without experts."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.gguf.architecture import SOFTMAX, Architecture, Metadata, need
from weft.model.gguf.names import ERNIE_EXPERTS, GLM4, NEIGHBOURS

_EXPERTS = {
    "expert_count": "moe_num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "moe_num_shared_experts",
    "interleave_moe_layer_step": "moe_layer_interval",
    "leading_dense_block_count": "moe_layer_start_index",
}


def _read_ernie(file: Metadata) -> None:
    """Reads the settings of ERNIE's experts; the size of the shared expert is that of its tensors."""
    file.said.pop("expert_shared_feed_forward_length", None)
    need(file.said, "expert_gating_func", SOFTMAX, file.where)
    need(file.said, "expert_weights_norm", True, file.where)
    need(file.said, "expert_weights_scale", 1.0, file.where)


GLM_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "chatglm": Architecture(model_type="glm", names=GLM4),
        "glm4": Architecture(model_type="glm4", names=GLM4),
        "ernie4_5": Architecture(
            model_type="ernie4_5",
            names=NEIGHBOURS,
        ),
        "ernie4_5-moe": Architecture(
            model_type="ernie4_5_moe", keys=_EXPERTS, names=ERNIE_EXPERTS, read_own=_read_ernie
        ),
    }
)
