"""`SoundProcessor`: converts a file to a prepared sound, in the same way as the model's own processor."""

from dataclasses import dataclass
from typing import Any, ClassVar, assert_never

import numpy as np

from weft.core.errors import BadRequest
from weft.core.values.media import Media, Modality
from weft.core.values.pictures import (
    MIN_SAMPLES,
    PreparedItem,
    SoundEnds,
    Spectrograms,
    rows_of_chunk,
)
from weft.media.limits import MediaLimits
from weft.media.processors.item_processor import ItemProcessor
from weft.media.sounds.log_mel import HOP, log_mel, whole_log_mel
from weft.media.sounds.recordings import MAX_SECONDS, RATE, decode_sound, seconds_of
from weft.media.sounds.resample import Wave


@dataclass(frozen=True, slots=True)
class SoundProcessor(ItemProcessor[Spectrograms]):
    """Prepares sounds for one model."""

    modality: ClassVar[Modality] = "audio"

    def check(self, media: Media, limits: MediaLimits) -> None:
        """Checks the duration of each sound, which the model must hear, and of all sounds of a prompt together."""
        del limits
        files = (item.data for item in media.items if item.modality == self.modality)
        most = self._max_seconds
        total = sum(seconds_of(data, self.modality, most) for data in files if data is not None)
        if total > MAX_SECONDS:
            raise BadRequest(
                self.modality,
                f"{self.modality}: the sounds of a prompt may last {MAX_SECONDS} seconds together, and they last "
                f"{total:.0f}",
            )

    def prepare(self, data: bytes, digest: str) -> PreparedItem:
        wave = decode_sound(data, self.modality, self._max_seconds)
        columns, num_tokens = self._columns(wave)
        if not num_tokens:
            raise BadRequest(
                self.modality,
                f"{self.modality}: the sound is too short for this model: it must last at least "
                f"{2 * self.settings.num_joined * HOP / RATE:g} seconds",
            )
        return PreparedItem(
            modality=self.modality,
            hash=digest,
            token_ids=[self.tokens.placeholder] * num_tokens,
            runs=[(0, num_tokens)],
            columns=columns,
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        return ()

    def with_argument(self, name: str, value: Any) -> Spectrograms:
        raise AssertionError(f"there are no arguments: {name} {value}")

    @property
    def _max_seconds(self) -> float:
        """The maximum duration of a sound, which models with one window do not hear beyond."""
        settings = self.settings
        is_cut = settings.ends is SoundEnds.CUT
        return settings.num_columns * HOP / RATE if is_cut else MAX_SECONDS

    def _columns(self, wave: Wave) -> tuple[bytes, int]:
        """Returns the columns of a wave for the encoder, and the number of tokens that it makes of them."""
        settings = self.settings
        mels, window, joined = settings.num_mels, settings.num_columns, settings.num_joined
        num_columns = -(-len(wave) // HOP)
        match settings.ends:
            case SoundEnds.WHOLE:
                columns = log_mel(wave, mels, -(-num_columns // window) * window)
                num_tokens = len(columns) // 2 // joined
            case SoundEnds.CUT:
                num_rows = min((num_columns + 1) // 2, window // 2)
                # The last row sees the column behind its own two.
                columns = log_mel(wave, mels, window)[: 2 * num_rows + 1]
                num_tokens = num_rows // joined
            case SoundEnds.CHUNKS:
                silence = max(0, MIN_SAMPLES - len(wave))
                columns = whole_log_mel(np.pad(wave, (0, silence)), mels)
                num_windows, rest = divmod(len(columns), window)
                num_tokens = num_windows * rows_of_chunk(window) + rows_of_chunk(rest)
            case _:
                assert_never(settings.ends)
        return columns.tobytes(), num_tokens
