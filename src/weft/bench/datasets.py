"""Creates the requests of a benchmark from its options, a seed and, for some datasets, a file."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from weft.bench.options import PromptOptions
from weft.bench.record import Content, Prompt
from weft.bench.words import Maker, join, lengths
from weft.core.errors import ConfigError

_FROM_FILES = ("sharegpt", "custom")
# vLLM's limits: conversations beyond them are left out, unless the output length is given.
_MIN_TOKENS = 4
_MAX_PROMPT_TOKENS = 1024
_MAX_TOKENS = 2048


def check_prompts(options: PromptOptions) -> None:
    """Raises a `ConfigError` that names the flag, for prompts that cannot be made."""
    is_file = options.dataset_name in _FROM_FILES
    if is_file and options.dataset_path is None:
        raise ConfigError(f"--dataset-name {options.dataset_name} needs --dataset-path")
    if not is_file and options.dataset_path is not None:
        raise ConfigError("--dataset-path works only with --dataset-name sharegpt or custom")
    if options.num_prompts < 1:
        raise ConfigError("--num-prompts must be at least 1")
    if not 0 <= options.random_range_ratio < 1:
        raise ConfigError("--random-range-ratio must be in [0, 1)")
    if options.prefix_repetition_num_prefixes < 1:
        raise ConfigError("--prefix-repetition-num-prefixes must be at least 1")
    for name in (
        "input_len",
        "output_len",
        "random_input_len",
        "random_output_len",
        "prefix_repetition_suffix_len",
        "prefix_repetition_output_len",
        "sharegpt_output_len",
    ):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    for name in ("random_prefix_len", "prefix_repetition_prefix_len"):
        if getattr(options, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 0")


def make_prompts(options: PromptOptions, maker: Maker, rng: np.random.Generator) -> list[Prompt]:
    """Returns `num_prompts` requests; fewer if the file has fewer and `no_oversample` is set."""
    make: dict[str, Callable[[PromptOptions, Maker, np.random.Generator], list[Prompt]]] = {
        "random": _random,
        "prefix_repetition": _prefix_repetition,
        "sharegpt": _sharegpt,
        "custom": _custom,
    }
    return make[options.dataset_name](options, maker, rng)


def _random(options: PromptOptions, maker: Maker, rng: np.random.Generator) -> list[Prompt]:
    ratio, num = options.random_range_ratio, options.num_prompts
    input_len = options.input_len or options.random_input_len
    output_len = options.output_len or options.random_output_len
    prefix = maker.make(options.random_prefix_len, rng)
    input_lens = lengths(input_len, ratio, num, rng, least=1)
    output_lens = lengths(output_len, ratio, num, rng, least=1)
    return [
        Prompt(join(prefix, maker.make(wanted, rng)), out)
        for wanted, out in zip(input_lens, output_lens, strict=True)
    ]


def _prefix_repetition(
    options: PromptOptions, maker: Maker, rng: np.random.Generator
) -> list[Prompt]:
    """Returns `num_prompts` prompts in random order; the prefixes take turns, so each has about the same number."""
    output_len = options.output_len or options.prefix_repetition_output_len
    prefixes = [
        maker.make(options.prefix_repetition_prefix_len, rng)
        for _ in range(options.prefix_repetition_num_prefixes)
    ]
    contents: list[Content] = [
        join(
            prefixes[number % len(prefixes)], maker.make(options.prefix_repetition_suffix_len, rng)
        )
        for number in range(options.num_prompts)
    ]
    return [Prompt(contents[i], output_len) for i in rng.permutation(options.num_prompts)]


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
