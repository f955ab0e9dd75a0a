"""/generate: a text with its continuation. In a stream, every line repeats the whole text so far."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from weft.core.errors import BadRequest
from weft.core.values.types import OutputKind, RequestOptions, RequestOutput, SamplingParams
from weft.schema.tokens import SimpleAnswer, SimpleBody
from weft.web.http.endpoint import Answer, Call, endpoint
from weft.web.inference.call import check_repeated, rank_of
from weft.web.inference.fields import beyond_openai, refuse_unsupported, to_params

_DEFAULT_MAX_TOKENS = 16


@endpoint(
    "POST /generate",
    body=SimpleBody,
    example={"prompt": "The capital of France is", "max_tokens": 16},
    deviations=beyond_openai,
    answer=SimpleAnswer,
)
async def simple_generate(call: Call) -> Answer:
    """A text and what follows it, in one piece or as lines of JSON"""
    body: SimpleBody = call.body
    refuse_unsupported(body)
    params = to_params(
        body,
        call.served.client.model_config.default_sampling_params,
        max_tokens=_DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=None,
    )
    check_params(call, params)
    check_repeated("n", params.n * len(body.prompt))
    kind = OutputKind.CUMULATIVE if body.stream else OutputKind.FINAL_ONLY
    params = msgspec.structs.replace(params, output_kind=kind)
    client = call.served.client
    with client.preparing(params.n):
        options = RequestOptions(
            request_id=call.request_id, data_parallel_rank=rank_of(call.headers)
        )
        request = await client.prepare(body.prompt, params, options)
    outputs = client.run(request)
    first = await anext(outputs)
    if body.stream:
        return _Lines(body.prompt, first, outputs)
    async with aclosing(outputs):
        while not first.is_finished:
            first = await anext(outputs)
    return _whole(body.prompt, first)


def check_params(call: Call, params: SamplingParams) -> None:
    """Refuses parameters whose results this endpoint cannot return."""
    if params.n > call.served.options.max_n:
        raise BadRequest("n", f"n must be at most {call.served.options.max_n}, got {params.n}")
    for name in ("prompt_logprobs", "logprob_token_ids"):
        if getattr(params, name) is not None:
            raise BadRequest(name, f"{name} must be absent: /generate answers with text alone")


def _whole(prompt: str, output: RequestOutput) -> SimpleAnswer:
    answers = sorted(output.outputs, key=lambda answer: answer.index)
    return SimpleAnswer(text=[prompt + answer.text for answer in answers])


class _Lines(Response):
    """Writes a line of JSON for each output. A failed stream is cut off, so that it does not look complete."""

    media_type = "application/x-ndjson"

    def __init__(
        self, prompt: str, first: RequestOutput, rest: AsyncGenerator[RequestOutput, None]
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._prompt = prompt
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends all lines; closing `rest` ends the engine's request, however the response ends."""
        del scope, receive
        texts: dict[int, str] = {}
        async with aclosing(self._rest):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send(self._line(self._first, texts))
            async for output in self._rest:
                await send(self._line(output, texts))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _line(self, output: RequestOutput, texts: dict[int, str]) -> dict[str, object]:
        texts |= {answer.index: answer.text for answer in output.outputs}
        line = SimpleAnswer(text=[self._prompt + texts[index] for index in sorted(texts)])
        return {
            "type": "http.response.body",
            "body": msgspec.json.encode(line) + b"\n",
            "more_body": True,
        }
