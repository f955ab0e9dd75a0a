"""The tensors that a model needs: Weft's name, the checkpoint's name, the shape, and the selected rows.

Weft's names are listed at `weft.model.weights.Weights`; a classifier also has `head.dense`, `head.norm` and
`head.labels`.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from weft.model.families.names import HEADS, LLAMA, DecoderNames, Names
from weft.model.files.stored_forms import HEAD_NORMS, as_stored
from weft.model.files.tensor_plan import TensorPlan
from weft.model.pooling import HeadSpec
from weft.model.recurrence import Recurrence
from weft.model.spec import ExpertsSpec, LatentSpec, LayerSpec, ModelSpec, NormPlacement, QkNorm
from weft.model.switches import Activation

_NORMS = {
    NormPlacement.BEFORE: ("before",),
    NormPlacement.AFTER: ("after",),
    NormPlacement.BOTH: ("before", "after"),
    NormPlacement.PARALLEL: ("before",),
    NormPlacement.SUM: ("sum",),
}


@dataclass(frozen=True, slots=True)
class EncoderLayout:
    """Tensors of an encoder, and prefixes of tensors that are ignored if present."""

    plans: tuple[TensorPlan, ...]
    ignored: tuple[str, ...]


def decoder_layout(
    spec: ModelSpec, names: DecoderNames = LLAMA, *, prefix: str = "model."
) -> tuple[TensorPlan, ...]:
    """Returns the plans of a decoder's tensors, in the order of use. Names except the head's begin with `prefix`."""
    spelling = names.of(spec.norm_placement)
    if spec.joins_hidden:
        return tuple(_model(spec, spelling, prefix))
    embed, *plans = _model(spec, spelling, prefix)
    plans = as_stored(plans, spec, names)
    head = _whole("head", f"{names.head}.weight", spec.vocab_size, spec.hidden_size)
    if spec.embed_size is not None:
        shape = (spec.embed_size, spec.hidden_size)
        into, out = (
            _whole(name, f"{prefix}{spelling[name]}.weight", *shape)
            for name in ("project_in", "project_out")
        )
        embed = replace(embed, factor=replace(into, is_transposed=True))
        head = replace(embed, name="head", factor=out)
    heads = [head] if spec.has_head and not spec.tied_head else []
    if spec.head_bias:
        heads.append(_whole("head.bias", f"{names.head}.bias", spec.vocab_size))
    return (embed, *plans, *heads)


def shared_keys(spec: ModelSpec, names: Mapping[str, str]) -> Iterator[str]:
    """Yields the names, without their endings, of keys and values that a checkpoint may have of layers which use those
    of another layer.
    """
    for index, layer in enumerate(spec.layers):
        if layer.kv_layer is not None:
            for part in ("k", "v", "k_norm"):
                yield names["layer"].format(index) + names[part]


def encoder_layout(
    model_type: str,
    names: Names,
    prefix: str,
    spec: ModelSpec,
    head: HeadSpec | None,
    stored: Collection[str],
) -> EncoderLayout:
    """Returns the layout, with the naming scheme and the prefix of the `stored` names."""
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
    plans = [*_model(spec, spelling, prefix)]
    if head is not None:
        plans += _classifier(model_type, spec, head, prefix)
    ignored = tuple(lead + name for lead in dict.fromkeys(("", prefix)) for name in names.ignored)
    return EncoderLayout(tuple(plans), ignored if head is None else (prefix + "pooler.",))


def _model(spec: ModelSpec, names: Mapping[str, str], prefix: str) -> Iterator[TensorPlan]:
    """Yields the plans of all tensors except a head's."""
    if spec.joins_hidden:
        for name in ("join_embed_norm", "join_hidden_norm"):
            yield from _norm(name, prefix + names[name], spec)
        lead, hidden = prefix + names["join"], spec.hidden_size
        yield _whole("join", f"{lead}.weight", hidden, 2 * hidden)
    tables = {
        "embed": 0 if spec.joins_hidden else spec.vocab_size,
        "positions": spec.num_positions,
        "token_types": spec.num_token_types,
    }
    for name, rows in tables.items():
        if rows:
            yield _whole(name, f"{prefix}{names[name]}.weight", rows, spec.hidden_size)
    if spec.per_layer_size:
        yield from _layer_inputs(spec, names, prefix)
    if spec.has_embed_norm:
        yield from _norm("embed_norm", prefix + names["embed_norm"], spec)
    for index, (layer, leads) in enumerate(zip(spec.layers, _leads(spec, names), strict=True)):
        yield from _layer(spec, layer, index, names, *(prefix + lead for lead in leads))
    if spec.norm_placement is not NormPlacement.SUM:
        yield from _norm("norm", prefix + names["norm"], spec)


