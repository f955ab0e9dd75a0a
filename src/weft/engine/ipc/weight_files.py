"""In-memory files for packed weights that all engines of a server map.

This is the front's part; it imports no compute modules.
"""

import os
import secrets
import weakref

import msgspec


class PackedWeights(msgspec.Struct, frozen=True):
    """Location of packed weights: `place` is the index of the file, `key` identifies the weights.

    Without `may_pack` the weights are no longer those of the model's files, so no engine can pack them again.
    """

    paths: tuple[str, str]
    place: int
    key: str
    may_pack: bool = True


class WeightFiles:
    """The front's part: owns the files, which exist as long as this object."""

    def __init__(self) -> None:
        files = [os.memfd_create("weft-packed", os.MFD_CLOEXEC) for _ in range(3)]
        for file in files:
            weakref.finalize(self, os.close, file)
        first, second, third = (f"/proc/{os.getpid()}/fd/{file}" for file in files)
        self.current = PackedWeights((first, second), 0, secrets.token_hex(8))
        # Of the draft model, if there is one: its weights are never updated.
        self.draft = PackedWeights((third, third), 0, secrets.token_hex(8))

    def next(self) -> PackedWeights:
        """Returns a location for new weights, in the file that is not in use."""
        current = self.current
        return PackedWeights(current.paths, 1 - current.place, secrets.token_hex(8))

    def use(self, packed: PackedWeights) -> None:
        """Serves these weights, which were sent, from now on: no engine can read them from disk."""
        self.current = msgspec.structs.replace(packed, may_pack=False)

    def read_anew(self) -> None:
        """Notes that all engines have discarded the weights: they are read from disk next."""
        self.current = msgspec.structs.replace(self.current, may_pack=True)
