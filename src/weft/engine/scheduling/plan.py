"""`Plan`: the contents of one step as a value, and as arrays for the runner.

`Result`: the result of each entry of a plan.
"""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeAlias, assert_never

import msgspec
import numpy as np

from weft.compute.pooler import Collected
from weft.compute.protocols.runner import Batch, FloatArray, IntArray
from weft.core.values.types import LogprobRow, PoolingKind
from weft.engine.scheduling.given_rows import Span, with_given_rows
from weft.engine.scheduling.sequence import ItemOutput, Sequence

# `map` with these getters finds the entries with rare attributes in a third of the time of a loop.
_draft_token_ids = attrgetter("draft_token_ids")
_has_extras = attrgetter("has_extras")
_samples = attrgetter("samples")
_token_type_ids = attrgetter("token_type_ids")


class PlannedRows(msgspec.Struct, frozen=True, eq=False):
    """Tokens `start .. start + num_tokens` of one sequence; `samples` if they reach its end.

    Prompt logprobs and pooling also need the model's output for the first `num_leading` rows. `draft_token_ids` are
    drafts after the last token; each takes a further row. If the sequence's last token is an accepted draft and this
    entry is its row, `draft_position` is the index of this draft, from 0.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    num_leading: int
    draft_token_ids: tuple[int, ...] = ()
    draft_position: int | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows of the step that the entry takes."""
        return self.num_tokens + len(self.draft_token_ids)

    @classmethod
    def confirming(cls, sequence: Sequence, draft_position: int) -> "PlannedRows":
        """Makes the entry for the row of the sequence's last token, which is an accepted draft."""
        start = sequence.num_tokens - 1
        return cls(sequence, start, 1, True, 0, draft_position=draft_position)

    @classmethod
    def of(cls, sequence: Sequence, start: int, num_tokens: int) -> "PlannedRows":
        """Makes the entry for the next `num_tokens` tokens from `start`."""
        end = len(sequence.token_ids) + sequence.num_pending_tokens
        samples = start + num_tokens == end
        num_leading = 0
        if sequence.reads_prompt_rows:
            num_leading = _num_leading(sequence, start, num_tokens - samples)
        return cls(sequence, start, num_tokens, samples, num_leading)


