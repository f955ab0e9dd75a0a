"""Files in memory for packed weights that all engines of a server map: the front's end, which imports nothing
that computes.
"""

import os
import secrets
import weakref

import msgspec


class PackedWeights(msgspec.Struct, frozen=True):
    """Which of the files has, or is to have, the weights of that key.

    Without `may_pack` they are no longer those that the model is read from.
    """

    paths: tuple[str, str]
    place: int
    key: str
    may_pack: bool = True


class WeightFiles:
    """The front's end: the files live as long as it does."""

    def __init__(self) -> None:
        files = [os.memfd_create("weft-packed", os.MFD_CLOEXEC) for _ in range(3)]
        for file in files:
            weakref.finalize(self, os.close, file)
        first, second, third = (f"/proc/{os.getpid()}/fd/{file}" for file in files)
        self.current = PackedWeights((first, second), 0, secrets.token_hex(8))
        # Of the model that drafts, if one does: nobody sends others of it.
        self.draft = PackedWeights((third, third), 0, secrets.token_hex(8))

    def next(self) -> PackedWeights:
        """Others, in the file that is not in use."""
        current = self.current
        return PackedWeights(current.paths, 1 - current.place, secrets.token_hex(8))

    def use(self, packed: PackedWeights) -> None:
        """They are served from now on, and were sent: no engine can read them anew."""
        self.current = msgspec.structs.replace(packed, may_pack=False)

    def read_anew(self) -> None:
        """All engines have discarded them: what is on disk comes next."""
        self.current = msgspec.structs.replace(self.current, may_pack=True)
