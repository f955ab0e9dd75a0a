"""`LoggedClient`: an engine client that logs every request."""

import logging
from collections.abc import AsyncGenerator
from typing import Any, cast

from weft.core.client import AnyParams, EngineClient, PromptSource
from weft.core.values.speech import ClipOutput, Speech
from weft.core.values.types import Request, RequestOptions, SamplingParams

log = logging.getLogger("weft.requests")


# Stop strings, schemas and the like may be long.
_MAX_VALUE_CHARS = 200


def as_logged(client: EngineClient, max_prompt_length: int) -> EngineClient:
    """Returns a client that logs one line for each request. With log level debug, another line has at most
    `max_prompt_length` characters of the prompt's text and as many token ids.
    """
    return cast("EngineClient", LoggedClient(client, max_prompt_length))


class LoggedClient:
    """An engine client that logs each request after `prepare` has accepted it. All other methods are those of the
    wrapped client.
    """

    def __init__(self, client: EngineClient, max_prompt_length: int) -> None:
        self._client = client
        self._max_prompt_length = max_prompt_length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def prepare(
        self, prompt: PromptSource, params: AnyParams, options: RequestOptions
    ) -> Request:
        """Prepares and logs a request."""
        request = await self._client.prepare(prompt, params, options)
        token_ids = request.prompt_token_ids
        _log_request(options, params, f"{len(token_ids)} prompt tokens")
        if log.isEnabledFor(logging.DEBUG):
            end = self._max_prompt_length
            text = None if request.prompt is None else request.prompt[:end]
            log.debug(
                "request %s: prompt %r, token ids %s", options.request_id, text, token_ids[:end]
            )
        return request

    def run_speech(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        """Logs and runs the transcription of a recording."""
        _log_request(options, params, "a recording")
        return self._client.run_speech(speech, params, options)


def _log_request(options: RequestOptions, params: AnyParams, size: str) -> None:
    lora = options.lora_request
    log.info(
        "request %s: %s, priority %d%s, %s",
        options.request_id,
        size,
        options.priority,
        "" if lora is None else f", adapter {lora.lora_name}",
        _changed(params),
    )


def _changed(params: AnyParams) -> str:
    """Returns the parameters that differ from their defaults, without `output_kind`, which the servers set."""
    usual = type(params)()
    changed = [
        f"{name}={_short(value)}"
        for name in params.__struct_fields__
        if name != "output_kind" and (value := getattr(params, name)) != getattr(usual, name)
    ]
    return f"{type(params).__name__}({', '.join(changed)})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
