"""Line charts as SVG: small, without a library, the same bytes for the same numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 168, 34, 46
_FONT = 'font-family="sans-serif" font-size="11"'
_COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8a4fbe", "#e28413", "#5b6770", "#0d9f9f", "#9c6644")
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What it counts, in which unit, and whether each step is a factor."""

    label: str
    is_log: bool = False
    is_share: bool = False  # from 0 to 100 %


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    begin: float  # in pixels
    end: float
    is_log: bool

    def __call__(self, value: float) -> float:
        low, high = (
            (math.log(self.low), math.log(self.high)) if self.is_log else (self.low, self.high)
        )
        at = math.log(max(value, self.low)) if self.is_log else value
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)


def line_chart(title: str, across: Axis, up: Axis, series: Mapping[str, Points]) -> str:
    """An SVG document; lines in the order given, named at the right."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points if math.isfinite(y)]
    x = _Scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT, across.is_log)
    low, high = _bounds(ys, up)
    y = _Scale(low, high, _HEIGHT - _BOTTOM, _TOP, up.is_log)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="13" font-weight="bold">{escape(title)}</text>',
        *_frame(across, up, x, y, sorted(set(xs))),
    ]
    for number, (name, points) in enumerate(series.items()):
        parts += _line(number, name, points, x, y)
    return "\n".join([*parts, "</svg>\n"])


def _bounds(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    if axis.is_share:
        return 0.0, 1.0
    if axis.is_log:
        return 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    return 0.0, max(values) * 1.05


def _frame(across: Axis, up: Axis, x: _Scale, y: _Scale, xs: Sequence[float]) -> list[str]:
    parts = []
    for value in _ticks(y, is_share=up.is_share):
        at = y(value)
        text = f"{value:.0%}" if up.is_share else f"{value:g}"
        parts.append(f'<path d="M{x.begin} {at:.1f}H{x.end}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    below = _HEIGHT - _BOTTOM
    parts += [
        f'<text x="{x(value):.1f}" y="{below + 16}" text-anchor="middle">{value:g}</text>'
        for value in xs
    ]
    middle = (x.begin + x.end) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(across.label)}</text>'
    )
    height = (y.begin + y.end) / 2
    parts.append(
        f'<text x="14" y="{height}" text-anchor="middle" transform="rotate(-90 14 {height})">'
        f"{escape(up.label)}</text>"
    )
    return parts


def _ticks(scale: _Scale, *, is_share: bool) -> list[float]:
    if is_share:
        return [0.0, 0.25, 0.5, 0.75, 1.0]
    if scale.is_log:
        first, last = round(math.log10(scale.low)), round(math.log10(scale.high))
        return [10.0**power for power in range(first, last + 1)]
    step = 10 ** math.floor(math.log10(scale.high))
    while scale.high / step < 4:
        step /= 2
    return [step * number for number in range(int(scale.high / step) + 1)]


def _line(
    number: int, name: str, points: Points, x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    at = [(x(across), y(up)) for across, up in points if math.isfinite(up)]
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up in at)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    parts += [
        f'<circle cx="{across:.1f}" cy="{up:.1f}" r="2.5" fill="{colour}"/>' for across, up in at
    ]
    row = _TOP + 8 + 18 * number
    right = _WIDTH - _RIGHT + 14
    parts.append(f'<path d="M{right} {row}h16" stroke="{colour}" stroke-width="3"/>')
    parts.append(f'<text x="{right + 22}" y="{row + 4}">{escape(name)}</text>')
    return parts
