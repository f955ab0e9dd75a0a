"""Accuracy by topic on exchanges the training never saw: `python -m training.tiny.evaluate`.

The stored bf16 weights are decoded greedily in float32, as the engine runs them, with transformers as the runner.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from training.tiny import scenes, toolbox
from training.tiny.corpus import NO_TOOL, SYSTEMS, TOPICS, any_topic, draw, tool_document
from training.tiny.document import Exchange, Message, Piece, chat_pieces, is_held_out, prompt_text
from training.tiny.train import TARGET


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt and what its answer must contain."""

    topic: str
    prompt: str
    must: str
    exact: bool = False


def case_of(topic: str, pieces: tuple[Piece, ...], must: str, *, thinking: bool) -> Case:
    """Cut the last answer off a document."""
    prompt = prompt_text(pieces, thinking=thinking)
    return Case(topic, prompt, must)


def topic_cases(rng: random.Random, per_topic: int) -> list[Case]:
    """Held-out single questions of each topic, some with thinking on or a system prompt."""
    cases = []
    for maker, _ in TOPICS:
        for index in range(per_topic):
            exchange = draw(rng, maker, held_out=True)
            thinking = index % 4 == 3
            messages = [
                Message("user", exchange.user),
                Message("assistant", exchange.answer, exchange.thought),
            ]
            pieces = chat_pieces(messages, system=rng.choice((None, SYSTEMS[0])), thinking=thinking)
            cases.append(case_of(exchange.topic, pieces, exchange.must, thinking=thinking))
            if thinking:
                cases.append(case_of("thinking on", pieces, "<think>\n", thinking=True))
    return cases


def scene_cases(rng: random.Random, count: int) -> list[Case]:
    """Held-out last turns that lean on earlier ones."""
    cases: list[Case] = []
    while len(cases) < count:
        turns = scenes.scene(rng, any_topic)
        if not is_held_out(turns[-1].key):
            continue
        messages = [message for turn in turns for message in _turn(turn)]
        pieces = chat_pieces(messages)
        cases.append(case_of(f"scene: {turns[-1].topic}", pieces, turns[-1].must, thinking=False))
    return cases


def _turn(exchange: Exchange) -> tuple[Message, Message]:
    return Message("user", exchange.user), Message("assistant", exchange.answer, exchange.thought)


def tool_cases(rng: random.Random, count: int) -> list[Case]:
    """Tool lists with argument combinations kept from training."""
    cases = []
    for _ in range(count):
        document = tool_document(rng, held_out=True)
        thinking = document.pieces[-1].text.startswith("<think>")
        answer = document.pieces[-1].text.removesuffix("<|im_end|>").split("</think>\n\n")[-1]
        cases.append(case_of(document.topic, document.pieces, answer, thinking=thinking))
    for _ in range(count // 4):
        tools = toolbox.draw_tools(rng)
        call = toolbox.make_call(rng, toolbox.make_tool(rng, toolbox.other_concept(rng, tools)))
        messages = [Message("user", call.question), Message("assistant", NO_TOOL, "")]
        pieces = chat_pieces(messages, tools=[tool.schema for tool in tools])
        cases.append(case_of("tools unfit", pieces, NO_TOOL, thinking=False))
    return cases


def generate(
    model: LlamaForCausalLM, tokenizer: Tokenizer, prompts: list[str], limit: int
) -> list[str]:
    """Greedy continuations, left-padded together."""
    ids = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    length = max(map(len, ids))
    padded = torch.tensor([[0] * (length - len(row)) + row for row in ids])
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in ids])
    with torch.inference_mode():
        out = model.generate(
            padded, attention_mask=mask, max_new_tokens=limit, do_sample=False, temperature=None, top_k=None, top_p=None,
            pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        )  # fmt: skip
    texts = [tokenizer.decode(row[length:].tolist(), skip_special_tokens=False) for row in out]
    return [text.split("<|im_end|>")[0].split("<|endoftext|>")[0] for text in texts]


def load(folder: Path) -> tuple[LlamaForCausalLM, Tokenizer]:
    """The checkpoint in float32."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.train(False), Tokenizer.from_file(str(folder / "tokenizer.json"))


def is_right(case: Case, text: str) -> bool:
    """Whether the answer has what it must, after the thought if there is one."""
    if case.topic == "thinking on":
        return text.startswith("<think>\n") and "\n</think>\n\n" in text
    answer = text.rpartition("</think>")[2]
    if "<tool_call>" in case.must:
        return _call(answer) == _call(case.must)
    return case.must.lower() in answer.lower()


def _call(text: str) -> object:
    body = text.partition("<tool_call>")[2].partition("</tool_call>")[0]
    try:
        return json.loads(body)
    except ValueError:
        return text


def score(
    cases: list[Case], answer: Callable[[list[str]], list[str]], show: int
) -> dict[str, list[bool]]:
    """Right or wrong by topic; prints the first few wrong answers of each."""
    right: dict[str, list[bool]] = defaultdict(list)
    cases = sorted(cases, key=lambda case: len(case.prompt))
    for start in range(0, len(cases), 48):
        part = cases[start : start + 48]
        for case, text in zip(part, answer([case.prompt for case in part]), strict=True):
            right[case.topic].append(is_right(case, text))
            if not right[case.topic][-1] and right[case.topic].count(False) <= show:
                print(
                    f"[{case.topic}] {case.prompt[-160:]!r}\n   got {text!r}\n   want {case.must!r}"
                )
    return right


def main() -> None:
    """Print one line for each topic."""
    parser = argparse.ArgumentParser(description="Measure embedded:tiny on held-out questions.")
    parser.add_argument("--folder", type=Path, default=TARGET)
    parser.add_argument("--per-topic", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print for each topic")
    options = parser.parse_args()
    torch.set_num_threads(2)
    model, tokenizer = load(options.folder)
    rng = random.Random(options.seed)
    cases = (
        topic_cases(rng, options.per_topic)
        + scene_cases(rng, 4 * options.per_topic)
        + tool_cases(rng, 4 * options.per_topic)
    )
    right = score(cases, lambda prompts: generate(model, tokenizer, prompts, 110), options.show)
    for topic in sorted(right):
        print(
            f"{topic:20} {sum(right[topic]):4}/{len(right[topic]):<4} {100 * sum(right[topic]) / len(right[topic]):5.1f} %"
        )
    total = [value for values in right.values() for value in values]
    print(f"{'all':20} {sum(total):4}/{len(total):<4} {100 * sum(total) / len(total):5.1f} %")


if __name__ == "__main__":
    main()
