"""The drawings and questions that `embedded:tiny-vision` learns from: seeded, and true of the picture."""

import random

import numpy as np
import pytest

from training.vision.drawings import COLOURS, MAX_FIGURES, draw
from training.vision.questions import ask, describe, makers
from training.vision.tower import SIDE
from training.vision.train import train_tokenizer


def drawings(count: int = 60, seed: int = 3):
    """Drawings of every kind."""
    rng = random.Random(seed)
    return [draw(rng) for _ in range(count)]


def test_the_same_seed_gives_the_same_drawings_and_questions():
    """Training is repeatable: both depend on the seed alone."""
    first, second = (
        [(describe(d), ask(random.Random(1), d)) for d in drawings()] for _ in range(2)
    )
    assert first == second


def test_figures_are_in_the_picture_and_apart():
    """None is cut off, and centres of two are farther apart than a half of either size."""
    for drawing in drawings():
        for figure in drawing.figures:
            half = figure.size / 2
            assert half - 1e-9 <= figure.x <= 1 - half + 1e-9
            assert half - 1e-9 <= figure.y <= 1 - half + 1e-9
        assert len(drawing.figures) <= MAX_FIGURES
        for number, one in enumerate(drawing.figures):
            for other in drawing.figures[number + 1 :]:
                gap = max(abs(one.x - other.x), abs(one.y - other.y))
                assert gap > (one.size + other.size) / 2 - 1e-9


def test_most_pixels_of_a_corner_have_the_named_background():
    """Within the tint: what a question about the background expects is what is seen."""
    plain = [drawing for drawing in drawings() if drawing.pattern is None]
    for drawing in plain:
        pixels = np.asarray(drawing.picture, np.int32)
        distances = np.abs(pixels - np.array(COLOURS[drawing.background])).max(axis=2)
        assert (distances < 30).mean() > 0.15


def test_every_kind_of_drawing_has_questions_and_a_description():
    """All kinds come, and each has answers that are sentences."""
    rng = random.Random(4)
    kinds = set()
    for drawing in drawings(120):
        kinds |= {maker.__name__ for maker, _ in makers(drawing)}
        question, answer = ask(rng, drawing)
        assert question
        assert answer.endswith(".")
    assert len(kinds) >= 14


@pytest.mark.slow
def test_the_tokenizer_keeps_any_text():
    """Byte-level: questions in words that training never saw come back as they were."""
    tokenizer = train_tokenizer(3, num_texts=500)
    for text in ("naïve café", "What is 7 × 8?", "你好", f"{SIDE} px"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
