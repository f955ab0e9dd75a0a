"""A model behind a server's gRPC port: its chat template is rendered, and its answers are parsed, in this process."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from weft.cli.chat.connect import connected, to_sampling_params
from weft.cli.chat.model_answer import Answer, Messages
from weft.cli.options import ConnectOptions, SampleOptions
from weft.core.errors import ConfigError
from weft.core.values.types import RequestOptions, SamplingParams
from weft.model.tokenizers.templates import read_chat_template
from weft.text.parsers.parts import Content, Reasoning
from weft.text.parsers.table import choose_reasoning_parser
from weft.text.templates.chat import ChatTemplate
from weft.text.tokenizer import open_tokenizer
from weft.web.chat.run import run_turn
from weft.web.chat.turn import Began, Ended, Turn, TurnDelta
from weft.web.options import ApiOptions
from weft.web.served import Served


class GrpcModel:
    """A model behind a server's gRPC port, as a `ServedModel`."""

    def __init__(self, served: Served, params: SamplingParams, *, thinks: bool | None) -> None:
        self._served = served
        self._params = params
        self._kwargs: dict[str, Any] = {} if thinks is None else {"enable_thinking": thinks}

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        connect: ConnectOptions,
        sample: SampleOptions,
        *,
        thinks: bool | None,
    ) -> "GrpcModel":
        """Connects to the server and reads the model's properties. Raises an error for invalid parameters."""
        client = await stack.enter_async_context(connected(connect))
        params = to_sampling_params(sample, client, max_tokens=None)
        files = await client.get_tokenizer_files()
        name = client.model_config.served_model_name
        source = read_chat_template(files, name)
        if source is None:
            raise ConfigError(f"{name} has no chat template; use weft complete")
        tokenizer = open_tokenizer(files, name)
        served = Served(
            client=client,
            tokenizer=tokenizer,
            chat_template=stack.enter_context(ChatTemplate(source, tokenizer.special_tokens)),
            started_at=int(time.time()),
            options=ApiOptions(reasoning_parser=choose_reasoning_parser(source)),
        )
        return cls(served, params, thinks=thinks)

    @property
    def name(self) -> str:
        """Name of the served model."""
        return self._served.client.model_config.served_model_name

    async def answer(
        self, messages: Messages, answer: Answer
    ) -> AsyncGenerator[Reasoning | Content, None]:
        """Yields the parts of the model's answer to `messages` as they arrive; appends each part to `answer` before it
        is yielded.
        """
        turn = Turn(
            options=RequestOptions(request_id=f"cli-{uuid.uuid4().hex}"),
            messages=messages,
            params=self._params,
            template_kwargs=self._kwargs,
        )
        async with aclosing(run_turn(self._served, turn)) as events:
            async for event in events:
                match event:
                    case Began():
                        answer.num_prompt_tokens = len(event.prompt_token_ids)
                    case TurnDelta():
                        for part in _count(answer, event):
                            answer.add(part)
                            yield part
                    case Ended():
                        answer.num_cached_tokens = event.num_cached_tokens


def _count(answer: Answer, delta: TurnDelta) -> list[Reasoning | Content]:
    """Adds the tokens of a delta to the answer, and returns its texts."""
    if answer.arrive():
        answer.num_first = len(delta.token_ids)
    answer.num_tokens += len(delta.token_ids)
    answer.num_reasoning_tokens += delta.num_reasoning_tokens
    answer.finish_reason = delta.finish_reason or answer.finish_reason
    return [part for part in delta.parts if isinstance(part, Reasoning | Content)]
