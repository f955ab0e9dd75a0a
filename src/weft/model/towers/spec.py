"""`TowerSpec`: one description of all towers, by switches: of pictures, and of sounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from weft.core.values.pictures import rows_of_chunk
from weft.model.switches import Activation, Norm

Grid = tuple[int, int, int]  # frames, rows and columns of patches
STEM_WIDTH = 3  # columns of a spectrogram, or mels, that each convolution of a stem sees
CHUNK_COLUMNS = 100


class TowerRope(StrEnum):
    """Rotary embedding of a patch's row and column in queries and keys.

    The first half of a head's pairs is rotated by the row and the second half by the column. Exponents of the
    frequencies: AXIAL uses the same exponents for both halves, ALTERNATING uses the even ones for rows and the odd ones
    for columns.
    """

    NONE = "none"
    AXIAL = "axial"
    ALTERNATING = "alternating"


class Resampling(StrEnum):
    """Resampling of the learned positions, a square grid, to the grid of a picture.

    CORNERS: bilinear, with the corners of both grids at the same places. BUCKETS: the learned position at the same
    fraction of the side, rounded down. SMOOTH: bilinear between centres; where the learned grid is finer, an average of
    all positions that a place covers. EXACT: pictures have the learned grid itself.
    """

    CORNERS = "corners"
    BUCKETS = "buckets"
    SMOOTH = "smooth"
    EXACT = "exact"


class Projector(StrEnum):
    """Layers from the tower's output to the decoder's input rows; each row joins `merge` x `merge` adjacent patches.

    MERGER: norm of each patch, then two linear layers on the joined patches. SHUFFLE: one linear layer on the joined
    patches. MLP: an optional norm of the joined patches, then two linear layers. POOL: the mean of the patches, its
    norm, and one linear layer. JOIN: norm of each patch, one linear layer from the joined patches to a row of the
    tower's size, then two linear layers. CROSS: two linear layers for each layer of the decoder, which make the keys
    and values of its cross-attention; the decoder has no row for them.
    """

    MERGER = "merger"
    SHUFFLE = "shuffle"
    MLP = "mlp"
    POOL = "pool"
    JOIN = "join"
    CROSS = "cross"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionSpec:
    """Layers that convert rows of one width to rows of another.

    These are an optional norm of each `norm_size` elements, an optional linear layer of `inner` outputs with an
    activation, and a linear layer.
    """

    name: str
    input: int
    output: int
    norm: Norm = Norm.LAYER
    norm_size: int = 0  # 0: no norm
    norm_eps: float = 1e-6
    inner: int = 0  # 0: one linear layer
    activation: Activation = Activation.GELU


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Layers [first, end) with the same kind of attention; `deepstack` is the merger for the rows after them, if
    any.
    """

    first: int
    end: int
    is_windowed: bool
    deepstack: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSpec:
    """A complete vision tower, from patches of pictures to rows of the decoder's hidden size.

    A patch has [channels, temporal_patch_size, patch_size, patch_size] numbers. Patches of a grid are in merge order,
    frame by frame: the `merge` x `merge` patches of one token are adjacent, row by row, and so are the tokens. The
    result has one row per token; see `num_tokens`.

    A layer has norms before attention and before the MLP. A patch attends to patches of its frame: to all of them in
    `full_layers`, in other layers to those in its square window of `window` x `window` tokens; None: no windows.
    The MLP's activation takes its input times `activation_factor`, and its result is divided by this number.
    `num_positions` is the side of the learned grid of positions; 0: none. `rope_theta` is not used without rope.

    With `has_class_row` a learned row is before the patches of each picture in all layers, has the first learned
    position, and is dropped behind the layers; a picture has one frame then. `num_unused_layers` are in the checkpoint
    behind the layers, and are not read.

    The rows after each of `deepstack_layers` go through a merger of their own, whose norm applies to joined patches.
    Their results follow the row of the token itself: the decoder adds them after its first layers.

    `image_token_id` is the token that stands for a row in prompts. `start_token_id` and `end_token_id` stand before
    and after the rows of an item, if the family has such tokens. `video_token_id` stands for a row of a video.
    Positions of its frames grow by `video_positions_per_second`; 0: by one for each patch of frames; None: texts in the
    prompt say the times instead.

    With `has_conv_stem` the tower takes sounds. A patch is a column of the spectrogram, whose channels are its mels,
    and a grid is [1, columns, 1]. Two convolutions over three neighbours each, with a GELU behind it, make rows of
    patches; the second one takes every second column. `num_positions` is then the number of rows, and a token joins
    `merge` rows that follow each other. With `has_short_sounds` a grid may have fewer columns. If their number is odd,
    no row is made of the last column, which only the column before it sees. The last rows, if they fill no token, are
    dropped.

    With `stem_channels` the sound is divided into chunks of `CHUNK_COLUMNS` columns, zeros behind the last. Three
    convolutions over 3 x 3 neighbours in time and mels, each of which takes every second one, make rows of
    `stem_channels` channels of the mels left, which one linear layer joins. A row has a sine and a cosine of its place
    in the chunk as its position. A sound may have any number of columns, and rows see `window` rows.
    """

    patch_size: int
    temporal_patch_size: int = 1
    num_channels: int = 3
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    norm: Norm = Norm.LAYER
    norm_eps: float = 1e-6
    is_gated: bool = False
    activation: Activation
    activation_factor: float = 1.0
    has_first_norm: bool = False  # of the patches, before the first layer
    has_last_norm: bool = False  # of the rows, after the last layer
    num_positions: int = 0
    has_class_row: bool = False
    num_unused_layers: int = 0
    resampling: Resampling = Resampling.EXACT
    rope: TowerRope = TowerRope.NONE
    rope_theta: float = 10000.0
    window: int | None = None
    full_layers: tuple[int, ...] = ()
    merge: int
    projector: Projector
    pool_norm: Norm = Norm.RMS  # of POOL
    projector_inner: int = 0  # outputs of the first of two linear layers, of MLP and JOIN
    has_projector_norm: bool = True  # of MLP
    has_projector_bias: bool = True
    projector_eps: float = 1e-6
    projector_norm_offset: float = 0.0  # added to the weight of the projector's norm
    projector_activation: Activation = Activation.GELU
    deepstack_layers: tuple[int, ...] = ()
    output_size: int
    image_token_id: int | None = None  # None: no token stands for a row
    start_token_id: int | None = None
    end_token_id: int | None = None
    video_token_id: int | None = None  # None: the tower takes no videos
    video_positions_per_second: int | None = None
    has_conv_stem: bool = False
    has_short_sounds: bool = False
    stem_channels: int = 0  # 0: convolutions over time alone
    num_cross_layers: int = 0  # of the decoder, for CROSS

    @property
    def head_dim(self) -> int:
        """Number of elements of a head."""
        return self.hidden_size // self.num_heads

    @property
    def num_position_rows(self) -> int:
        """Number of learned positions."""
        if self.has_conv_stem:
            return self.num_positions
        return self.num_positions**2 + self.has_class_row

    @property
    def patch_dim(self) -> int:
        """Number of values of a patch."""
        return self.num_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def num_joined(self) -> int:
        """Number of patches that one token joins."""
        return self.merge if self.has_conv_stem else self.merge**2

    @property
    def joined_size(self) -> int:
        """Number of elements of the patches that one token joins."""
        return self.hidden_size * self.num_joined

    @property
    def row_size(self) -> int:
        """Number of elements of a row of the result: the token's own, and one part for each deepstack layer."""
        return self.output_size * (2 * self.num_cross_layers or 1 + len(self.deepstack_layers))

    @property
    def projections(self) -> tuple[ProjectionSpec, ...]:
        """Projections by name: of patches to rows, of rows to tokens, and one for each deepstack layer."""
        if self.has_conv_stem:
            return (*self._stem(), *self._projectors())
        patch = ProjectionSpec(name="patch", input=self.patch_dim, output=self.hidden_size)
        joined = self.joined_size
        deep = tuple(
            self._merger(f"deep.{index}", norm_size=joined)
            for index in range(len(self.deepstack_layers))
        )
        return (patch, *self._projectors(), *deep)

    def _stem(self) -> tuple[ProjectionSpec, ...]:
        if self.stem_channels:
            return self._chunk_stem()
        sizes = {"patch": self.patch_dim, "half": self.hidden_size}
        return tuple(
            ProjectionSpec(name=name, input=STEM_WIDTH * size, output=self.hidden_size)
            for name, size in sizes.items()
        )

    def _chunk_stem(self) -> tuple[ProjectionSpec, ...]:
        channels, mels = self.stem_channels, rows_of_chunk(self.num_channels)
        sizes = {"patch": 1, "half": channels, "quarter": channels}
        stem = (
            ProjectionSpec(name=name, input=STEM_WIDTH**2 * size, output=channels)
            for name, size in sizes.items()
        )
        return (*stem, ProjectionSpec(name="stem", input=channels * mels, output=self.hidden_size))

    def _projectors(self) -> tuple[ProjectionSpec, ...]:
        if self.projector is Projector.JOIN:
            return (self._join(), self._mlp(self.hidden_size, norm_size=0))
        if self.projector is not Projector.CROSS:
            return (self._projector(),)
        return tuple(
            ProjectionSpec(name=name, input=self.hidden_size, output=self.output_size)
            for name in self.cross_names
        )

    @property
    def cross_names(self) -> tuple[str, ...]:
        """Names of the projections of CROSS, in the order of their results."""
        layers = range(self.num_cross_layers)
        return tuple(f"{part}.{layer}" for layer in layers for part in ("keys", "values"))

    def _projector(self) -> ProjectionSpec:
        match self.projector:
            case Projector.MERGER:
                return self._merger("merger", norm_size=self.hidden_size)
            case Projector.SHUFFLE:
                return ProjectionSpec(
                    name="merger", input=self.joined_size, output=self.output_size
                )
            case Projector.MLP:
                has_norm = self.has_projector_norm
                return self._mlp(self.joined_size, norm_size=self.joined_size if has_norm else 0)
            case Projector.POOL:
                return ProjectionSpec(
                    name="merger",
                    input=self.hidden_size,
                    output=self.output_size,
                    norm=self.pool_norm,
                    norm_size=self.hidden_size,
                    norm_eps=self.projector_eps,
                )
            case Projector.JOIN | Projector.CROSS:
                raise AssertionError("it is several projections")
            case _:
                assert_never(self.projector)

    def _join(self) -> ProjectionSpec:
        return ProjectionSpec(
            name="join",
            input=self.joined_size,
            output=self.hidden_size,
            norm=self.norm,
            norm_size=self.hidden_size,
            norm_eps=self.projector_eps,
        )

    def _mlp(self, size: int, *, norm_size: int) -> ProjectionSpec:
        return ProjectionSpec(
            name="merger",
            input=size,
            output=self.output_size,
            norm_size=norm_size,
            norm_eps=self.projector_eps,
            inner=self.projector_inner,
            activation=self.projector_activation,
        )

    def _merger(self, name: str, *, norm_size: int) -> ProjectionSpec:
        return ProjectionSpec(
            name=name,
            input=self.joined_size,
            output=self.output_size,
            norm=self.norm,
            norm_size=norm_size,
            norm_eps=self.projector_eps,
            inner=self.joined_size,
            activation=self.projector_activation,
        )

    @property
    def runs(self) -> tuple[LayerRun, ...]:
        """The layers divided into runs that are as long as possible."""
        windowed = [
            self.window is not None and i not in self.full_layers for i in range(self.num_layers)
        ]
        runs, first = [], 0
        for end in range(1, self.num_layers + 1):
            deep = (
                self.deepstack_layers.index(end - 1) if end - 1 in self.deepstack_layers else None
            )
            is_last = end == self.num_layers
            if is_last or deep is not None or windowed[end] != windowed[first]:
                runs.append(LayerRun(first, end, windowed[first], deep))
                first = end
        return tuple(runs)

    def num_rows(self, columns: int) -> int:
        """Returns the number of rows that a stem makes of the columns of a sound."""
        if not self.stem_channels:
            return columns // 2
        chunks, rest = divmod(columns, CHUNK_COLUMNS)
        return chunks * rows_of_chunk(CHUNK_COLUMNS) + rows_of_chunk(rest)

    def num_tokens(self, grids: Sequence[Grid]) -> int:
        """Returns the number of output rows of an item with these grids."""
        if self.has_conv_stem:
            return sum(self.num_rows(columns) // self.merge for _, columns, _ in grids)
        return sum(t * (h // self.merge) * (w // self.merge) for t, h, w in grids)
