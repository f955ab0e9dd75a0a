"""The KV blocks of a simulated worker: a prefix cache that counts references and drops the least recently used."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Lease:
    """The blocks of one sequence."""

    held: list[int]  # hashes of cached blocks, from the first
    num_private: int  # blocks that nobody else can find


class BlockCache:
    """`num_blocks` blocks: private to a sequence, cached and in use, cached and idle, or free."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_private = 0
        self._uses: dict[int, int] = {}  # of cached blocks
        self._idle: OrderedDict[int, None] = (
            OrderedDict()
        )  # cached blocks without use, oldest first
        self.removed: list[int] = []  # dropped since somebody last took this

    @property
    def num_used(self) -> int:
        """Blocks of running sequences."""
        return self._num_private + len(self._uses) - len(self._idle)

    def match(self, chain: Sequence[int]) -> int:
        """How many blocks of a chain are there, from the first."""
        uses = self._uses
        for index, block in enumerate(chain):
            if block not in uses:
                return index
        return len(chain)

    def lease(self, chain: Sequence[int], num_needed: int) -> Lease | None:
        """Take `num_needed` blocks, cached ones of `chain` first; None, and no change, if they do not fit."""
        held = list(chain[: self.match(chain)])
        num_private = num_needed - len(held)
        num_woken = sum(1 for block in held if not self._uses[block])
        if self.num_used + num_woken + num_private > self.num_blocks:
            return None
        for block in held:
            if not self._uses[block]:
                del self._idle[block]
            self._uses[block] += 1
        self._num_private += num_private
        self._make_room()
        return Lease(held, num_private)

    def publish(self, lease: Lease, chain: Sequence[int]) -> Sequence[int]:
        """The sequence's first blocks are computed, and are `chain`: what others can find now and could not before."""
        new = []
        for block in chain[len(lease.held) :]:
            if (
                block in self._uses
            ):  # another sequence computed the same meanwhile: ours stays private
                break
            self._uses[block] = 1
            lease.held.append(block)
            lease.num_private -= 1
            self._num_private -= 1
            new.append(block)
        return new

    def release(self, lease: Lease) -> None:
        """The sequence is over. The ends of prompts go first when there is need, as in vLLM."""
        self._num_private -= lease.num_private
        for block in reversed(lease.held):
            self._uses[block] -= 1
            if not self._uses[block]:
                self._idle[block] = None
        lease.held, lease.num_private = [], 0

    def take_removed(self) -> list[int]:
        """What was dropped since the last call."""
        removed, self.removed = self.removed, []
        return removed

    def check(self) -> None:
        """No more is held than there is, and the idle ones are those without use."""
        assert self._num_private >= 0
        assert self._num_private + len(self._uses) <= self.num_blocks
        assert {block for block, uses in self._uses.items() if not uses} == set(self._idle)

    def _make_room(self) -> None:
        while self._num_private + len(self._uses) > self.num_blocks:
            block, _ = self._idle.popitem(last=False)
            del self._uses[block]
            self.removed.append(block)
