"""`TowerOutputs`: rows of the tower by the hash of an item, within a bound of bytes; the scheduler owns it.

A sequence holds the outputs of its items from the step that computes their first tokens to the step that computes
their last. Outputs that nobody holds stay until their memory is needed, the least recently used first.
"""

from collections import OrderedDict
from dataclasses import dataclass

from weft.core.values.pictures import PicturesConfig, PlacedItem
from weft.engine.scheduling.sequence import ItemOutput, Sequence
from weft.media.processors.patches import grid_of
from weft.model.towers.positions import PlacedGrid, rope_positions


@dataclass(slots=True)
class ItemCounts:
    """Items that were looked up, and those of them whose outputs were there."""

    num_queries: int = 0
    num_hits: int = 0


class TowerOutputs:
    """Cache of outputs, which decides the items of each step."""

    def __init__(self, config: PicturesConfig) -> None:
        self.counts = ItemCounts()
        self._config = config
        self._outputs: OrderedDict[str, ItemOutput] = OrderedDict()
        self._num_bytes = 0
        self._num_left = 0  # rows that the planned step may still compute
        self._planned: list[ItemOutput] = []

    def begin_step(self) -> None:
        """Begins planning a step."""
        self._num_left = self._config.max_step_rows
        self._planned = []

    def to_compute(self) -> tuple[ItemOutput, ...]:
        """Returns the outputs that the planned step must compute first."""
        return tuple(output for output in self._planned if output.num_holders)

    def chunk(self, sequence: Sequence, start: int, num_tokens: int) -> int:
        """Returns how many of these tokens from `start` on the step may compute, and holds the outputs of their items.

        A chunk ends before an item whose output must wait. Where an item's tokens see each other, no chunk ends among
        them: it ends before them, or after them if it would be empty.
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
        """Releases the outputs of items that end at `end` or before; None: of all."""
        for index in list(sequence.outputs):
            if end is None or sequence.request.items[index].end <= end:
                output = sequence.outputs.pop(index)
                output.num_holders -= 1
                if output.embeds is None and not output.num_holders:
                    self._drop(output)  # its step was not computed

    def clear(self) -> None:
        """Drops all outputs that nobody holds. Call it only between steps."""
        for output in [output for output in self._outputs.values() if not output.num_holders]:
            self._drop(output)

    def check(self) -> None:
        """Asserts the invariants. Expensive; for tests."""
        assert self._num_bytes == sum(output.num_bytes for output in self._outputs.values())
        assert all(output.num_holders >= 0 for output in self._outputs.values())

    def _hold(self, sequence: Sequence, index: int, item: PlacedItem) -> bool:
        """Makes the sequence hold the output of an item; False if it must wait."""
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
        """Adds an output that the step will compute; None if the step or the memory has no room for it.

        An item that is larger than either is computed alone.
        """
        num_rows = item.num_rows
        if self._planned and num_rows > self._num_left:
            return None
        output = ItemOutput(item, num_bytes=4 * self._config.row_size * num_rows)
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


def place_items(sequences: list[Sequence], config: PicturesConfig) -> None:
    """Sets what the sequences of one request need of its items: positions, and whether their rows see each other."""
    request, pixels = sequences[0].request, config.settings.pixels
    rope = None
    if config.has_rope_sections:
        grids = [
            PlacedGrid(item.start + first, grid_of(tile, pixels))
            for item in request.items
            for (first, _), tile in zip(item.runs, item.tiles, strict=True)
        ]
        rope = rope_positions(len(request.prompt_token_ids), grids, pixels.merge_size)
    for sequence in sequences:
        sequence.rope = rope
        sequence.sees_items_whole = config.sees_both_ways


def _whole(items: list[PlacedItem], start: int, end: int) -> int:
    """Returns the end of a chunk that cuts no run of tokens that see each other."""
    for item in items:
        for first, length in item.runs:
            begin = item.start + first
            if begin < end < begin + length:
                return begin if begin > start else begin + length
    return end
