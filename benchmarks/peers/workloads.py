"""What every engine is given: prompts as token ids, fixed lengths, greedy, no end of sequence."""

import random
from dataclasses import dataclass

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Workload:
    """`num_prompts` at once, `prompt_tokens` in (the first `shared_tokens` equal) and `max_tokens` out.

    `is_warm` repeats the shared part of the run before, which a prefix cache may then hold. One that `is_long` takes
    minutes, and is measured only where it is named.
    """

    name: str
    num_prompts: int
    prompt_tokens: int
    max_tokens: int
    shared_tokens: int = 0
    is_warm: bool = False
    is_long: bool = False

    def prompts(self, vocab_size: int, seed: int) -> Prompts:
        """Fresh ids for every seed, so that no prefix cache helps; a warm run shares with its cold one."""
        shared = random.Random(f"{self.prompt_tokens} {seed}")
        own = random.Random(f"{self.name} {seed}")
        prefix = [shared.randrange(vocab_size) for _ in range(self.shared_tokens)]
        rest = self.prompt_tokens - self.shared_tokens
        return [
            prefix + [own.randrange(vocab_size) for _ in range(rest)]
            for _ in range(self.num_prompts)
        ]


# The names and lengths that the peers were first measured with; a first run of each shape is thrown away.
WORKLOADS = (
    Workload("W1", 1, 128, 128),
    Workload("W2", 32, 128, 128),
    Workload("W3 cold", 32, 544, 32, shared_tokens=512),
    Workload("W3 warm", 32, 544, 32, shared_tokens=512, is_warm=True),
    Workload("W4", 8, 1024, 8),
    Workload("W6", 1, 8192, 8, is_long=True),
    Workload("W7", 4, 4096, 64, is_long=True),
)
LONGEST = max(workload.prompt_tokens + workload.max_tokens for workload in WORKLOADS)
SERVED = Workload("W5", 32, 128, 128)
SERVED_CLIENTS = 16
