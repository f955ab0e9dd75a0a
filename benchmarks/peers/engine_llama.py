"""llama.cpp as one of the engines, through its C API: prompts and steps of all sequences in common batches."""

import ctypes
import os
import sys
import time
from typing import Any

import llama_cpp
import numpy as np
from protocol import claim_stdout, report, serve

BATCH_TOKENS = 2048
CONTEXT_STEP = 256


class Llama:
    """One model, and a context for as many sequences of such a length as the last run had."""

    def __init__(self, path: str) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        self._context, self._size = None, (0, 0)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def run(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Greedy, all sequences together; a part that all prompts begin with is computed once."""
        self._make_room(len(prompts), max(map(len, prompts)) + max_tokens)
        started = time.perf_counter()
        llama_cpp.llama_memory_clear(self._memory, True)
        shared = _num_shared(prompts)
        self._decode([(0, position, prompts[0][position], False) for position in range(shared)])
        for sequence in range(1, len(prompts) if shared else 0):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        tokens, first_s = [], []
        for sequence, prompt in enumerate(prompts):
            rows = [
                (sequence, position, prompt[position], position == len(prompt) - 1)
                for position in range(shared, len(prompt))
            ]
            tokens += self._decode(rows)
            first_s.append(time.perf_counter() - started)
        for step in range(1, max_tokens):
            rows = [
                (sequence, len(prompt) + step - 1, tokens[sequence], True)
                for sequence, prompt in enumerate(prompts)
            ]
            tokens = self._decode(rows)
        return report(started, first_s, len(prompts) * max_tokens)

    def _make_room(self, num_sequences: int, length: int) -> None:
        size = (num_sequences, -(-length // CONTEXT_STEP) * CONTEXT_STEP)
        if size == self._size:
            return
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = size[0] * size[1]
        params.n_seq_max = num_sequences
        # With one buffer for all, each row looks at every sequence's keys.
        params.kv_unified = False
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        self._context, self._size = llama_cpp.llama_init_from_model(self._model, params), size
        self._memory = llama_cpp.llama_get_memory(self._context)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        chosen: list[int] = []
        for start in range(0, len(rows), BATCH_TOKENS):
            chosen += self._decode_batch(rows[start : start + BATCH_TOKENS])
        return chosen

    def _decode_batch(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (sequence, position, token, wants_logits) in enumerate(rows):
            batch.token[row] = token
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = wants_logits
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        return [self._best(row) for row, wanted in enumerate(rows) if wanted[3]]

    def _best(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())


def _num_shared(prompts: list[list[int]]) -> int:
    """Leading ids that all prompts have in common, if there are several; each keeps one of its own."""
    if len(prompts) == 1:
        return 0
    shared = 0
    for ids in zip(*prompts, strict=False):
        if len(set(ids)) > 1:
            break
        shared += 1
    return min(shared, min(map(len, prompts)) - 1)


def main() -> None:
    """Load, then answer."""
    pipe = claim_stdout()
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    serve(pipe, Llama(sys.argv[1]).run, "llama.cpp", llama_cpp.__version__)


@llama_cpp.llama_log_callback
def silent(level: int, text: bytes, data: object) -> None:
    """What llama.cpp is to log with: nothing."""
    del level, text, data


if __name__ == "__main__":
    main()
