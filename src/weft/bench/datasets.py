"""Creates the requests of a benchmark from its options, a seed and, for some datasets, a file."""

import numpy as np

from weft.bench.dataset_files import FROM_FILES
from weft.bench.prompt_options import PromptOptions
from weft.bench.record import Content, Prompt
from weft.bench.words import Maker, join, lengths
from weft.core.errors import ConfigError


def check_prompts(options: PromptOptions) -> None:
    """Raises a `ConfigError` that names the flag, for prompts that cannot be made."""
    is_file = options.dataset_name in FROM_FILES
    if is_file and options.dataset_path is None:
        raise ConfigError(f"--dataset-name {options.dataset_name} needs --dataset-path")
    if not is_file and options.dataset_path is not None:
        raise ConfigError(f"--dataset-path works only with --dataset-name {', '.join(FROM_FILES)}")
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
        "hf_output_len",
        "sonnet_input_len",
        "sonnet_output_len",
    ):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    for name in ("random_prefix_len", "prefix_repetition_prefix_len", "sonnet_prefix_len"):
        if getattr(options, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 0")


def make_prompts(options: PromptOptions, maker: Maker, rng: np.random.Generator) -> list[Prompt]:
    """Returns `num_prompts` requests; fewer if the file has fewer and `no_oversample` is set."""
    make = {"random": _random, "prefix_repetition": _prefix_repetition, **FROM_FILES}
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
