"""Plots as self-contained SVG: without scripts, fonts or links."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 640, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 44
_MAX_POINTS = 600  # maximum points of a line; more would not be visible
_NUM_TICKS = 5
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of one colour; its points are ascending in x. `has_dots` marks each point, for lines with few points."""

    name: str
    points: Sequence[tuple[float, float]]
    has_dots: bool = False
    is_stepped: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A horizontal bar from one x to another in a row; `kind` sets its colour."""

    row: int
    start: float
    end: float
    kind: int


class _Axes:
    """Converts values to positions in the plot; both axes begin at 0."""

    def __init__(self, max_x: float, max_y: float) -> None:
        self.x_ticks, self.y_ticks = _ticks(max_x), _ticks(max_y)
        self._max_x = max(max_x, self.x_ticks[-1]) or 1.0
        self._max_y = max(max_y, self.y_ticks[-1]) or 1.0

    def x(self, value: float) -> float:
        return round(_LEFT + value / self._max_x * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - _BOTTOM - value / self._max_y * (HEIGHT - _TOP - _BOTTOM), 1)


def line_chart(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    """Returns a plot with lines."""
    points = [point for line in lines for point in line.points]
    axes = _Axes(max((x for x, _ in points), default=1), max((y for _, y in points), default=1))
    return _chart(
        title,
        _frame(axes, x_label, y_label),
        _lines(axes, lines),
        _legend([line.name for line in lines]),
    )


def span_chart(
    title: str, x_label: str, y_label: str, spans: Sequence[Span], kinds: Sequence[str]
) -> str:
    """Returns a plot with horizontal bars over time, one row for each bar."""
    num_rows = max((span.row for span in spans), default=0) + 1
    axes = _Axes(max((span.end for span in spans), default=1), num_rows)
    height = max(axes.y(0) - axes.y(0.9), 0.5)
    bars = (
        f'<rect class="f{span.kind}" x="{axes.x(span.start)}" y="{axes.y(span.row + 0.9)}" '
        f'width="{max(axes.x(span.end) - axes.x(span.start), 0.3):.1f}" height="{height:.1f}"/>'
        for span in spans
    )
    return _chart(title, _frame(axes, x_label, y_label), bars, _legend(kinds))


def _chart(title: str, *parts: Iterable[str]) -> str:
    inside = "".join(piece for part in parts for piece in part)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"<title>{escape(title)}</title>{inside}</svg></figure>"
    )


def _lines(axes: _Axes, lines: Sequence[Line]) -> Iterator[str]:
    for number, line in enumerate(lines):
        points = _thinned(line.points)
        if line.is_stepped:
            points = _stepped(points)
        path = " ".join(f"{axes.x(x)},{axes.y(y)}" for x, y in points)
        yield f'<polyline class="s{number}" points="{path}"/>'
        if line.has_dots:
            for x, y in points:
                yield f'<circle class="f{number}" cx="{axes.x(x)}" cy="{axes.y(y)}" r="3"/>'


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(points) <= _MAX_POINTS:
        return points
    step = (len(points) - 1) / (_MAX_POINTS - 1)
    return [points[round(i * step)] for i in range(_MAX_POINTS)]


def _stepped(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Returns the points of a step function: each value holds until the next."""
    turned = list(points[:1])
    for (_, before), (x, y) in pairwise(points):
        turned += [(x, before), (x, y)]
    return turned


def _frame(axes: _Axes, x_label: str, y_label: str) -> Iterator[str]:
    for tick in axes.x_ticks:
        x = axes.x(tick)
        yield f'<line class="g" x1="{x}" y1="{_TOP}" x2="{x}" y2="{HEIGHT - _BOTTOM}"/>'
        yield f'<text x="{x}" y="{HEIGHT - _BOTTOM + 15}" text-anchor="middle">{tick:g}</text>'
    for tick in axes.y_ticks:
        y = axes.y(tick)
        yield f'<line class="g" x1="{_LEFT}" y1="{y}" x2="{WIDTH - _RIGHT}" y2="{y}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>'
    yield f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{escape(x_label)}</text>'
    yield (
        f'<text transform="translate(12 {_TOP}) rotate(-90)" text-anchor="end">{escape(y_label)}</text>'
    )


def _legend(names: Sequence[str]) -> Iterator[str]:
    if len(names) < 2:
        return
    x = float(_LEFT)
    for number, name in enumerate(names):
        yield f'<rect class="f{number}" x="{x}" y="{HEIGHT - 17}" width="10" height="10"/>'
        yield f'<text x="{x + 14}" y="{HEIGHT - 8}">{escape(name)}</text>'
        x += 28 + 7 * len(name)


def _ticks(highest: float) -> list[float]:
    """Returns round numbers from 0 to at least `highest`."""
    if not highest > 0:
        return [0.0, 1.0]
    rough = highest / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in _STEPS if s * power >= rough * 0.999)
    return [round(i * step, 10) for i in range(math.ceil(highest / step - 1e-9) + 1)]
