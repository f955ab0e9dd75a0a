"""Measure `embedded:tiny-vision` on drawings that training did not see: `python -m training.vision.evaluate`."""

from __future__ import annotations

import argparse
import random
from collections import Counter

import weft
from training.tiny.document import IM_END, IM_START
from training.vision.batches import IMAGE
from training.vision.drawings import draw
from training.vision.questions import ask_of_two, makers
from weft.core.values.types import SamplingParams

SEED = 1_000_003  # another than that of training
GREEDY = SamplingParams(temperature=0.0, max_tokens=48)


def main() -> None:
    """Prints the share of right answers for each kind of question, and some wrong answers."""
    parser = argparse.ArgumentParser(description="Measure embedded:tiny-vision.")
    parser.add_argument("--model", default="embedded:tiny-vision")
    parser.add_argument("--count", type=int, default=400, help="drawings")
    parser.add_argument("--show", type=int, default=10, help="wrong answers to print")
    args = parser.parse_args()
    rng = random.Random(SEED)
    asked = [one for _ in range(args.count) for one in _questions(rng)]
    prompts = [
        {
            "prompt": f"{IM_START}user\n{IMAGE * len(pictures)}{question}{IM_END}\n{IM_START}assistant\n",
            "multi_modal_data": {"image": pictures},
        }
        for _, question, _, pictures in asked
    ]
    with weft.LLM(args.model, max_model_len=512) as llm:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    right: Counter[str] = Counter()
    every = Counter(kind for kind, *_ in asked)
    for (kind, question, answer, _), output in zip(asked, outputs, strict=True):
        got = output.outputs[0].text.strip()
        right[kind] += got == answer
        if got != answer and args.show:
            args.show -= 1
            print(f"{kind}: {question!r}: {got!r}, not {answer!r}")
    for kind, count in sorted(every.items()):
        print(f"{kind:>18} {right[kind]:>4} of {count:<4} {right[kind] / count:.0%}")
    print(
        f"{'all':>18} {right.total():>4} of {every.total():<4} {right.total() / every.total():.0%}"
    )


def _questions(rng: random.Random):
    drawing = draw(rng)
    for maker, _ in rng.sample(makers(drawing), 2):
        question, answer = maker(rng, drawing)
        yield maker.__name__.strip("_"), question, answer, [drawing.picture]
    if rng.random() < 0.2:
        second = draw(rng)
        question, answer = ask_of_two(rng, drawing, second)
        yield "two pictures", question, answer, [drawing.picture, second.picture]


if __name__ == "__main__":
    main()
