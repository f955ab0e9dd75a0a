"""Requests from the files of public datasets, and from files of the user."""

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from weft.bench.prompt_options import PromptOptions
from weft.bench.record import Content, Prompt
from weft.bench.words import Maker
from weft.core.errors import ConfigError

# vLLM's limits: conversations beyond them are left out, unless the output length is given.
_MIN_TOKENS = 4
_MAX_PROMPT_TOKENS = 1024
_MAX_TOKENS = 2048
_TASK_OF_SONNET = "Choose some of these lines, and write them again:\n"
# Columns of datasets on the Hub, in the order in which they are looked for.
_QUESTIONS = ("prompt", "question", "instruction", "text")
_ANSWERS = ("response", "answer", "output", "completion")


def _sharegpt(options: PromptOptions, maker: Maker, rng: np.random.Generator) -> list[Prompt]:
    """Returns the first turn of each conversation as a prompt; the second turn gives the length of the answer."""
    path = _path(options)
    fixed = options.output_len or options.sharegpt_output_len
    rows = _decode(_read(path), list[dict[str, Any]], str(path))

    def read() -> Iterator[Prompt]:
        for row in rows:
            turns = row.get("conversations")
            if not isinstance(turns, list) or len(turns) < 2:
                continue
            question, answer = (str(turn.get("value", "")) for turn in turns[:2])
            num_in, num_out = maker.count(question), fixed or maker.count(answer)
            if num_out is None:
                raise ConfigError(
                    "--dataset-name sharegpt needs --sharegpt-output-len or --tokenizer"
                )
            if _is_usable(num_in, num_out, is_fixed=fixed is not None):
                yield Prompt(question, num_out)

    return _sampled(list(read()), options, rng)


def _is_usable(num_in: int | None, num_out: int, *, is_fixed: bool) -> bool:
    if num_in is None:
        return True
    if num_in < _MIN_TOKENS or (num_out < _MIN_TOKENS and not is_fixed):
        return False
    return num_in <= _MAX_PROMPT_TOKENS and num_in + num_out <= _MAX_TOKENS


def _custom(options: PromptOptions, maker: Maker, rng: np.random.Generator) -> list[Prompt]:
    """Reads lines of JSON: `prompt` is a text or a list of messages. `output_tokens` is used if the options say so."""
    del maker
    path = _path(options)
    fixed = options.output_len or options.custom_output_len
    prompts = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        row = _decode(line, dict[str, Any], f"{path}:{number}")
        output_len = row.get("output_tokens") if fixed == -1 else fixed
        if not isinstance(output_len, int) or output_len < 1:
            raise ConfigError(
                f"{path}:{number}: --custom-output-len -1 needs output_tokens in every line"
            )
        prompts.append(Prompt(_content(row.get("prompt"), f"{path}:{number}"), output_len))
    return _sampled(prompts, options, rng)


def _hf(options: PromptOptions, maker: Maker, rng: np.random.Generator) -> list[Prompt]:
    """Rows of a dataset of the Hub that was saved as JSON or JSON lines; the columns are found by their names."""
    path = _path(options)
    if path.suffix == ".parquet":
        raise ConfigError(
            f'--dataset-path {path}: must be JSON or JSON lines; convert it: python -c "import pandas; '
            f"pandas.read_parquet('{path}').to_json('{path.stem}.jsonl', orient='records', lines=True)\""
        )
    fixed = options.output_len or options.hf_output_len
    prompts = []
    for row in _rows(path):
        question, answer = _turns(row)
        num_out = fixed or (maker.count(answer) if answer else None)
        if question and num_out is None:
            raise ConfigError(
                "--dataset-name hf needs --hf-output-len, or --tokenizer and answers in the file"
            )
        if question and num_out:
            prompts.append(Prompt(question, num_out))
    return _sampled(prompts, options, rng)


def _rows(path: Path) -> list[dict[str, Any]]:
    data = _read(path)
    if data.lstrip().startswith(b"["):
        return list(_decode(data, list[dict[str, Any]], str(path)))
    return [
        _decode(line, dict[str, Any], f"{path}:{number}")
        for number, line in enumerate(data.splitlines(), 1)
        if line.strip()
    ]


