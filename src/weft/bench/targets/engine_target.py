"""A benchmark target with an `EngineClient`: an engine in this process, or a gRPC server."""

import itertools
import uuid
from contextlib import aclosing

import msgspec

from weft.bench.record import Prompt, Record
from weft.core.client import EngineClient
from weft.core.errors import ConfigError, GenerationError
from weft.core.values.types import FinishReason, SamplingParams

_BROKEN = (FinishReason.ABORT, FinishReason.ERROR)


class EngineTarget:
    """Sends requests to an engine client, and counts token ids without detokenizing them."""

    def __init__(self, client: EngineClient, model: str, params: SamplingParams) -> None:
        self.model = model
        self._client = client
        self._params = params
        self._ids = map(f"bench-{uuid.uuid4().hex[:8]}-{{}}".format, itertools.count())

    async def send(self, prompt: Prompt, record: Record) -> None:
        """Sends a request and records its measurements. Each output counts as a message, which may have several
        tokens.
        """
        if isinstance(prompt.content, tuple):
            raise ConfigError("conversations need --backend openai-chat")
        params = msgspec.structs.replace(self._params, max_tokens=prompt.output_len)
        stream = self._client.generate(prompt.content, params, next(self._ids))
        async with aclosing(stream) as outputs:
            async for output in outputs:
                if any(answer.finish_reason in _BROKEN for answer in output.outputs):
                    raise GenerationError("the server aborted the answer")
                num_tokens = sum(len(answer.token_ids) for answer in output.outputs)
                if num_tokens or (output.is_finished and not record.has_begun):
                    record.take()
                    record.output_tokens += num_tokens
                    record.input_tokens = len(output.prompt_token_ids)
