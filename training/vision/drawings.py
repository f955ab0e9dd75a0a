"""Simple pictures: coloured shapes on a background, digits, and patterns of two colours."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

COLOURS = {
    "red": (214, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 215),
    "yellow": (245, 215, 40),
    "orange": (245, 135, 25),
    "purple": (130, 50, 170),
    "black": (20, 20, 20),
    "white": (248, 248, 248),
}
SHAPES = ("circle", "square", "triangle", "star", "cross")
PATTERNS = ("horizontal stripes", "vertical stripes", "checkerboard")
MAX_FIGURES = 5
# Colours that a small picture does not tell apart.
_ALIKE = (
    {"red", "orange"},
    {"orange", "yellow"},
    {"purple", "blue"},
    {"purple", "black"},
    {"yellow", "white"},
)

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Figure:
    """One shape; centre and size are fractions of the picture's side."""

    shape: str
    colour: str
    x: float
    y: float
    size: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture and what is on it: figures, a digit, or a pattern in a second colour."""

    picture: Image.Image
    background: str
    figures: tuple[Figure, ...] = ()
    digit: str | None = None
    pattern: str | None = None
    colour: str | None = None  # of the digit, or the second one of the pattern


def draw(rng: random.Random) -> Drawing:
    """Draws one of the three kinds."""
    kind = rng.choices((_figures, _digit, _pattern), (12, 4, 2))[0]
    return kind(rng)


def tint(rng: random.Random, name: str, spread: int = 14) -> Colour:
    """Returns a shade of the colour."""
    red, green, blue = (min(255, max(0, c + rng.randint(-spread, spread))) for c in COLOURS[name])
    return red, green, blue


def differs(name: str, other: str) -> bool:
    """True if the colours look different in a small picture."""
    return name != other and {name, other} not in _ALIKE


def _background(rng: random.Random) -> str:
    return rng.choice(("white",) * 8 + ("black", "black", *COLOURS))


def _colour_on(rng: random.Random, *others: str) -> str:
    return rng.choice([name for name in COLOURS if all(differs(name, other) for other in others)])


def _canvas(rng: random.Random, colour: str) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    side = rng.choice((48, 96, 128, 144))
    picture = Image.new("RGB", (side, side), tint(rng, colour, 7))
    return picture, ImageDraw.Draw(picture)


def _figures(rng: random.Random) -> Drawing:
    background = _background(rng)
    picture, pen = _canvas(rng, background)
    figures = tuple(_placed(rng, _kinds(rng, background)))
    # Pictures that are no squares reach the model squeezed.
    stretch = 1.0 if rng.random() < 0.6 else rng.uniform(0.7, 1.4)
    for figure in figures:
        _draw_figure(rng, pen, picture.width, figure, stretch)
    return Drawing(picture, background, figures=figures)


def _kinds(rng: random.Random, background: str) -> list[tuple[str, str]]:
    """Returns the shape and colour of each figure: one, several alike, or two kinds."""
    count = rng.choices(range(1, MAX_FIGURES + 1), (7, 5, 4, 3, 3))[0]
    colour = _colour_on(rng, background)
    kind = (rng.choice(SHAPES), colour)
    if count == 1 or rng.random() < 0.4:
        return [kind] * count
    if rng.random() < 0.35:  # one shape in two colours
        second = (kind[0], _colour_on(rng, background, colour))
    else:
        other = rng.choice([shape for shape in SHAPES if shape != kind[0]])
        second = (other, colour if rng.random() < 0.25 else _colour_on(rng, background, colour))
    num_first = rng.randint(1, count - 1)
    return [kind] * num_first + [second] * (count - num_first)


def _placed(rng: random.Random, kinds: list[tuple[str, str]]) -> list[Figure]:
    """Places figures in cells of a grid, so that none covers another."""
    if len(kinds) == 1:
        size = rng.uniform(0.28, 0.8)
        free = (1 - size) / 2
        x, y = (0.5 + rng.uniform(-free, free) for _ in range(2))
        return [Figure(*kinds[0], x, y, size)]
    side = 2 if len(kinds) <= 3 and rng.random() < 0.6 else 3
    cells = rng.sample([(x, y) for x in range(side) for y in range(side)], len(kinds))
    figures = []
    for (shape, colour), (column, row) in zip(kinds, cells, strict=True):
        size = rng.uniform(0.62, 0.88) / side
        free = (1 / side - size) / 2
        x = (column + 0.5) / side + rng.uniform(-free, free)
        y = (row + 0.5) / side + rng.uniform(-free, free)
        figures.append(Figure(shape, colour, x, y, size))
    return figures


def _draw_figure(
    rng: random.Random, pen: ImageDraw.ImageDraw, side: int, figure: Figure, stretch: float
) -> None:
    """Draws a figure, narrower (`stretch` below 1) or lower than its size."""
    half = figure.size * side / 2
    wide, high = half * min(1.0, stretch), half / max(1.0, stretch)
    x, y, colour = figure.x * side, figure.y * side, tint(rng, figure.colour)
    box = (x - wide, y - high, x + wide, y + high)
    match figure.shape:
        case "circle":
            pen.ellipse(box, colour)
        case "square":
            pen.rectangle(
                (x - 0.88 * wide, y - 0.88 * high, x + 0.88 * wide, y + 0.88 * high), colour
            )
        case "cross":
            pen.rectangle((x - wide, y - 0.34 * high, x + wide, y + 0.34 * high), colour)
            pen.rectangle((x - 0.34 * wide, y - high, x + 0.34 * wide, y + high), colour)
        case _:
            points = _corners(figure.shape)
            pen.polygon([(x + wide * a, y + high * b) for a, b in points], colour)


def _corners(shape: str) -> list[tuple[float, float]]:
    if shape == "triangle":
        return [(0, -1), (1, 0.9), (-1, 0.9)]
    turns = [math.pi * number / 5 for number in range(10)]
    radii = [1.0 if number % 2 == 0 else 0.42 for number in range(10)]
    return [(r * math.sin(t), -r * math.cos(t)) for r, t in zip(radii, turns, strict=True)]


def _digit(rng: random.Random) -> Drawing:
    background = _background(rng)
    colour, digit = _colour_on(rng, background), str(rng.randrange(10))
    picture, pen = _canvas(rng, background)
    side = picture.width
    font = ImageFont.load_default(side * rng.uniform(0.6, 0.95))
    left, top, right, bottom = pen.textbbox((0, 0), digit, font)
    width, height = right - left, bottom - top
    x = side / 2 - width / 2 - left + rng.uniform(-0.4, 0.4) * max(0, side - width) / 2
    y = side / 2 - height / 2 - top + rng.uniform(-0.4, 0.4) * max(0, side - height) / 2
    pen.text((x, y), digit, tint(rng, colour), font, stroke_width=rng.choice((0, 0, side // 48)))
    return Drawing(picture, background, digit=digit, colour=colour)


def _pattern(rng: random.Random) -> Drawing:
    """Draws one plain colour, or a pattern of two."""
    background = rng.choice(tuple(COLOURS))
    picture, pen = _canvas(rng, background)
    if rng.random() < 0.4:
        return Drawing(picture, background)
    colour, pattern = _colour_on(rng, background), rng.choice(PATTERNS)
    ink, side, count = tint(rng, colour), picture.width, rng.choice((4, 6, 8))
    step = side / count
    for row in range(count):
        for column in range(count):
            is_inked = {
                "horizontal stripes": row % 2,
                "vertical stripes": column % 2,
                "checkerboard": (row + column) % 2,
            }[pattern]
            if is_inked:
                corner = (column * step, row * step)
                pen.rectangle((*corner, corner[0] + step, corner[1] + step), ink)
    return Drawing(picture, background, pattern=pattern, colour=colour)
