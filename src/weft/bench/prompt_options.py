"""Options of the requests that a benchmark sends."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from weft.core.values.declare import Flag

DATASETS = Literal["random", "sharegpt", "prefix_repetition", "custom", "sonnet", "burstgpt", "hf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Options of the requests to send."""

    dataset_name: Annotated[
        DATASETS,
        Flag(
            "Dataset: random (random tokens), sharegpt (conversations in ShareGPT's format), prefix_repetition "
            '(few prefixes, many suffixes), custom (JSON lines with a "prompt"), sonnet (lines of a text file), '
            "burstgpt (lengths in BurstGPT's CSV file) or hf (rows of a dataset of the Hub, saved as JSON or JSON "
            "lines).",
            "Prompts",
        ),
    ] = "random"
    dataset_path: Annotated[
        Path | None,
        Flag(
            "File with the dataset, for all datasets but random and prefix_repetition.", "Prompts"
        ),
    ] = None
    num_prompts: Annotated[int, Flag("Number of requests to send.", "Prompts")] = 1000
    seed: Annotated[int, Flag("Random seed for prompts, lengths and arrival times.", "Prompts")] = 0
    input_len: Annotated[
        int | None, Flag("Prompt tokens per request; same as --random-input-len.", "Prompts")
    ] = None
    output_len: Annotated[
        int | None, Flag("Output tokens per request, for every dataset.", "Prompts")
    ] = None
    random_input_len: Annotated[
        int, Flag("Prompt tokens per request (random dataset).", "Prompts")
    ] = 1024
    random_output_len: Annotated[
        int, Flag("Output tokens per request (random dataset).", "Prompts")
    ] = 128
    random_range_ratio: Annotated[
        float,
        Flag(
            "Relative range of random lengths, 0 to below 1: 0.2 draws lengths between 0.8 and 1.2 times "
            "the given one.",
            "Prompts",
        ),
    ] = 0.0
    random_prefix_len: Annotated[
        int, Flag("Tokens of a prefix that all prompts share (random dataset).", "Prompts")
    ] = 0
    prefix_repetition_prefix_len: Annotated[
        int, Flag("Tokens per prefix (prefix_repetition dataset).", "Prompts")
    ] = 256
    prefix_repetition_suffix_len: Annotated[
        int, Flag("Tokens per suffix (prefix_repetition dataset).", "Prompts")
    ] = 256
    prefix_repetition_num_prefixes: Annotated[
        int, Flag("Number of different prefixes (prefix_repetition dataset).", "Prompts")
    ] = 10
    prefix_repetition_output_len: Annotated[
        int, Flag("Output tokens per request (prefix_repetition dataset).", "Prompts")
    ] = 128
    sharegpt_output_len: Annotated[
        int | None, Flag("Output tokens per request. Default: as in the dataset.", "Prompts")
    ] = None
    custom_output_len: Annotated[
        int, Flag("Output tokens per request; -1 uses output_tokens of each line.", "Prompts")
    ] = 256
    sonnet_input_len: Annotated[
        int, Flag("Prompt tokens per request (sonnet dataset).", "Prompts")
    ] = 550
    sonnet_output_len: Annotated[
        int, Flag("Output tokens per request (sonnet dataset).", "Prompts")
    ] = 150
    sonnet_prefix_len: Annotated[
        int, Flag("Tokens of lines that all prompts share (sonnet dataset).", "Prompts")
    ] = 200
    hf_output_len: Annotated[
        int | None,
        Flag(
            "Output tokens per request (hf dataset). Default: as in the file's answers.", "Prompts"
        ),
    ] = None
    disable_shuffle: Annotated[
        bool, Flag("Keep the order of the file; do not shuffle.", "Prompts")
    ] = False
    no_oversample: Annotated[
        bool,
        Flag(
            "Send fewer requests if the file has fewer prompts, instead of repeating prompts.",
            "Prompts",
        ),
    ] = False
