"""`ItemProcessor`: what all processors of media share: the names of items, and arguments of a request."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.media import PROCESSOR_KWARGS, Media, Modality
from weft.core.values.pictures import ItemSettings, ItemTokens, PreparedItem, Tile, Videos
from weft.media.limits import MediaLimits
from weft.media.processors.pieces import Encode, Piece, runs_of, to_token_ids

Settings = TypeVar("Settings", bound=ItemSettings | Videos)


@dataclass(frozen=True, slots=True)
class ItemProcessor(ABC, Generic[Settings]):
    """Prepares media of one modality for one model. `encode` encodes text with the model's tokenizer.

    The methods are slow; threads may share a processor.
    """

    modality: ClassVar[Modality]

    settings: Settings
    tokens: ItemTokens
    encode: Encode
    salt: str | None = None  # a part of the hashes of all items

    @abstractmethod
    def check(self, media: Media, limits: MediaLimits) -> None:
        """Raises `BadRequest` for files of this modality that cannot be read, or exceed the limits by their headers."""

    @abstractmethod
    def prepare(self, data: bytes, digest: str) -> PreparedItem:
        """Returns the prepared item for a file; `digest` becomes its `hash`.

        Raises `BadRequest` for a file that cannot be read.
        """

    def of_tiles(
        self,
        digest: str,
        tiles: list[Tile],
        pieces: list[Piece],
        frame: tuple[int, int] | None = None,
    ) -> PreparedItem:
        """Returns the item with these tiles and the tokens of these pieces; `frame` is as in `PreparedItem`."""
        token_ids = to_token_ids(pieces, self.encode)
        return PreparedItem(
            modality=self.modality,
            hash=digest,
            token_ids=token_ids,
            runs=runs_of(token_ids, self.tokens.placeholder),
            tiles=tiles,
            frame=frame,
        )

    @property
    @abstractmethod
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments that a request may give."""

    @abstractmethod
    def with_argument(self, name: str, value: Any) -> Settings:
        """Returns the settings with one of the arguments; raises `BadRequest` for a value that is not allowed."""

    def salted(self, salt: str | None) -> Self:
        """Returns the processor for a request with this salt."""
        return self if salt == self.salt else replace(self, salt=salt)

    def digest(self, content: bytes) -> str:
        """Returns the hash of an item, which depends on the settings and the salt."""
        return self._hash("content", content)

    def name(self, uuid: str) -> str:
        """Returns the name of an item in the cache, made from its uuid and the processor's settings."""
        return self._hash("uuid", uuid.encode())

    def _hash(self, kind: str, content: bytes) -> str:
        salt = () if self.salt is None else (self.salt,)
        digest = hashlib.sha256(msgspec.json.encode((kind, self.settings, *salt)))
        digest.update(content)
        return digest.hexdigest()

    def changed(self, name: str, value: Any) -> Self:
        """Returns a processor with an argument of a request; raises `BadRequest` for an unknown argument."""
        if name not in self.arguments:
            allowed = " and ".join(
                filter(None, (", ".join(self.arguments[:-1]), *self.arguments[-1:]))
            )
            raise refused_argument(
                f"{name[:40]!a} is not supported; this model allows {allowed or 'nothing'}"
            )
        return replace(self, settings=self.with_argument(name, value))


def refused_argument(message: str) -> BadRequest:
    """Returns the error for an argument of a processor."""
    return BadRequest(PROCESSOR_KWARGS, f"{PROCESSOR_KWARGS}: {message}")
