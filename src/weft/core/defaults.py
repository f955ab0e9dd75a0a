"""What `resolve` takes where the user says nothing; the command line shows it beside each flag."""

DEFAULT_BLOCK_SIZE = 16
DEFAULT_MAMBA_BLOCK_SIZE = 512
DEFAULT_MAX_NUM_SEQS = 128
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
DEFAULT_MAX_NUM_QUEUED_REQS = 2048
DEFAULT_MAX_NUM_QUEUED_TOKENS = 4_000_000
# Bounds on what waits are for strangers; who has all prompts in a list already may have them wait.
UNLIMITED_QUEUE = {"max_num_queued_reqs": 2**31 - 1, "max_num_queued_tokens": 2**31 - 1}
# Of the free memory, what weights and KV pool may take together; the rest is for the arrays of a
# step and for whatever else runs on the machine.
DEFAULT_MEMORY_SHARE = 0.8
DEFAULT_PACKED_CACHE_BYTES = 32 << 30
DEFAULT_MAX_LORAS = 8
DEFAULT_MAX_LORA_RANK = 16
# Less than a reader sees; of many streams, a part of what a token by itself costs (docs/decisions/0009).
DEFAULT_STREAM_INTERVAL_MS = 25.0
