"""Defaults of options that the user leaves out; the command line shows them beside each flag."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Defaults of numeric options, by name.
DEFAULTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "block_size": 16,
        "mamba_block_size": 512,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 512,
        "max_num_queued_reqs": 2048,
        "max_num_queued_tokens": 4_000_000,
        "packed_cache_bytes": 32 << 30,
        "max_loras": 8,
        "max_lora_rank": 16,
    }
)
# Limits of the queue protect servers from callers. A Python caller that holds all prompts in a list needs no limit.
UNLIMITED_QUEUE = {"max_num_queued_reqs": 2**31 - 1, "max_num_queued_tokens": 2**31 - 1}
DEFAULT_MAX_IMAGES = 16  # per prompt
# Maximum number of rows of a step whose size is limited by time; halved until the step fits into memory.
MOST_ROWS = 2048
# Output at this interval is faster than people read (docs/decisions/0058).
DEFAULT_TARGET_ITL_MS = 100.0
# Share of the free memory for weights and KV pool together; the rest is for a step's arrays and for other programs.
DEFAULT_MEMORY_SHARE = 0.8
# A delay too short to notice; with many streams it saves most of the cost of sending tokens one by one
# (docs/decisions/0009).
DEFAULT_STREAM_INTERVAL_MS = 25.0
