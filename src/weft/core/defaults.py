"""What `resolve` takes where the user says nothing; the command line shows it beside each flag."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Of options that are numbers, by name.
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
# Bounds on what waits are for strangers; who has all prompts in a list already may have them wait.
UNLIMITED_QUEUE = {"max_num_queued_reqs": 2**31 - 1, "max_num_queued_tokens": 2**31 - 1}
# Rows of a step that is sized by time: as many, halved until there is memory for them.
MOST_ROWS = 2048
# Faster than people read (docs/decisions/0058).
DEFAULT_TARGET_ITL_MS = 100.0
# Of the free memory, what weights and KV pool may take together; the rest is for the arrays of a
# step and for whatever else runs on the machine.
DEFAULT_MEMORY_SHARE = 0.8
# Less than a reader sees; of many streams, a part of what a token by itself costs (docs/decisions/0009).
DEFAULT_STREAM_INTERVAL_MS = 25.0
