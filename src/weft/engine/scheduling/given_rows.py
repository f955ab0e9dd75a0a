"""Rows of a step whose input is not a token's embedding: prompt embeddings, and outputs of the tower for pictures;
and what sounds add to a step."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.compute.protocols.runner import Batch, FloatArray, IntArray
from weft.engine.scheduling.sequence import Sequence


class Span(NamedTuple):
    """Tokens `start` to `end` of a sequence, whose first row in the step is `first_row`."""

    sequence: Sequence
    start: int
    end: int
    first_row: int


class _Given(NamedTuple):
    first_row: int
    embeds: FloatArray  # [rows, hidden]
    deep_embeds: FloatArray | None  # [levels, rows, hidden]


def with_given_rows(batch: Batch, spans: Seq[Span]) -> Batch:
    """Adds to the batch the given embeddings of rows, and the RoPE positions and attention ranges that pictures
    change.
    """
    given = [rows for span in spans for rows in (*_embeds(span), *_items(span))]
    if given:
        places = [np.arange(g.first_row, g.first_row + len(g.embeds)) for g in given]
        batch = replace(
            batch,
            embed_rows=np.concatenate(places).astype(np.int32),
            embeds=np.ascontiguousarray(np.concatenate([g.embeds for g in given])),
            deep_embeds=_deep_embeds(given),
        )
    outputs = (output for span in spans for output in span.sequence.outputs.values())
    memories = [output.memory for output in outputs if output.memory is not None]
    if memories:
        batch = replace(batch, memories=memories)
    if any(span.sequence.rope is not None for span in spans):
        batch = replace(batch, rope_positions=_rope_positions(batch, spans))
    if any(span.sequence.sees_items_whole for span in spans):
        batch = replace(batch, attend_ends=_attend_ends(batch, spans))
    return batch


def _embeds(span: Span) -> Iterator[_Given]:
    """Yields the prompt embeddings of the span, with their rows in the step."""
    for embeds in span.sequence.request.prompt_embeds:
        begin, end = max(span.start, embeds.start), min(span.end, embeds.start + embeds.num_tokens)
        if begin < end:
            whole = np.frombuffer(embeds.rows, np.float32).reshape(embeds.num_tokens, -1)
            rows = whole[begin - embeds.start : end - embeds.start]
            yield _Given(span.first_row + begin - span.start, rows, None)


def _items(span: Span) -> Iterator[_Given]:
    """Yields the tower's outputs for the span, one run of adjacent rows at a time."""
    for index, item in enumerate(span.sequence.request.items):
        if not item.runs or item.end <= span.start or span.end <= item.start:
            continue
        output, done = span.sequence.outputs[index], 0
        assert output.embeds is not None, "the tower computes before the step"
        assert output.deep_embeds is not None
        for first, length in item.runs:
            run = item.start + first
            begin, end = max(span.start, run), min(span.end, run + length)
            if begin < end:
                rows = slice(done + begin - run, done + end - run)
                yield _Given(
                    span.first_row + begin - span.start,
                    output.embeds[rows],
                    output.deep_embeds[:, rows],
                )
            done += length


def _deep_embeds(given: list[_Given]) -> FloatArray | None:
    deep = [g.deep_embeds for g in given if g.deep_embeds is not None]
    if not deep or not len(deep[0]):
        return None
    nothing = np.zeros((len(deep[0]), 1, deep[0].shape[2]), np.float32)
    parts = [
        nothing.repeat(len(g.embeds), 1) if g.deep_embeds is None else g.deep_embeds for g in given
    ]
    # Backends take arrays without gaps.
    return np.ascontiguousarray(np.concatenate(parts, 1))


def _rope_positions(batch: Batch, spans: Seq[Span]) -> IntArray:
    """Returns the RoPE positions of each row: frame, row and column of a picture, [rows, 3]."""
    positions = np.repeat(batch.positions[:, None], 3, 1)
    for span in spans:
        if span.sequence.rope is None:
            continue
        of_prompt, offset = span.sequence.rope
        rows = positions[span.first_row : span.first_row + span.end - span.start]
        num_prompt = max(0, min(span.end, len(of_prompt)) - span.start)
        rows[:num_prompt] = of_prompt[span.start : span.start + num_prompt]
        rows[num_prompt:] += offset
    return positions


def _attend_ends(batch: Batch, spans: Seq[Span]) -> IntArray:
    """Returns for each row of the step the last position that it attends to, [rows]."""
    ends = batch.positions.copy()
    for span in spans:
        for item in span.sequence.request.items:
            for first, length in item.runs:
                run = item.start + first
                begin, end = max(span.start, run), min(span.end, run + length)
                if begin < end:
                    row = span.first_row - span.start
                    ends[row + begin : row + end] = run + length - 1
    return ends
