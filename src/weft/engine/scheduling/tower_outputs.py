"""`TowerOutputs`: cache of the tower's outputs by the hash of a picture or sound, limited in bytes. The scheduler owns
the object.

A sequence holds the output of a picture from the step that computes the picture's first token to the step that computes
its last; it holds the output of a sound until it ends or is preempted. Outputs without holders are evicted when their
memory is needed, least recently used first.
"""

from collections import OrderedDict
from dataclasses import dataclass

from weft.core.values.pictures import ItemsConfig, PlacedItem, Spectrograms, TowerConfig
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.sequence import ItemOutput, Sequence
from weft.media.processors.patches import grid_of
from weft.model.towers.positions import PlacedGrid, rope_positions


@dataclass(slots=True)
class ItemCounts:
    """Number of lookups of pictures in the cache, and number of hits."""

    num_queries: int = 0
    num_hits: int = 0


class TowerOutputs:
    """Cache of tower outputs. It decides for which pictures the tower runs before each step."""

    def __init__(self, config: TowerConfig) -> None:
        self.counts = ItemCounts()
        self._config = config
        self._outputs: OrderedDict[str, ItemOutput] = OrderedDict()
        self._num_bytes = 0
        self._num_left = 0  # tower rows that the planned step may still compute
        self._planned: list[ItemOutput] = []

    def begin_step(self) -> None:
        """Begins planning a step."""
        self._num_left = self._config.max_step_rows
        self._planned = []

    def to_compute(self) -> tuple[ItemOutput, ...]:
        """Returns the outputs that the tower must compute before the planned step."""
        return tuple(output for output in self._planned if output.num_holders)

    def chunk(self, sequence: Sequence, start: int, num_tokens: int) -> int:
        """Returns how many of `num_tokens` tokens from `start` on the step may compute. The sequence then holds the
        tower outputs of these tokens.

        A chunk ends before a picture whose output has no room in this step. In models whose picture tokens attend to
        each other, a chunk never splits such a run of tokens: it ends before the run, or after the run if the chunk
        would be empty.
        """
        end = start + num_tokens
        for index, item in enumerate(sequence.request.items):
            if start < item.end and item.start < end and not self._hold(sequence, index, item):
                end = max(start, item.start)
                break
        if self._config.sees_both_ways and end > start:
            end = _whole(sequence.request.items, start, end)
        return end - start

    def release(self, sequence: Sequence, end: int | None = None) -> None:
        """Releases the sequence's outputs of pictures that end at token `end` or before; None releases all outputs."""
        for index in list(sequence.outputs):
            if end is None or sequence.request.items[index].end <= end:
                output = sequence.outputs.pop(index)
                output.num_holders -= 1
                if not output.is_computed and not output.num_holders:
                    # The tower failed, or the step that should compute the output did not run.
                    self._drop(output)

    def clear(self) -> None:
        """Drops all outputs that nobody holds. Call it only between steps."""
        for output in [output for output in self._outputs.values() if not output.num_holders]:
            self._drop(output)

    def check(self) -> None:
        """Asserts the invariants. Expensive; for tests."""
        assert self._num_bytes == sum(output.num_bytes for output in self._outputs.values())
        assert all(output.num_holders >= 0 for output in self._outputs.values())

    def _hold(self, sequence: Sequence, index: int, item: PlacedItem) -> bool:
        """Makes the sequence hold the output of a picture. Returns False if the step or the cache has no room for the
        output.
        """
        if index in sequence.outputs:
            return True
        output = self._outputs.get(item.hash)
        is_hit = output is not None
        if output is None:
            output = self._add(item)
            if output is None:
                return False
        self._outputs.move_to_end(item.hash)
        self.counts.num_queries += 1
        self.counts.num_hits += is_hit
        output.num_holders += 1
        sequence.outputs[index] = output
        return True

    def _add(self, item: PlacedItem) -> ItemOutput | None:
        """Adds an output for the tower to compute in this step. Returns None if the step or the cache has no room for
        the output.

        A picture that exceeds the limit of a step, or of the cache, is computed alone.
        """
        num_rows = self._config.num_rows(item)
        if self._planned and num_rows > self._num_left:
            return None
        output = ItemOutput(item, num_bytes=self._config.num_bytes(item))
        if not self._make_room(output.num_bytes):
            return None
        self._num_left -= num_rows
        self._planned.append(output)
        self._outputs[item.hash] = output
        self._num_bytes += output.num_bytes
        return output

    def _make_room(self, num_bytes: int) -> bool:
        most = self._config.output_bytes - num_bytes
        free = (output for output in list(self._outputs.values()) if not output.num_holders)
        while self._num_bytes > most:
            output = next(free, None)
            if output is None:
                return not self._outputs
            self._drop(output)
        return True

    def _drop(self, output: ItemOutput) -> None:
        if self._outputs.get(output.item.hash) is output:
            del self._outputs[output.item.hash]
            self._num_bytes -= output.num_bytes


def failures(plan: Plan, block_size: int) -> dict[Sequence, str]:
    """Returns the errors of the sequences in the plan that need an output which the tower could not compute.

    Such a sequence holds the output, or it shares a block that the step computes from the output.
    """
    errors: dict[Sequence, str] = {}
    error_by_block: dict[int, str] = {}
    for sequence in (entry.sequence for entry in plan.entries):
        for index, output in sequence.outputs.items():
            if output.error is not None:
                errors[sequence] = output.error
                first = sequence.request.items[index].start // block_size
                error_by_block |= dict.fromkeys(sequence.block_ids[first:], output.error)
    for sequence in (entry.sequence for entry in plan.entries) if errors else ():
        shared = next((b for b in sequence.block_ids if b in error_by_block), None)
        if shared is not None:
            errors.setdefault(sequence, error_by_block[shared])
    return errors


def place_items(sequences: list[Sequence], config: TowerConfig) -> None:
    """Sets in the sequences of one request the RoPE positions of its pictures, and whether rows of a picture attend to
    each other.
    """
    if not isinstance(config, ItemsConfig):
        return
    request, rope = sequences[0].request, None
    if config.has_rope_sections and not isinstance(config.settings, Spectrograms):
        merge = config.settings.pixels.merge_size
        grids = [grid for item in request.items for grid in _placed_grids(item, config)]
        rope = rope_positions(len(request.prompt_token_ids), grids, merge)
    for sequence in sequences:
        sequence.rope = rope
        sequence.sees_items_whole = config.sees_both_ways


def _placed_grids(item: PlacedItem, config: ItemsConfig) -> list[PlacedGrid]:
    starts = [item.start + first for first, _ in item.runs]
    if item.grids:
        return [PlacedGrid(*one) for one in zip(starts, item.grids, strict=True)]
    pixels = config.pixels(item.modality)
    return [
        PlacedGrid(start, grid_of(tile, pixels), tile.time_step)
        for start, tile in zip(starts, item.tiles, strict=True)
    ]


def _whole(items: list[PlacedItem], start: int, end: int) -> int:
    """Returns an end of the chunk `start` to `end` that splits no run of picture tokens that attend to each other."""
    for item in items:
        for first, length in item.runs:
            begin = item.start + first
            if begin < end < begin + length:
                return begin if begin > start else begin + length
    return end
