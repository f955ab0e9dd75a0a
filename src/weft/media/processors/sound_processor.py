"""`SoundProcessor`: converts a file to a prepared sound, in the same way as the model's own processor."""

from dataclasses import dataclass
from typing import Any, ClassVar

from weft.core.errors import BadRequest
from weft.core.values.media import Media, Modality
from weft.core.values.pictures import PreparedItem, Spectrograms
from weft.media.limits import MediaLimits
from weft.media.processors.item_processor import ItemProcessor, refused_argument
from weft.media.sounds.log_mel import HOP, log_mel
from weft.media.sounds.recordings import MAX_SECONDS, RATE, decode_sound, seconds_of
from weft.media.sounds.resample import Wave


@dataclass(frozen=True, slots=True)
class SoundProcessor(ItemProcessor[Spectrograms]):
    """Prepares sounds for one model."""

    modality: ClassVar[Modality] = "audio"

    def check(self, media: Media, limits: MediaLimits) -> None:
        """See `ItemProcessor`: a sound may be as long as the model hears, and all sounds of a prompt together 600 s."""
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
        """See `ItemProcessor`."""
        wave = decode_sound(data, self.modality, self._max_seconds)
        columns, num_tokens = self._columns(wave)
        if not num_tokens:
            raise BadRequest(
                self.modality,
                f"{self.modality}: the sound is too short for this model: it must last at least "
                f"{self._least_columns / 100:g} seconds",
            )
        return PreparedItem(
            modality=self.modality,
            hash=digest,
            token_ids=[self.tokens.placeholder] * num_tokens,
            runs=[(0, num_tokens)],
            columns=columns,
        )

    def with_argument(self, name: str, value: Any) -> Spectrograms:
        """See `ItemProcessor`: there are no arguments."""
        del value
        raise refused_argument(f"{name[:40]!a} is not supported; this model allows nothing")

    @property
    def _max_seconds(self) -> float:
        """The maximum duration of a sound, which models with one window do not hear beyond."""
        settings = self.settings
        return MAX_SECONDS if settings.has_whole_windows else settings.num_columns * HOP / RATE

    @property
    def _least_columns(self) -> int:
        return 2 * self.settings.num_joined

    def _columns(self, wave: Wave) -> tuple[bytes, int]:
        """Returns the columns of a wave for the encoder, and the number of tokens that it makes of them."""
        settings = self.settings
        num_columns = -(-len(wave) // HOP)
        num_windows = -(-num_columns // settings.num_columns) if settings.has_whole_windows else 1
        whole = log_mel(wave, settings.num_mels, num_windows * settings.num_columns)
        if not settings.has_whole_windows:
            num_rows = min((num_columns + 1) // 2, settings.num_columns // 2)
            # The last row sees the column behind its own two.
            whole = whole[: 2 * num_rows + 1]
        return whole.tobytes(), len(whole) // 2 // settings.num_joined