def _leads(spec: ModelSpec, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the prefixes of the tensors of each layer's two parts, which in some checkpoints are layers themselves."""
    second, number = names.get("second_layer"), 0
    for layer in spec.layers:
        lead = names["layer"].format(number)
        number += 1
        if second is None or not layer.has_mlp:
            yield lead, lead
        else:
            yield lead, second.format(number)
            number += 1


def _layer(
    spec: ModelSpec,
    layer: LayerSpec,
    index: int,
    names: Mapping[str, str],
    source: str,
    second: str,
) -> Iterator[TensorPlan]:
    ours = f"layers.{index}."
    if layer.recurrence is not None:
        yield from _recurrence(spec, layer.recurrence, ours, source, names)
    if layer.conv_width:
        yield from _convolution(spec, layer.conv_width, ours, source, names)
    if layer.has_attention:
        yield from _attention(spec, layer, ours, source, names)
    if spec.num_cross_keys:
        yield from _cross_attention(spec, ours, source, names)
    if layer.experts is not None:
        yield from _experts(spec, layer.experts, ours, second, names)
    elif layer.has_mlp:
        yield from _mlp(spec, layer, ours, second, names)
    for place in _NORMS[spec.norm_placement]:
        for part in ("attention", "mlp"):
            name = f"{part}_norm_{place}"
            if layer.has_attention_norm if part == "attention" else layer.has_mlp:
                lead = source if part == "attention" else second
                yield from _norm(ours + name, lead + names[name], spec)
    yield from _layer_input(spec, ours, source, names)


def _layer_input(
    spec: ModelSpec, ours: str, source: str, names: Mapping[str, str]
) -> Iterator[TensorPlan]:
    """Yields what adds a layer's own input to its result, and the factor of both."""
    if spec.per_layer_size:
        hidden, size = spec.hidden_size, spec.per_layer_size
        shapes = {"input.gate": (size, hidden), "input.down": (hidden, size)}
        yield from _products(ours, source, names, shapes, False)
        yield from _norm(f"{ours}input.norm", source + names["input.norm"], spec)
    if spec.has_layer_scales:
        yield _whole(f"{ours}scale", source + names["scale"], 1)


def _layer_inputs(spec: ModelSpec, names: Mapping[str, str], prefix: str) -> Iterator[TensorPlan]:
    """Yields the tensors from which the inputs of all layers are made."""
    size = len(spec.layers) * spec.per_layer_size
    for name, *shape in (
        ("inputs.embed", spec.vocab_size, size),
        ("inputs.join", size, spec.hidden_size),
        ("inputs.norm", spec.per_layer_size),
    ):
        yield _whole(name, f"{prefix}{names[name]}.weight", *shape)


def _attention(
    spec: ModelSpec, layer: LayerSpec, ours: str, source: str, names: Mapping[str, str]
) -> Iterator[TensorPlan]:
    size, kv_size = spec.heads_of(layer)[1], spec.kv_size_of(layer)
    hidden, q_size = spec.hidden_size, spec.num_heads * size
    if spec.latent is not None:
        yield from _latent(spec, spec.latent, ours, source, names)
    else:
        q_rows = 2 * q_size if spec.has_output_gate else q_size
        qkv = {"q": (q_rows, hidden)}
        if layer.stores_kv:
            qkv |= {"k": (kv_size, hidden)}
        if layer.stores_kv and layer.has_value_matrix:
            qkv |= {"v": (kv_size, hidden)}
        plans = _products(ours, source, names, qkv, spec.qkv_bias)
        yield from (p for p in plans if spec.has_key_bias or p.name != f"{ours}k.bias")
        if layer.stores_kv and not layer.has_value_matrix:
            of_keys = {**names, "v": names["k"]}
            yield from _products(ours, source, of_keys, {"v": (kv_size, hidden)}, spec.qkv_bias)
    output = {"o": (hidden, spec.output_size_of(layer))}
    yield from _products(ours, source, names, output, spec.o_bias)
    if spec.has_sinks:
        yield _whole(f"{ours}sinks", source + names["sinks"], spec.num_heads)
    if spec.qk_norm is not QkNorm.NONE and spec.has_qk_weights and layer.has_qk_norm:
        is_whole = spec.qk_norm in (QkNorm.FULL, QkNorm.HEAD_LAYER)
        heads = (spec.num_heads, spec.num_kv_heads) if is_whole else (1, 1)
        for name, count in zip(HEAD_NORMS, heads, strict=True):
            if name == "q_norm" or layer.stores_kv:
                plan = _whole(ours + name, f"{source}{names[name]}.weight", count * size)
                has_rows = spec.qk_norm is QkNorm.HEAD_LAYER  # one for each head
                yield replace(plan, stack=count) if has_rows else plan


def _cross_attention(
    spec: ModelSpec, ours: str, source: str, names: Mapping[str, str]
) -> Iterator[TensorPlan]:
    """Yields the queries and the output; the tower has the keys and values."""
    size, hidden = spec.num_heads * spec.head_dim, spec.hidden_size
    yield from _products(ours, source, names, {"cross_q": (size, hidden)}, spec.qkv_bias)
    yield from _products(ours, source, names, {"cross_o": (hidden, size)}, spec.o_bias)
    yield from _norm(f"{ours}cross_norm", source + names["cross_norm"], spec)


def _latent(
    spec: ModelSpec, latent: LatentSpec, ours: str, source: str, names: Mapping[str, str]
) -> Iterator[TensorPlan]:
    hidden, rank = spec.hidden_size, latent.query_rank
    queries = spec.num_heads * latent.query_size
    if rank is None:
        yield from _products(ours, source, names, {"q": (queries, hidden)}, False)
    else:
        yield from _products(ours, source, names, {"q_a": (rank, hidden)}, spec.qkv_bias)
        yield _whole(f"{ours}q_a_norm", f"{source}{names['q_a_norm']}.weight", rank)
        yield from _products(ours, source, names, {"q_b": (queries, rank)}, False)
    yield from _products(ours, source, names, {"kv_a": (spec.head_dim, hidden)}, spec.qkv_bias)
    yield _whole(f"{ours}kv_a_norm", f"{source}{names['kv_a_norm']}.weight", latent.rank)
    heads = spec.num_heads * (latent.key_size + latent.value_size)
    yield from _products(ours, source, names, {"kv_b": (heads, latent.rank)}, False)


def _convolution(
    spec: ModelSpec, width: int, ours: str, source: str, names: Mapping[str, str]
) -> Iterator[TensorPlan]:
    hidden = spec.hidden_size
    yield from _products(ours, source, names, {"conv_in": (3 * hidden, hidden)}, spec.conv_bias)
    lead = source + names["conv"]
    yield from _channels(hidden, width, ours, lead)
    if spec.conv_bias:
        yield _whole(f"{ours}conv.bias", f"{lead}.bias", hidden)
    yield from _products(ours, source, names, {"conv_out": (hidden, hidden)}, spec.conv_bias)


def _recurrence(
    spec: ModelSpec, kind: Recurrence, ours: str, source: str, names: Mapping[str, str]
) -> Iterator[TensorPlan]:
    into = {name: (rows, spec.hidden_size) for name, rows in kind.products.items()}
    yield from _products(ours, source, names, into, kind.has_bias)
    yield from _channels(kind.conv_size, kind.conv_width, ours, source + names["conv"])
    if kind.has_conv_bias:
        yield _whole(f"{ours}conv.bias", f"{source}{names['conv']}.bias", kind.conv_size)
    for name, shape in kind.vectors.items():
        plan = _whole(ours + name, source + names[name], math.prod(shape))
        yield replace(plan, flattened=shape) if len(shape) > 1 else plan
    out = {kind.out: (spec.hidden_size, kind.inner_size)}
    yield from _products(ours, source, names, out, kind.has_bias)


def _channels(channels: int, width: int, ours: str, lead: str) -> Iterator[TensorPlan]:
    """Yields the plan of a short convolution's weights; the file has a matrix with one row for each channel."""
    yield replace(_whole(f"{ours}conv", f"{lead}.weight", channels, width), stack=channels)


def _mlp(
    spec: ModelSpec, layer: LayerSpec, ours: str, source: str, names: Mapping[str, str]
) -> Iterator[TensorPlan]:
    hidden, inner = spec.hidden_size, spec.mlp_size(layer)
    up = dict.fromkeys(("gate", "up") if spec.is_gated else ("up",), (inner, hidden))
    yield from _products(ours, source, names, up, spec.mlp_bias)
    yield from _products(ours, source, names, {"down": (hidden, inner)}, spec.mlp_bias)
    if spec.activation is Activation.XIELU:
        for part in ("positive", "negative", "linear"):
            yield _whole(f"{ours}xielu_{part}", source + names[f"xielu_{part}"], 1)


def _experts(
    spec: ModelSpec, experts: ExpertsSpec, ours: str, source: str, names: Mapping[str, str]
) -> Iterator[TensorPlan]:
    hidden, inner, shared = spec.hidden_size, experts.inner_size, experts.shared_size
    up = ("gate", "up") if spec.is_gated else ("up",)
    router = {"router": (experts.count, hidden)}
    yield from _products(ours, source, names, router, experts.has_bias)
    if experts.has_correction:
        theirs = source + names["router_correction"]
        yield _whole(f"{ours}router_correction", theirs, experts.count)
    if experts.has_norms:
        for name in ("shared_norm", "expert_norm_before", "expert_norm_after"):
            yield from _norm(ours + name, source + names[name], spec)
        yield _whole(f"{ours}router_norm", source + names["router_norm"], hidden)
        yield _whole(f"{ours}router_scales", source + names["router_scales"], experts.count)
    if experts.weighs_shared:
        yield _whole(f"{ours}shared_gate", f"{source}{names['shared_gate']}.weight", 1, hidden)
    if shared:
        shapes = {**dict.fromkeys(up, (shared, hidden)), "down": (hidden, shared)}
        own = {part: names[f"shared.{part}"] for part in shapes}
        yield from _products(ours, source, own, shapes, False)
    shapes, own = {}, {}
    for number in range(experts.count):
        lead = f"experts.{number}."
        shapes |= dict.fromkeys((lead + part for part in up), (inner, hidden))
        shapes[f"{lead}down"] = (hidden, inner)
        own |= {lead + p: names[f"expert_{p}"].format(number) for p in (*up, "down")}
    is_stacked = "{}" not in names["expert_down"]
    for plan in _products(ours, source, own, shapes, experts.has_bias):
        yield replace(plan, stack=experts.count) if is_stacked else plan


def _products(
    ours: str,
    source: str,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, int]],
    has_bias: bool,
) -> Iterator[TensorPlan]:
    """Yields the plans of linear layers; layers that share a tensor follow each other in it, in the given order."""
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


def _classifier(
    model_type: str, spec: ModelSpec, head: HeadSpec, prefix: str
) -> Iterator[TensorPlan]:
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


def _norm(ours: str, source: str, spec: ModelSpec) -> Iterator[TensorPlan]:
    yield _whole(ours, f"{source}.weight", spec.hidden_size)
    if spec.norm_bias:
        yield _whole(f"{ours}.bias", f"{source}.bias", spec.hidden_size)


def _whole(name: str, source: str, *shape: int) -> TensorPlan:
    return TensorPlan(name, source, shape, 0, shape[0])
