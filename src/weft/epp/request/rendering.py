"""Gets the real token ids of a request from a server that has the tokenizer and the chat template."""

import asyncio
from collections.abc import Mapping
from io import BytesIO
from typing import Annotated, Any, Final

import httpx2
import msgspec

from weft.core.values.prompts import pack_tokens
from weft.epp.request.parsers.openai import CHAT, COMPLETIONS
from weft.epp.request.parsers.parser import MAX_TOKEN_ID
from weft.epp.request.parsers.payload import inflate
from weft.epp.request.values import MAX_COMPARED_TOKENS, InferenceRequest, NotRendered, Refused

_MAX_ANSWER_BYTES: Final = 64 * 2**20
_MAX_BODY_BYTES: Final = 64 * 2**20
_TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class _Rendered(msgspec.Struct):
    """A prompt as the render server returns it, in the form of `/inference/v1/generate`; other fields are ignored."""

    token_ids: list[_TokenId]


_answer = msgspec.json.Decoder(_Rendered | list[_Rendered])
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class RenderClient:
    """Sends a request's body to the server's `/render` endpoint for the request's path."""

    def __init__(self, url: str, *, timeout_s: float, chat_timeout_s: float, model: str) -> None:
        self._timeout_s = timeout_s
        self._chat_timeout_s = max(timeout_s, chat_timeout_s)
        self._model = model  # for requests without a model name
        self._http = httpx2.AsyncClient(base_url=url.rstrip("/"), timeout=None)

    def can_render(self, request: InferenceRequest) -> bool:
        """True if the server has an endpoint that renders this request."""
        return _endpoint(request) is not None

    async def render(self, request: InferenceRequest, model: str) -> list[bytes]:
        """Returns each prompt as little-endian uint32 tokens. Raises `NotRendered`. `model` is the model name for the
        server.
        """
        path = _endpoint(request)
        assert path is not None
        body = await asyncio.to_thread(_body, request, model or self._model)
        headers = {"content-type": "application/json"}
        if "authorization" in request.headers:
            headers["authorization"] = request.headers["authorization"]
        try:
            async with asyncio.timeout(self._chat_timeout_s if CHAT in path else self._timeout_s):
                return await asyncio.to_thread(_read, await self._post(path, body, headers))
        except TimeoutError as error:
            raise NotRendered("the render server did not answer in time") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NotRendered(f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        answer = BytesIO()  # not a `bytearray`, which ends with a copy on the event loop
        async with self._http.stream("POST", path, content=body, headers=headers) as response:
            if response.status_code != httpx2.codes.OK:
                raise NotRendered(f"status {response.status_code}")
            async for piece in response.aiter_bytes():
                answer.write(piece)
                if answer.tell() > _MAX_ANSWER_BYTES:
                    raise NotRendered("the answer is too long")
        return answer.getvalue()


def _endpoint(request: InferenceRequest) -> str | None:
    if request.is_grpc or request.path.endswith("/generate"):
        one_text = len(request.prompts) == 1 and request.prompts[0].text is not None
        return f"/v1/{COMPLETIONS}/render" if one_text else None
    for path in (CHAT, COMPLETIONS):
        if request.path.endswith(f"/{path}"):
            return f"/v1/{path}/render" if request.body else None
    return None


def _body(request: InferenceRequest, model: str) -> bytes:
    """Returns the request's decompressed body, with the model name for the server. A prompt that is plain text becomes
    the body of a completion.
    """
    if request.is_grpc or request.path.endswith("/generate"):
        return msgspec.json.encode({"model": model or None, "prompt": request.prompts[0].text})
    body = b"".join(request.body)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    try:
        if encoding not in {"", "identity"}:
            body = inflate(body, encoding, _MAX_BODY_BYTES)
        if model and model != request.model:
            members: dict[str, Any] = {**_members.decode(body), "model": model}
            body = msgspec.json.encode(members)
    except (Refused, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NotRendered(f"the body cannot be passed on: {error}") from error
    return body


def _read(answer: bytes) -> list[bytes]:
    try:
        found = _answer.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotRendered(f"the answer holds no token ids: {error}") from error
    prompts = found if isinstance(found, list) else [found]
    room, packed = MAX_COMPARED_TOKENS, []
    for prompt in prompts:
        packed.append(pack_tokens(prompt.token_ids[:room]))
        room = max(0, room - len(prompt.token_ids))
    return packed
