"""`GrammarChecker`: translates a constraint into the text of a grammar, and checks that the grammar builds within
limits.

Grammars are test-built in child processes, because only a process can be stopped after two seconds. The engine then
builds the checked text without risk.
"""

import asyncio
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from weft.core.aio.worker import Worker
from weft.core.checks.structured import kind_of, schema_of
from weft.core.errors import BadRequest, Unavailable
from weft.core.values.types import StructuredOutputsParams
from weft.text.tokenizer import Tokenizer

TIME_LIMIT_S = 2.0
MAX_MEMORY_BYTES = 4 << 30
MAX_CACHE_BYTES = 16 << 20
_ENTRY_BYTES = 256  # overhead of a cache entry besides its text
# Two, so that a series of hostile grammars does not block all other requests.
_NUM_WORKERS = 2


class GrammarChecker:
    """Checks constraints.

    Used on one event loop; the child processes start at the first check, and `close` ends them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._cache = _TextCache(MAX_CACHE_BYTES)
        self._threads = ThreadPoolExecutor(_NUM_WORKERS, "weft-grammar-check")
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._time_limit_s = time_limit_s
        self._setup: str | None = None
        self._is_closed = False

    async def check(
        self, params: StructuredOutputsParams, *, unless: asyncio.Event | None = None
    ) -> str | None:
        """Returns the text of the constraint's grammar; None if `unless` is set first.

        Raises a `BadRequest` that names the constraint if the grammar cannot be built within the limits.
        """
        line = _to_line(params)
        text = self._cache.get(line)
        if text is not None:
            return text
        # With wrap_future a cancelled caller does not wait; the child process has its own time limit.
        work = asyncio.wrap_future(self._threads.submit(self._request, line))
        if not await _is_done(work, unless):
            return None
        answer = work.result()
        if answer is None:
            raise BadRequest(
                kind_of(params),
                f"{kind_of(params)} takes more than {self._time_limit_s:g} s, or too much memory, to build",
            )
        if "grammar" not in answer:
            raise BadRequest(kind_of(params), f"{kind_of(params)} is refused: {answer['error']}")
        self._cache.put(line, answer["grammar"])
        return answer["grammar"]

    def close(self) -> None:
        """Ends the child processes; idempotent."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        self._threads.shutdown(wait=False)  # waiting checks then fail, each with its own error
        for worker in idle:
            worker.stop()

    def _request(self, line: str) -> dict[str, str] | None:
        with self._lock:
            if self._is_closed:
                raise Unavailable("the server is shutting down")
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = Worker("weft.engine.constraints.check_worker", self._setup_line())
        answer = worker.call(line)
        with self._lock:
            is_reusable = answer is not None and not self._is_closed
            if is_reusable:
                self._idle.append(worker)
        if not is_reusable:
            worker.stop()
        return answer

    def _setup_line(self) -> str:
        if self._setup is None:  # made once, because encoding a large tokenizer takes long
            setup = {
                "tokenizer": self._tokenizer.to_json(),
                "vocab_size": self._vocab_size,
                "eos_token_ids": self._eos_token_ids,
                "time_limit_s": self._time_limit_s,
                "max_memory_bytes": MAX_MEMORY_BYTES,
            }
            self._setup = json.dumps(setup) + "\n"
        return self._setup


class _TextCache:
    """LRU cache of grammar texts. The keys are digests of the constraints."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._texts: OrderedDict[bytes, str] = OrderedDict()

    def get(self, key: str) -> str | None:
        digest = _digest(key)
        text = self._texts.get(digest)
        if text is not None:
            self._texts.move_to_end(digest)
        return text

    def put(self, key: str, text: str) -> None:
        digest = _digest(key)
        if digest in self._texts:
            return
        self._texts[digest] = text
        self.num_bytes += len(text) + _ENTRY_BYTES
        while self.num_bytes > self._max_bytes:
            _, oldest = self._texts.popitem(last=False)
            self.num_bytes -= len(oldest) + _ENTRY_BYTES


async def _is_done(work: asyncio.Future[Any], unless: asyncio.Event | None) -> bool:
    """Waits for `work` and returns True; if the event `unless` is set first, cancels `work` and returns False."""
    ended = asyncio.ensure_future(asyncio.Event().wait() if unless is None else unless.wait())
    try:
        await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        ended.cancel()
        work.cancel()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _to_line(params: StructuredOutputsParams) -> str:
    kind = kind_of(params)
    value = schema_of(params.json) if kind == "json" else getattr(params, kind)
    return (
        json.dumps({"kind": kind, "value": value, "whitespace_pattern": params.whitespace_pattern})
        + "\n"
    )
