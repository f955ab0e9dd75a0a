"""Anthropic's /v1/messages and /v1/messages/count_tokens, as endpoints."""

from weft.schema.anthropic import (
    CountAnswer,
    MessageAnswer,
    MessagesBody,
    PromptBody,
    StreamEvent,
)
from weft.web.anthropic.messages import count_tokens, create_message
from weft.web.http.endpoint import Dialect, Endpoint
from weft.web.inference.call import for_model

_MESSAGES = {"messages": [{"role": "user", "content": "Hello!"}]}

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/v1/messages",
        handler=for_model(create_message),
        summary="The next message of a conversation in Anthropic's words, in one piece or streamed",
        dialect=Dialect.ANTHROPIC,
        body=MessagesBody,
        example={**_MESSAGES, "max_tokens": 32},
        answer=MessageAnswer,
        event=StreamEvent,
    ),
    Endpoint(
        method="POST",
        path="/v1/messages/count_tokens",
        handler=for_model(count_tokens),
        summary="How many tokens the prompt of such a conversation takes",
        dialect=Dialect.ANTHROPIC,
        body=PromptBody,
        example=_MESSAGES,
        answer=CountAnswer,
    ),
)