@dataclass(frozen=True, slots=True)
class Plan:
    """Contents of one step. Logits are ordered by entry: leading rows, the sampled row, rows of drafts.

    The tower computes `outputs` before the step.
    """

    entries: tuple[PlannedRows, ...]
    outputs: tuple[ItemOutput, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Number of rows of the step."""
        return sum([e.num_tokens + len(e.draft_token_ids) for e in self.entries])

    def to_batch(
        self, block_size: int, sampled_places: Mapping[Sequence, int] | None = None
    ) -> Batch:
        """Returns the step as arrays; `sampled_places` are indices of pending tokens in the sampled tokens of the
        step before.
        """
        token_ids, positions, query_starts, logit_rows = self._rows()
        sequences = [entry.sequence for entry in self.entries]
        tables = padded_tables([sequence.block_ids for sequence in sequences])
        batch = Batch(
            token_ids=token_ids,
            positions=positions,
            slots=slots_of(tables, positions, query_starts, block_size),
            query_starts=query_starts,
            prompt_lens=np.array([s.num_prompt_tokens for s in sequences], np.int32),
            block_tables=tables,
            logit_rows=logit_rows,
        )
        if any(map(_has_extras, sequences)):
            batch = self._with_extras(batch)
        if sequences[0].state_slot is not None:
            batch = self._with_states(batch)
        if any(map(_draft_token_ids, self.entries)):
            num_rows = [entry.num_tokens for entry in self.entries]
            batch = replace(batch, num_state_rows=np.array(num_rows, np.int32))
        if sampled_places:
            batch = replace(batch, token_sources=self._token_sources(sampled_places))
        return batch

    def _rows(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Returns `token_ids`, `positions`, `query_starts` and `logit_rows` of the batch."""
        if self.num_tokens == len(self.entries) and all(map(_samples, self.entries)):
            return self._last_rows()
        token_ids: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        starts = [0]
        first_row = 0
        for entry in self.entries:
            start, num_tokens = entry.start, entry.num_tokens
            end_row = first_row + num_tokens + len(entry.draft_token_ids)
            token_ids += entry.sequence.token_ids[start : start + num_tokens] or [0]  # pending
            token_ids += entry.draft_token_ids
            positions += range(start, start + end_row - first_row)
            if entry.num_leading:
                logit_rows += range(first_row, first_row + entry.num_leading)
            if entry.samples:
                logit_rows += range(first_row + num_tokens - 1, end_row)
            starts.append(end_row)
            first_row = end_row
        return (
            np.array(token_ids, np.int32),
            np.array(positions, np.int32),
            np.array(starts, np.int32),
            np.array(logit_rows, np.int32),
        )

    def _last_rows(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Returns the arrays of `_rows` for a step in which each entry is only its sequence's last token. Most steps
        are such.
        """
        ends = np.arange(len(self.entries) + 1, dtype=np.int32)
        token_ids = [entry.sequence.token_ids[-1] for entry in self.entries]
        positions = [entry.start for entry in self.entries]
        return np.array(token_ids, np.int32), np.array(positions, np.int32), ends, ends[:-1]

    def _token_sources(self, sampled_places: Mapping[Sequence, int]) -> IntArray | None:
        """Returns for each row the index of its token among the sampled tokens of the previous step, or -1 if the token
        is known. Returns None if no token is pending. An entry with a pending token has only one row.
        """
        if not any(entry.sequence in sampled_places for entry in self.entries):
            return None
        sources = np.full(self.num_tokens, -1, np.int32)
        row = 0
        for entry in self.entries:
            sources[row] = sampled_places.get(entry.sequence, -1)
            row += entry.num_rows
        return sources

    def _with_states(self, batch: Batch) -> Batch:
        """Adds the slots where each entry's state is read and written."""
        written = [entry.sequence.state_slot for entry in self.entries]
        read = (entry.sequence.state_source for entry in self.entries)
        sources = [
            own if source is None else source for own, source in zip(written, read, strict=True)
        ]
        return replace(
            batch,
            state_reads=np.array(sources, np.int32),
            state_writes=np.array(written, np.int32),
        )

    def _with_extras(self, batch: Batch) -> Batch:
        """Adds the inputs of requests beside tokens: embeddings, pictures, token types of text pairs, adapters."""
        requests = [entry.sequence.request for entry in self.entries]
        adapter_ids = [request.lora_id or 0 for request in requests]
        return replace(
            with_given_rows(batch, self._spans()),
            token_types=self._token_types() if any(map(_token_type_ids, requests)) else None,
            adapter_ids=np.array(adapter_ids, np.int32) if any(adapter_ids) else None,
        )

    def _spans(self) -> list[Span]:
        """Returns the tokens of each entry with their rows."""
        spans, first_row = [], 0
        for entry in self.entries:
            spans.append(
                Span(entry.sequence, entry.start, entry.start + entry.num_tokens, first_row)
            )
            first_row += entry.num_rows
        return spans

    def _token_types(self) -> IntArray:
        """Returns the token type of each row: 0 for the first text of a pair, 1 for the second."""
        types: list[int] = []
        for entry in self.entries:
            given = entry.sequence.request.token_type_ids or [0] * entry.sequence.num_tokens
            types += given[entry.start : entry.start + entry.num_tokens]
        return np.array(types, np.int32)


class SampledRow(msgspec.Struct, frozen=True, eq=False):
    """Result of an entry. `token_id` is None if the entry did not reach its sequence's end.

    `prompt_logprobs` has one row for each scored row of the entry.
    """

    token_id: int | None = None
    logprobs: LogprobRow | None = None
    prompt_logprobs: list[LogprobRow] = []


class PooledRow(msgspec.Struct, frozen=True, eq=False):
    """Result of a pooling request's entry: the hidden states `collected` so far and, at the end of the prompt,
    `pooled`.
    """

    collected: Collected
    pooled: FloatArray | None = None


class FailedRow(msgspec.Struct, frozen=True, eq=False):
    """An error that ends the sequence. `is_corrupt` is True if the model's output has NaN values."""

    error: str
    is_corrupt: bool = False


Result: TypeAlias = SampledRow | PooledRow | FailedRow
# Results that must be committed before the next part is computed; a plan without drafts has one part.
Part: TypeAlias = tuple[Plan, list[Result]]


def padded_tables(block_ids: "Seq[array[int]]") -> IntArray:
    """Returns the block tables, [sequences, max blocks]: the block ids of each sequence, padded with 0."""
    # Joined as bytes: 0.96 → 0.50 ms of Python per step (benchmarks/step.py, 32 sequences of 8,192).
    tables = [ids.tobytes() for ids in block_ids]
    width = max(map(len, tables))
    joined = bytearray().join([table.ljust(width, b"\0") for table in tables])
    return np.frombuffer(joined, np.int32).reshape(len(tables), width // 4)


def slots_of(
    tables: IntArray, positions: IntArray, query_starts: IntArray, block_size: int
) -> IntArray:
    """Returns the KV slot of each row. Each sequence has at least one row."""
    owners = np.arange(len(tables))
    if len(positions) != len(tables):
        owners = np.repeat(owners, query_starts[1:] - query_starts[:-1])
    blocks, offsets = np.divmod(positions, np.int32(block_size))
    return tables[owners, blocks] * np.int32(block_size) + offsets


def _num_leading(sequence: Sequence, start: int, num_rows: int) -> int:
    """Returns the number of rows before the sampled row whose output is needed, to score prompt tokens or for a pooled
    result. The rows are `num_rows` rows from `start` on.
    """
    match sequence.request.pooling_kind:
        case None:
            last_scored = sequence.num_prompt_tokens - 1 if sequence.wants_prompt_logprobs else 0
            return max(0, min(num_rows, last_scored - start))
        case PoolingKind.CLS:
            return min(1, num_rows) if start == 0 else 0
        case PoolingKind.LAST:
            return 0
        case PoolingKind.MEAN | PoolingKind.EACH:
            return num_rows
        case kind:
            assert_never(kind)
