"""`EchoRunner`: answers with the prompt, token by token, at a set pace; its KV pool holds token ids."""

import time
from collections.abc import Callable

import numpy as np

from weft.compute.runner import Batch, FloatArray, IntArray
from weft.model.spec import EchoSpec

_CERTAIN = 100.0  # logit of the answer; all others are 0, so sampling at temperature 1 obeys too


class EchoRunner:
    """A row `k` tokens after the last of the prompt answers prompt token `k`, then end-of-sequence."""

    def __init__(self, spec: EchoSpec, sleep: Callable[[float], None] = time.sleep) -> None:
        self.vocab_size = spec.vocab_size
        self._spec = spec
        self._sleep = sleep
        self._block_size = 0
        self._token_ids: IntArray = np.zeros(0, np.int32)  # [slots]

    def allocate_kv(self, *, num_blocks: int, block_size: int) -> None:
        """Make the pool of token ids."""
        self._block_size = block_size
        self._token_ids = np.zeros(num_blocks * block_size, np.int32)

    def forward(self, batch: Batch) -> FloatArray:
        """Answer each wanted row; sleeps for the first token of a prompt, else for the next one."""
        self._token_ids[batch.slots] = batch.token_ids
        sequences = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        prompt_lens = batch.prompt_lens[sequences]
        places = batch.positions[batch.logit_rows] - prompt_lens + 1  # in the prompt
        # Rows before the prompt's last are asked for scores only; they answer its first token.
        within = np.clip(places, 0, prompt_lens - 1)
        blocks = batch.block_tables[sequences, within // self._block_size]
        answers = self._token_ids[blocks * self._block_size + within % self._block_size]
        answers = np.where(places < prompt_lens, answers, self._spec.eos_token_id)
        logits = np.zeros((len(answers), self.vocab_size), np.float32)
        logits[np.arange(len(answers)), answers] = _CERTAIN
        self._keep_pace(batch)
        return logits

    def _keep_pace(self, batch: Batch) -> None:
        last_rows = batch.query_starts[1:] - 1
        last_positions = batch.positions[last_rows]
        first_positions = batch.positions[batch.query_starts[:-1]]
        finishes = (first_positions < batch.prompt_lens) & (last_positions >= batch.prompt_lens - 1)
        if finishes.any():
            self._sleep(self._spec.ttft_s)
        elif (first_positions >= batch.prompt_lens).all():
            self._sleep(self._spec.itl_s)
