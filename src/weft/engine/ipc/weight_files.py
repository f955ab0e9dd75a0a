"""In-memory files for packed weights, which all engines of a server map.

This module is the front's part; it imports no compute modules.
"""

import os
import secrets
import weakref

import msgspec


class PackedWeights(msgspec.Struct, frozen=True):
    """Location of packed weights: `place` is the index of the file, `key` identifies the weights.

    If `may_pack` is False, the weights differ from the model's files, so no engine can pack them again.
    """

    paths: tuple[str, str]
    place: int
    key: str
    may_pack: bool = True


class WeightFiles:
    """The front's object for shared weights: owns the files, which exist as long as this object."""

    def __init__(self) -> None:
        files = [os.memfd_create("weft-packed", os.MFD_CLOEXEC) for _ in range(3)]
        for file in files:
            weakref.finalize(self, os.close, file)
        first, second, third = (f"/proc/{os.getpid()}/fd/{file}" for file in files)
        self.current = PackedWeights((first, second), 0, secrets.token_hex(8))
        # Weights of the draft model, if there is one; they are never updated.
        self.draft = PackedWeights((third, third), 0, secrets.token_hex(8))

    def next(self) -> PackedWeights:
        """Returns a location for new weights, in the file that is not in use."""
        current = self.current
        return PackedWeights(current.paths, 1 - current.place, secrets.token_hex(8))

    def use(self, packed: PackedWeights) -> None:
        """Records that these weights, which were sent, are used from now on: no engine can read them from disk."""
        self.current = msgspec.structs.replace(packed, may_pack=False)

    def read_anew(self) -> None:
        """Records that all engines have discarded the weights: the next weights are read from disk."""
        self.current = msgspec.structs.replace(self.current, may_pack=True)
