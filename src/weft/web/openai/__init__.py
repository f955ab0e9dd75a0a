"""OpenAI's /v1/chat/completions and /v1/completions, as endpoints, and the prompts of both in tokens."""

from weft.schema.chat import ChatAnswer, ChatBody, ChatChunk
from weft.schema.completion import CompletionAnswer, CompletionBody, CompletionChunk
from weft.schema.tokens import TokensBody
from weft.web.http.endpoint import Endpoint
from weft.web.inference.call import for_model
from weft.web.inference.fields import beyond_openai
from weft.web.openai.chat import create_chat_completion
from weft.web.openai.completions import create_completion
from weft.web.openai.render import render_chat, render_completion

_CHAT = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
_TEXT = {"prompt": "The capital of France is", "max_tokens": 16}

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/v1/chat/completions",
        handler=for_model(create_chat_completion),
        summary="The next message of a conversation, in one piece or streamed",
        body=ChatBody,
        example=_CHAT,
        deviations=beyond_openai,
        answer=ChatAnswer,
        event=ChatChunk,
    ),
    Endpoint(
        method="POST",
        path="/v1/completions",
        handler=for_model(create_completion),
        summary="What follows one text or several, in one piece or streamed",
        body=CompletionBody,
        example=_TEXT,
        deviations=beyond_openai,
        answer=CompletionAnswer,
        event=CompletionChunk,
    ),
    Endpoint(
        method="POST",
        path="/v1/chat/completions/render",
        handler=for_model(render_chat),
        summary="A conversation's prompt in tokens, as a body of /inference/v1/generate",
        body=ChatBody,
        example=_CHAT,
        deviations=beyond_openai,
        answer=TokensBody,
    ),
    Endpoint(
        method="POST",
        path="/v1/completions/render",
        handler=for_model(render_completion),
        summary="One text or several in tokens, each as a body of /inference/v1/generate",
        body=CompletionBody,
        example=_TEXT,
        deviations=beyond_openai,
        answer=list[TokensBody],
    ),
)
