"""`ReferenceRunner`: the complete decoder spec in float32 numpy, with which every other runner is compared.

A step computes embeddings, then attention and MLP of each layer around a residual stream, then the head. A row's logits
have the same bits whatever else is in the step; `tiles` and `attention` explain how.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic import tiles
from weft.compute.arithmetic.activations import sigmoid
from weft.compute.arithmetic.attention import AttentionPlan, attend, plan_attention
from weft.compute.arithmetic.convolution import ConvPlan, convolve, plan_convolution
from weft.compute.arithmetic.grouped import layer_formats, stored_groups
from weft.compute.arithmetic.int8 import rounded_heads
from weft.compute.host_blocks import HostBlocks
from weft.compute.protocols.runner import AdapterStore, Batch, FloatArray, IntArray, Memory
from weft.compute.protocols.tower import TowerInputs, as_embeddings
from weft.compute.reference.adapters import AdapterRows, AdapterSet
from weft.compute.reference.decoder_weights import DecoderLayer, DecoderReader
from weft.compute.reference.latent import LatentHeads
from weft.compute.reference.parts import Norm, plain_norm, temperatures, turned_heads
from weft.compute.reference.products import Product
from weft.compute.reference.recurrent import RecurrentLayer, advance
from weft.compute.reference.tower import ReferenceTower
from weft.compute.rope import inverse_frequencies, rotations, section_axes
from weft.model.lora import Adapter
from weft.model.spec import LayerSpec, ModelSpec, NormPlacement, RopeSpec
from weft.model.weights import Weights

Rotations = dict[RopeSpec, tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True)
class _Step:
    """Data of one step that every layer needs."""

    batch: Batch
    slots: IntArray
    rotations: Rotations
    plans: dict[tuple[int | None, ...], AttentionPlan]  # by `_sight` of a layer
    conv_plans: dict[int, ConvPlan]  # by width of the convolution
    adapters: AdapterRows


class ReferenceRunner(HostBlocks):
    """Loaded weights and a float32 KV pool; with `kv_cache_dtype` "int8" the pool's numbers are quantized to int8.

    `max_model_len` matters only for rope with different frequencies for long contexts.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        *,
        max_model_len: int,
        quantization: str | None = None,
        kv_cache_dtype: str = "auto",
    ) -> None:
        self.vocab_size = spec.vocab_size
        self.spec = spec
        self._adapters = AdapterSet()
        stored = {name: form for name, (_, form) in stored_groups(weights).items()}
        formats = layer_formats(spec, stored, quantization)
        reader = DecoderReader(spec, weights, is_int8=quantization is not None, formats=formats)
        self._embed = reader.matrix("embed") if "embed" in weights else None
        self._join = reader.join() if spec.joins_hidden else None
        self._positions = reader.matrix("positions") if spec.num_positions else None
        self._inputs = reader.layer_inputs() if spec.per_layer_size else None
        self._layers = [reader.layer(i, layer) for i, layer in enumerate(spec.layers)]
        self._norm = reader.optional_norm("norm")
        self._head: Product | None = None
        if spec.has_head:
            self._head = reader.linear("", "embed" if spec.tied_head else "head")
        ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
        self._frequencies = {rope: inverse_frequencies(rope, max_model_len) for rope in ropes}
        self._axes = None  # by rotary pair: which of a row's three positions turns it
        if spec.rope_sections is not None:
            self._axes = section_axes(
                spec.rope_sections, is_interleaved=spec.has_interleaved_sections
            )
        self._tower = None if spec.tower is None else ReferenceTower(spec.tower, weights)
        self._has_int8_cache = kv_cache_dtype == "int8"
        self._block_size = 0
        self._pool = np.zeros(0, np.float32)
        self._pools: dict[int, FloatArray] = {}  # by layer with attention
        self._states: list[FloatArray] = []
        self._slots: list[FloatArray] = []

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        """Allocates the pool, and state slots beside it.

        Each layer has a view of the pool, [keys and values, slots, kv heads, head_dim]; layers that attend to the keys
        of another layer share its view.
        """
        spec, num_slots = self.spec, num_blocks * block_size
        self._block_size = block_size
        self._pool = np.zeros(spec.kv_elements * num_slots, np.float32)
        self._pools = {}
        start = 0
        for index, layer in enumerate(spec.layers):
            if layer.kv_layer is not None:
                self._pools[index] = self._pools[layer.kv_layer]
            elif layer.stores_kv:
                shape = (spec.kv_parts, num_slots, *spec.heads_of(layer))
                end = start + math.prod(shape)
                self._pools[index] = self._pool[start:end].reshape(shape)
                start = end
        self._states = [
            np.zeros((num_blocks, layer.conv_width - 1, spec.hidden_size), np.float32)
            for layer in spec.layers
            if layer.conv_width
        ]
        self._slots = [
            np.zeros((num_state_slots, layer.recurrence.state_size), np.float32)
            for layer in spec.layers
            if layer.recurrence
        ]

    @property
    def kv_layout(self) -> str:
        """Name of the pool's layout: numbers in numpy's order."""
        return f"reference-1 {'int8' if self._has_int8_cache else 'float32'}"

    def _pool_parts(self) -> list[FloatArray]:
        spec = self.spec
        pools = [
            self._pools[index].reshape(spec.kv_parts, -1, self._block_size, *spec.heads_of(layer))
            for index, layer in enumerate(spec.layers)
            if layer.stores_kv
        ]
        return [*pools, *(states[None] for states in self._states)]

    def _slot_parts(self) -> list[FloatArray]:
        return [slots[None] for slots in self._slots]

    @property
    def adapters(self) -> AdapterStore:
        return self

    def add_adapter(self, adapter_id: int, adapter: Adapter) -> None:
        self._adapters.add(adapter_id, adapter)

    def remove_adapter(self, adapter_id: int) -> None:
        self._adapters.remove(adapter_id)

    def encode(self, inputs: TowerInputs) -> FloatArray:
        assert self._tower is not None, "the spec has a tower"
        return as_embeddings(self._tower.encode(inputs), self.spec)

    def remember(self, columns: FloatArray) -> Memory:
        assert self._tower is not None, "the spec has a tower"
        rows = self._tower.encode(TowerInputs(columns, [(1, len(columns), 1)]))
        return rows.reshape(self.empty_memory().shape)

    def empty_memory(self) -> Memory:
        spec = self.spec
        shape = (spec.num_cross_keys, len(spec.layers), 2, spec.num_kv_heads, spec.head_dim)
        return np.zeros(shape, np.float32)

    def forward(self, batch: Batch) -> FloatArray:
        """Returns logits of the wanted rows, [wanted, vocab]; hidden states for a model without a head."""
        with np.errstate(all="ignore"):  # an overflow becomes NaN, only in its own row
            rows = _normed(self._norm, self._run_layers(batch)[batch.logit_rows])
            return self._logits(rows, self._adapters.of_logits(batch))

    def forward_hidden(self, batch: Batch) -> tuple[FloatArray, FloatArray]:
        with np.errstate(all="ignore"):
            rows = _normed(self._norm, self._run_layers(batch)[: len(batch.token_ids)])
            adapters = self._adapters.of_logits(batch)
            return self._logits(rows[batch.logit_rows], adapters), rows

    def embed(self, token_ids: IntArray) -> FloatArray:
        assert self._embed is not None
        rows: FloatArray = self._embed[token_ids]
        return rows

    def logits(self, hidden: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            return self._logits(hidden, AdapterRows(()))

    def _run_layers(self, batch: Batch) -> FloatArray:
        spec = self.spec
        shapes = {_sight(layer): layer for layer in spec.layers if layer.has_attention}
        widths = {layer.conv_width for layer in spec.layers if layer.conv_width}
        step = _Step(
            batch=batch,
            slots=batch.slots,
            rotations={
                rope: rotations(rope, frequencies, self._rope_positions(batch))
                for rope, frequencies in self._frequencies.items()
            },
            plans={
                sight: plan_attention(
                    spec.at(layer), batch, self._block_size, layer.window, layer.chunk
                )
                for sight, layer in shapes.items()
            },
            conv_plans={w: plan_convolution(batch, self._block_size, w) for w in widths},
            adapters=self._adapters.of_rows(batch),
        )
        hidden = self._entering(batch, step.adapters)
        if self._positions is not None:
            hidden += self._positions[batch.positions + spec.position_offset]
        hidden = tiles.pad_rows(hidden)  # [whole tiles of rows, hidden]
        hidden *= np.float32(spec.embedding_multiplier)
        inputs = None if self._inputs is None else self._inputs(batch.token_ids, hidden)
        is_parallel = spec.norm_placement is NormPlacement.PARALLEL
        residual_scale = np.float32(spec.residual_multiplier)
        states, slots = iter(self._states), iter(self._slots)
        for index, layer in enumerate(self._layers):
            rows = _normed(layer.attention_norm_before, hidden)
            rows = self._mixed(index, layer, (states, slots), rows, step)
            entering = hidden
            hidden = hidden + _normed(layer.attention_norm_after, rows) * residual_scale
            hidden = _normed(layer.attention_norm_sum, hidden)
            if layer.cross is not None:
                hidden = hidden + layer.cross(hidden, index, batch)
            if layer.mlp is not None or layer.experts is not None:
                rows = _normed(layer.mlp_norm_before, entering if is_parallel else hidden)
                rows = self._mlp(layer, rows, hidden, step.adapters)
                hidden = hidden + _normed(layer.mlp_norm_after, rows) * residual_scale
                hidden = _normed(layer.mlp_norm_sum, hidden)
            if layer.input is not None and inputs is not None:
                hidden = layer.input(hidden, inputs[:, index])
            if layer.scale is not None:
                hidden = hidden * layer.scale
            if batch.deep_embeds is not None and index < len(batch.deep_embeds):
                hidden[batch.embed_rows] += batch.deep_embeds[index]
        return hidden

    def _mixed(
        self,
        index: int,
        layer: DecoderLayer,
        stored: tuple[Iterator[FloatArray], Iterator[FloatArray]],
        rows: FloatArray,
        step: _Step,
    ) -> FloatArray:
        """Returns the result of attention, or of what replaces it. `stored` are states of convolutions and slots."""
        (states, slots), beside = stored, None
        if layer.recurrent is not None:
            beside = self._recurrence(layer, layer.recurrent, next(slots), rows, step)
            if not layer.spec.is_beside:
                return beside
        elif layer.conv is not None:
            return self._convolution(layer, layer.conv, next(states), rows, step)
        if layer.latent is not None:
            return self._latent_attention(layer, layer.latent, self._pools[index], rows, step)
        attended = self._attention(layer, self._pools[index], rows, step)
        return attended if beside is None else attended + beside

    def _rope_positions(self, batch: Batch) -> IntArray:
        if self._axes is None or batch.rope_positions is None:
            return batch.positions
        return batch.rope_positions[:, self._axes]

    def _entering(self, batch: Batch, adapters: AdapterRows) -> FloatArray:
        if self._join is not None:
            assert batch.embeds is not None, "all rows are joined"
            return self._join(batch.embeds)
        assert self._embed is not None
        hidden = adapters.embed(self._embed[batch.token_ids], batch.token_ids)
        if batch.embed_rows is not None:
            hidden[batch.embed_rows] = batch.embeds
        return hidden

    def _attention(
        self, layer: DecoderLayer, pool: FloatArray, rows: FloatArray, step: _Step
    ) -> FloatArray:
        spec, num_rows = layer.model, len(step.slots)
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.kv_size
        k_start = 2 * q_size if spec.has_output_gate else q_size
        parts = [("q", 0), ("k", k_start), ("v", k_start + kv_size)]
        parts = parts if layer.spec.stores_kv else parts[:1]
        qkv = step.adapters.add(layer.qkv(rows), rows, layer.prefix, parts)[:num_rows]
        queries, kv = qkv[:, :k_start], qkv[:, k_start:]
        pairs = queries.reshape(num_rows, spec.num_heads, -1)  # each query is followed by its gate
        rotation = None if layer.spec.rope is None else step.rotations[layer.spec.rope]
        q = pairs[:, :, : spec.head_dim].reshape(num_rows, q_size)
        q = turned_heads(spec, layer.q_norm, q, rotation)
        if layer.spec.stores_kv:
            k = turned_heads(spec, layer.k_norm, kv[:, :kv_size], rotation)
            v = kv[:, kv_size:].reshape(num_rows, -1, spec.head_dim)
            if spec.has_value_norm:
                v = plain_norm(spec)(v)
            if self._has_int8_cache:
                k, v = rounded_heads(k), rounded_heads(v)
            # All rows are written before any row reads: a row may attend to other rows of the same step.
            pool[0, step.slots], pool[1, step.slots] = k, v
        if layer.spec.temperature is not None:
            q = q * temperatures(layer.spec.temperature, step.batch.positions)[:, None, None]
        plan = step.plans[_sight(layer.spec)]
        output = attend(spec, plan, q, pool[0], pool[1], layer.sinks)
        if spec.has_output_gate:
            output = output * sigmoid(pairs[:, :, spec.head_dim :].reshape(num_rows, q_size))
        output = tiles.pad_rows(output)
        return step.adapters.add(layer.o(output), output, layer.prefix, (("o", 0),))

    def _latent_attention(
        self,
        layer: DecoderLayer,
        heads: LatentHeads,
        pool: FloatArray,
        rows: FloatArray,
        step: _Step,
    ) -> FloatArray:
        rope = layer.spec.rope
        assert rope is not None
        num_rows, latent = len(step.slots), heads.spec
        first = latent.query_rank or self.spec.num_heads * latent.query_size
        parts = (("q_a" if layer.q_b else "q", 0), ("kv_a", first))
        whole = step.adapters.add(layer.qkv(rows), rows, layer.prefix, parts)
        queries, vectors = whole[:, :first], whole[:num_rows, first:]
        if layer.q_b is not None and heads.query_norm is not None:
            low = heads.normed(queries, heads.query_norm)
            queries = step.adapters.add(layer.q_b(low), low, layer.prefix, (("q_b", 0),))
        cosine, sine = step.rotations[rope]
        pool[0, step.slots] = heads.cached(vectors, cosine, sine)
        q = heads.queries(queries[:num_rows], cosine, sine)
        plan = step.plans[_sight(layer.spec)]
        attended = attend(self.spec, plan, q, pool[0], pool[0])
        output = tiles.pad_rows(heads.values(attended))
        return step.adapters.add(layer.o(output), output, layer.prefix, (("o", 0),))

    def _convolution(
        self,
        layer: DecoderLayer,
        weights: FloatArray,
        states: FloatArray,
        rows: FloatArray,
        step: _Step,
    ) -> FloatArray:
        hidden = self.spec.hidden_size
        parts = step.adapters.add(layer.qkv(rows), rows, layer.prefix, (("conv_in", 0),))
        parts = parts[: len(step.slots)]
        products = parts[:, :hidden] * parts[:, 2 * hidden :]
        plan = step.conv_plans[layer.spec.conv_width]
        total = convolve(plan, products, states, weights, layer.conv_bias)
        output = tiles.pad_rows(parts[:, hidden : 2 * hidden] * total)
        return step.adapters.add(layer.o(output), output, layer.prefix, (("conv_out", 0),))

    def _recurrence(
        self,
        layer: DecoderLayer,
        net: RecurrentLayer,
        states: FloatArray,
        rows: FloatArray,
        step: _Step,
    ) -> FloatArray:
        made = layer.recurrent_in(rows)
        if net.unrounded is not None:
            made = np.concatenate([made, net.unrounded(rows)], axis=1)
        made = step.adapters.add(made, rows, layer.prefix, net.parts)[: len(step.slots)]
        output = tiles.pad_rows(advance(net.recurrence, step.batch, states, made))
        return step.adapters.add(layer.recurrent_out(output), output, layer.prefix, ((net.out, 0),))

    def _mlp(
        self, layer: DecoderLayer, rows: FloatArray, hidden: FloatArray, adapters: AdapterRows
    ) -> FloatArray:
        """Returns the result of MLP or experts for normed `rows`; `hidden` are the rows before their norm."""
        result = None
        if layer.mlp is not None:
            inner = self.spec.mlp_size(layer.spec)
            parts = (("gate", 0), ("up", inner)) if self.spec.is_gated else (("up", 0),)
            up = adapters.add(layer.mlp.up(rows), rows, layer.prefix, parts)
            middle = layer.mlp.middle(up)
            down = layer.mlp.down(middle)
            result = adapters.add(down, middle, layer.prefix, (("down", 0),))
        if layer.experts is not None and layer.experts.norms is not None:
            assert result is not None
            result = layer.experts.beside(hidden, result)
        elif layer.experts is not None:
            result = layer.experts(rows, result)
        assert result is not None
        return result

    def _logits(self, rows: FloatArray, adapters: AdapterRows) -> FloatArray:
        if self._head is None:
            return rows
        normed = tiles.pad_rows(rows)
        logits = adapters.head(self._head(normed), normed)[: len(rows)]
        logits /= np.float32(self.spec.logits_divisor)
        if self.spec.final_soft_cap is not None:
            cap = np.float32(self.spec.final_soft_cap)
            logits = np.tanh(logits / cap) * cap
        return logits


def _sight(layer: LayerSpec) -> tuple[int | None, ...]:
    """Returns what decides which keys a layer's rows attend to, and how they are divided into pieces of work."""
    return layer.window, layer.chunk, layer.num_kv_heads


def _normed(norm: Norm | None, rows: FloatArray) -> FloatArray:
    return rows if norm is None else norm(rows)
