"""Which tensors an encoder needs: our name, the checkpoint's name, the shape and the rows to take.

Ours are `embed`, `positions`, `token_types`, `embed_norm`, `norm`; for layer i, `layers.i.` followed
by q, k, v, o, attention_norm, gate, up, down or mlp_norm; and of a classifier `head.dense`,
`head.norm` and `head.labels`. `.bias` follows where the spec has one.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from weft.model.encoders.names import HEADS, Names
from weft.model.encoders.spec import EncoderLayerSpec, EncoderSpec
from weft.model.layout import TensorPlan
from weft.model.pooling import HeadSpec


@dataclass(frozen=True, slots=True)
class EncoderLayout:
    """The tensors, and how names begin that may be there without being used."""

    plans: tuple[TensorPlan, ...]
    ignored: tuple[str, ...]


def encoder_layout(
    model_type: str,
    names: Names,
    prefix: str,
    spec: EncoderSpec,
    head: HeadSpec | None,
    stored: Collection[str],
) -> EncoderLayout:
    """The layout, in the spelling and below the prefix that `stored` names are written in."""
    spelling = next(
        (
            s
            for s in names.spellings
            if any(n.endswith(f"{s['embed_norm']}.weight") for n in stored)
        ),
        names.spellings[0],
    )
    if not any(name.startswith(prefix) for name in stored):
        prefix = ""
    plans = [*_encoder(spec, spelling, prefix)]
    if head is not None:
        plans += _head(model_type, spec, head, prefix)
    ignored = tuple(lead + name for lead in dict.fromkeys(("", prefix)) for name in names.ignored)
    return EncoderLayout(tuple(plans), ignored if head is None else (prefix + "pooler.",))


def _encoder(spec: EncoderSpec, names: Mapping[str, str], prefix: str) -> Iterator[TensorPlan]:
    hidden = spec.hidden_size
    yield _whole("embed", f"{prefix}{names['embed']}.weight", spec.vocab_size, hidden)
    if spec.num_positions:
        source = f"{prefix}{names['positions']}.weight"
        yield _whole("positions", source, spec.num_positions, hidden)
    if spec.num_token_types:
        source = f"{prefix}{names['token_types']}.weight"
        yield _whole("token_types", source, spec.num_token_types, hidden)
    yield from _norm("embed_norm", prefix + names["embed_norm"], spec)
    for index, layer in enumerate(spec.layers):
        yield from _layer(spec, layer, index, names, prefix + names["layer"].format(index))
    if spec.norm_before:
        yield from _norm("norm", prefix + names["norm"], spec)


def _layer(
    spec: EncoderSpec, layer: EncoderLayerSpec, index: int, names: Mapping[str, str], source: str
) -> Iterator[TensorPlan]:
    ours, hidden, inner = f"layers.{index}.", spec.hidden_size, spec.intermediate_size
    qkv = dict.fromkeys(("q", "k", "v"), (hidden, hidden))
    up = dict.fromkeys(("gate", "up") if spec.is_gated else ("up",), (inner, hidden))
    yield from _products(ours, source, names, qkv, spec.qkv_bias)
    yield from _products(ours, source, names, {"o": (hidden, hidden)}, spec.o_bias)
    yield from _products(ours, source, names, up, spec.mlp_bias)
    yield from _products(ours, source, names, {"down": (hidden, inner)}, spec.mlp_bias)
    if layer.has_attention_norm:
        yield from _norm(f"{ours}attention_norm", source + names["attention_norm"], spec)
    yield from _norm(f"{ours}mlp_norm", source + names["mlp_norm"], spec)


def _products(
    ours: str,
    source: str,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, int]],
    has_bias: bool,
) -> Iterator[TensorPlan]:
    """Parts that share one tensor lie in it in the order given."""
    starts: dict[str, int] = {}
    totals: dict[str, int] = {}
    for part, (rows, _) in shapes.items():
        totals[names[part]] = totals.get(names[part], 0) + rows
    for part, shape in shapes.items():
        name = names[part]
        start, total = starts.get(name, 0), totals[name]
        yield TensorPlan(ours + part, f"{source}{name}.weight", shape, start, total)
        if has_bias:
            yield TensorPlan(f"{ours}{part}.bias", f"{source}{name}.bias", shape[:1], start, total)
        starts[name] = start + shape[0]


def _head(model_type: str, spec: EncoderSpec, head: HeadSpec, prefix: str) -> Iterator[TensorPlan]:
    hidden = spec.hidden_size
    dense, labels = HEADS[model_type]
    if head.has_dense:
        source = prefix + dense[1:] if dense.startswith(".") else dense
        yield _whole("head.dense", f"{source}.weight", hidden, hidden)
        if head.dense_bias:
            yield _whole("head.dense.bias", f"{source}.bias", hidden)
        if head.has_norm:
            yield from _norm("head.norm", source.replace("dense", "norm"), spec)
    else:
        labels = "classifier"
    yield _whole("head.labels", f"{labels}.weight", len(head.labels), hidden)
    if head.has_bias:
        yield _whole("head.labels.bias", f"{labels}.bias", len(head.labels))


def _norm(ours: str, source: str, spec: EncoderSpec) -> Iterator[TensorPlan]:
    yield _whole(ours, f"{source}.weight", spec.hidden_size)
    if spec.norm_bias:
        yield _whole(f"{ours}.bias", f"{source}.bias", spec.hidden_size)


def _whole(name: str, source: str, *shape: int) -> TensorPlan:
    return TensorPlan(name, source, shape, 0, shape[0])
