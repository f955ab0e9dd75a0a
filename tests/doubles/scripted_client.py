"""`ScriptedClient`: an engine's front half as it is, and in place of the engine a text that is told."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from weft.core.config.engine import EngineConfig
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.types import FinishReason, LogprobRow, Request, SequenceOutput
from weft.engine.front.client import FrontClient
from weft.engine.ipc.messages import Add, Command, StepOutput
from weft.text.tokenizer import Tokenizer

_TURNS_TO_READ = 4  # of the event loop, until who waits has taken what there is


class ScriptedClient(FrontClient):
    """Every answer to every request is `script`, in as many pieces as `borders` make of its tokens.

    An answer that `max_tokens` does not cut ends with "stop". With `is_hasty` nothing waits for the
    reader, which then finds pieces joined.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.script: list[int] = []
        self.borders: Sequence[int] = ()
        self.is_hasty = False
        self._telling: set[asyncio.Task[None]] = set()

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing runs."""

    async def wait_closed(self) -> None:
        """Nothing runs."""

    def _send(self, command: Command) -> None:
        if isinstance(command, Add):
            task = asyncio.create_task(self._tell(command.request))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, request: Request) -> None:
        limit = request.params.max_tokens
        tokens = self.script[:limit]
        reason = FinishReason.LENGTH if len(tokens) < len(self.script) else FinishReason.STOP
        cuts = sorted({0, len(tokens), *(cut for cut in self.borders if cut < len(tokens))})
        for start, end in pairwise(cuts):
            outputs = [
                SequenceOutput(
                    engine_id=request.engine_id,
                    index=index,
                    token_ids=tokens[start:end],
                    logprobs=_rows(request, tokens[start:end]),
                    finish_reason=reason if end == len(tokens) else None,
                )
                for index in range(request.params.n)
            ]
            self._on_event(StepOutput(outputs=outputs, load=EngineLoad()))
            if not self.is_hasty:
                for _ in range(_TURNS_TO_READ):
                    await asyncio.sleep(0)


def _rows(request: Request, token_ids: Sequence[int]) -> list[LogprobRow] | None:
    """The token told, and as many others as were asked for; a function of the token alone."""
    num_top = request.params.logprobs
    if num_top is None:
        return None
    return [
        [(token, -0.5, 1), *((30 + rank, -1.0 - rank, 1 + rank) for rank in range(1, num_top + 1))]
        for token in token_ids
    ]
