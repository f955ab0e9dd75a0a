"""Which tensors a decoder needs: Weft's name, the checkpoint's name, the shape and the rows to take."""

from collections.abc import Iterator
from dataclasses import dataclass

from weft.model.spec import DecoderSpec, NormPlacement, QkNorm


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """`name` is rows [start, start + shape[0]) of the checkpoint's `source`, which has `rows` rows."""

    name: str
    source: str
    shape: tuple[int, ...]
    start: int
    rows: int

    @property
    def source_shape(self) -> tuple[int, ...]:
        """The shape of the whole source tensor."""
        return (self.rows, *self.shape[1:])


def decoder_layout(
    spec: DecoderSpec, *, prefix: str = "model.", fused_projections: bool = False
) -> tuple[TensorPlan, ...]:
    """Every tensor of `spec`, in the order of use. `prefix` leads the names of all but the head."""
    hidden = spec.hidden_size
    plans = [_whole("embed", f"{prefix}embed_tokens.weight", spec.vocab_size, hidden)]
    for layer in range(len(spec.layers)):
        plans.extend(_layer(spec, layer, f"{prefix}layers.{layer}.", fused_projections))
    plans.append(_whole("norm", f"{prefix}norm.weight", hidden))
    if spec.has_head and not spec.tied_head:
        plans.append(_whole("head", "lm_head.weight", spec.vocab_size, hidden))
    return tuple(plans)


def _whole(name: str, source: str, *shape: int) -> TensorPlan:
    return TensorPlan(name, source, shape, 0, shape[0])


def _layer(spec: DecoderSpec, layer: int, source: str, fused: bool) -> Iterator[TensorPlan]:
    ours = f"layers.{layer}."
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.kv_size
    hidden, inner = spec.hidden_size, spec.intermediate_size
    qkv = (("q", q_size), ("k", kv_size), ("v", kv_size))
    yield from _projections(ours, source + "self_attn.", qkv, hidden, "qkv_proj" if fused else None)
    if spec.qkv_bias:
        for name, size in qkv:
            yield _whole(f"{ours}{name}.bias", f"{source}self_attn.{name}_proj.bias", size)
    yield _whole(f"{ours}o", f"{source}self_attn.o_proj.weight", hidden, q_size)
    if spec.o_bias:
        yield _whole(f"{ours}o.bias", f"{source}self_attn.o_proj.bias", hidden)
    gate_up = (("gate", inner), ("up", inner))
    yield from _projections(
        ours, source + "mlp.", gate_up, hidden, "gate_up_proj" if fused else None
    )
    yield _whole(f"{ours}down", f"{source}mlp.down_proj.weight", hidden, inner)
    if spec.mlp_bias:
        for name, size in (*gate_up, ("down", hidden)):
            yield _whole(f"{ours}{name}.bias", f"{source}mlp.{name}_proj.bias", size)
    yield from _norms(spec, ours, source)


def _projections(
    ours: str, source: str, parts: tuple[tuple[str, int], ...], width: int, fused: str | None
) -> Iterator[TensorPlan]:
    total, start = sum(size for _, size in parts), 0
    for name, size in parts:
        if fused is None:
            yield _whole(ours + name, f"{source}{name}_proj.weight", size, width)
        else:
            yield TensorPlan(ours + name, f"{source}{fused}.weight", (size, width), start, total)
        start += size


def _norms(spec: DecoderSpec, ours: str, source: str) -> Iterator[TensorPlan]:
    # "post_attention_layernorm" comes before the MLP in families that normalise before only.
    names = {
        NormPlacement.BEFORE: {
            "attention_norm_before": "input_layernorm",
            "mlp_norm_before": "post_attention_layernorm",
        },
        NormPlacement.AFTER: {
            "attention_norm_after": "post_attention_layernorm",
            "mlp_norm_after": "post_feedforward_layernorm",
        },
        NormPlacement.BOTH: {
            "attention_norm_before": "input_layernorm",
            "attention_norm_after": "post_attention_layernorm",
            "mlp_norm_before": "pre_feedforward_layernorm",
            "mlp_norm_after": "post_feedforward_layernorm",
        },
    }[spec.norm_placement]
    for name, theirs in names.items():
        yield _whole(ours + name, f"{source}{theirs}.weight", spec.hidden_size)
    if spec.qk_norm is not QkNorm.NONE:
        heads = (spec.num_heads, spec.num_kv_heads) if spec.qk_norm is QkNorm.FULL else (1, 1)
        yield _whole(f"{ours}q_norm", f"{source}self_attn.q_norm.weight", heads[0] * spec.head_dim)
        yield _whole(f"{ours}k_norm", f"{source}self_attn.k_norm.weight", heads[1] * spec.head_dim)