def _turns(row: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the first question of a row and its answer; "" for what the row does not have."""
    for name in ("conversations", "messages", "conversation"):
        turns = row.get(name)
        if isinstance(turns, list):
            texts = [
                str(turn.get("value") or turn.get("content") or "")
                for turn in turns
                if isinstance(turn, Mapping) and turn.get("role", turn.get("from")) != "system"
            ]
            question, answer, *_ = (*texts, "", "")
            return question, answer
    question, answer = (
        next((str(row[name]) for name in names if row.get(name)), "")
        for names in (_QUESTIONS, _ANSWERS)
    )
    return "\n".join(part for part in (question, str(row.get("input") or "")) if part), answer


def _burstgpt(options: PromptOptions, maker: Maker, rng: np.random.Generator) -> list[Prompt]:
    """Random prompts with the lengths of BurstGPT's requests to GPT-4 that were answered."""
    path = _path(options)
    table = csv.DictReader(_read(path).decode("utf-8", "replace").splitlines())
    columns = ("Model", "Request tokens", "Response tokens")
    if missing := set(columns) - set(table.fieldnames or ()):
        raise ConfigError(f"--dataset-path {path}: the table has no column {min(missing)!r}")
    try:
        sizes = [
            (max(int(row["Request tokens"]), 1), int(row["Response tokens"]))
            for row in table
            if row["Model"] == "GPT-4" and int(row["Response tokens"]) > 0
        ]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--dataset-path {path}, line {table.line_num}: {error}") from error
    chosen = _sampled([Prompt("", number) for number in range(len(sizes))], options, rng)
    return [
        Prompt(maker.make(num_in, rng), options.output_len or num_out)
        for num_in, num_out in (sizes[one.output_len] for one in chosen)
    ]


def _sonnet(options: PromptOptions, maker: Maker, rng: np.random.Generator) -> list[Prompt]:
    """Prompts of random lines of a text, after lines that all prompts share."""
    path = _path(options)
    text_lines = _read(path).decode("utf-8", "replace").splitlines(keepends=True)
    counts = [maker.count(line) for line in text_lines]
    task_len = maker.count(_TASK_OF_SONNET)
    if task_len is None or None in counts:
        raise ConfigError("--dataset-name sonnet needs --tokenizer")
    if not text_lines:
        raise ConfigError(f"--dataset-path {path}: the file has no usable prompt")
    line_len = sum(count or 0 for count in counts) / len(counts)
    num_shared = max(round((options.sonnet_prefix_len - task_len) / line_len), 0)
    num_lines = max(round((options.sonnet_input_len - task_len) / line_len) - num_shared, 1)
    start = _TASK_OF_SONNET + "".join(text_lines[:num_shared])
    return [
        Prompt(
            start + "".join(text_lines[i] for i in rng.integers(len(text_lines), size=num_lines)),
            options.output_len or options.sonnet_output_len,
        )
        for _ in range(options.num_prompts)
    ]


def _content(found: object, where: str) -> Content:
    if isinstance(found, str):
        return found
    if isinstance(found, list) and found and all(isinstance(item, Mapping) for item in found):
        return tuple(found)
    raise ConfigError(f'{where}: "prompt" must be a text or a list of messages')


def _sampled(
    prompts: list[Prompt], options: PromptOptions, rng: np.random.Generator
) -> list[Prompt]:
    if not prompts:
        raise ConfigError(f"{options.dataset_path}: the file has no usable prompt")
    if not options.disable_shuffle:
        prompts = [prompts[i] for i in rng.permutation(len(prompts))]
    missing = options.num_prompts - len(prompts)
    if missing > 0 and not options.no_oversample:
        prompts += [prompts[i] for i in rng.integers(len(prompts), size=missing)]
    return prompts[: options.num_prompts]


def _path(options: PromptOptions) -> Path:
    assert options.dataset_path is not None
    return options.dataset_path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--dataset-path {path}: {error.strerror}") from error


def _decode(text: bytes, kind: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: {error}") from error


FROM_FILES: Final[
    Mapping[str, Callable[[PromptOptions, Maker, np.random.Generator], list[Prompt]]]
] = {
    "sharegpt": _sharegpt,
    "custom": _custom,
    "sonnet": _sonnet,
    "burstgpt": _burstgpt,
    "hf": _hf,
}
