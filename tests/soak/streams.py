"""Mixed streams over HTTP and gRPC, and their whole answers, which are always the same for the same number."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx2
import msgspec
from google.protobuf.json_format import ParseDict

from tests.soak.resuming import ResumedStream
from weft.core.checks.lora import LORA_METADATA
from weft.core.errors import Unavailable
from weft.core.values.types import OutputKind, SamplingParams, StructuredOutputsParams
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.fleet import Fleet

ADAPTER = "adapter"
NUM_VARIANTS = 3
CHAT, COMPLETIONS, RPC = "/v1/chat/completions", "/v1/completions", "gRPC"
RPC_ADAPTER = "gRPC, with the adapter"
TOPICS = ("What is the capital of France?", "Tell me about the sea.", "Why is the sky blue?")
SHAPE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 60}, "ok": {"type": "boolean"}},
    "required": ["city", "ok"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "visit", "parameters": SHAPE}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "visit", "schema": SHAPE}}
LENGTH = 120


def _chat(variant: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": TOPICS[variant]}]
    return {"messages": messages, "max_tokens": LENGTH, **fields}


def _completion(variant: int, **fields: Any) -> dict[str, Any]:
    return {"prompt": TOPICS[variant], "max_tokens": LENGTH, "ignore_eos": True, **fields}


def _rpc(variant: int, num_tokens: int = 40, **params: Any) -> dict[str, Any]:
    tokens = [100 + (31 * place + 7 * variant) % 900 for place in range(num_tokens)]
    params = {"max_tokens": LENGTH, "ignore_eos": True, **params}
    return {"tokenized": {"input_ids": tokens}, "sampling_params": params, "stream": True}


# By name: where the request goes, and its body for the variant with a number.
KINDS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "greedy chat": (CHAT, lambda v: _chat(v, temperature=0, ignore_eos=True)),
    "seeded chat": (CHAT, lambda v: _chat(v, seed=v, logprobs=True, top_logprobs=2)),
    "tools": (CHAT, lambda v: _chat(v, seed=v, tools=[TOOL], tool_choice="required")),
    "schema": (CHAT, lambda v: _chat(v, seed=v, response_format=FORMAT)),
    "three answers": (CHAT, lambda v: _chat(v, seed=v, n=3)),
    "stop strings": (COMPLETIONS, lambda v: _completion(v, seed=v, stop=["ing the", "qu", "9"])),
    "logprobs": (COMPLETIONS, lambda v: _completion(v, temperature=0, logprobs=3)),
    "adapter": (COMPLETIONS, lambda v: _completion(v, seed=v, model=ADAPTER)),
    "penalties": (COMPLETIONS, lambda v: _completion(v, seed=v, presence_penalty=0.7, n=2)),
    "greedy": (RPC, lambda v: _rpc(v, temperature=0.0)),
    "seeded": (RPC, lambda v: _rpc(v, seed=v, n=3, logprobs=2)),
    "grammar": (RPC, lambda v: _rpc(v, seed=v, regex="[a-f ]{80}", ignore_eos=False)),
    "long prompt": (RPC, lambda v: _rpc(v, num_tokens=800, seed=v, max_tokens=60)),
    "adapter over gRPC": (RPC_ADAPTER, lambda v: _rpc(v, seed=v)),
    "scored prompt": (RPC, lambda v: _rpc(v, seed=v, prompt_logprobs=1, logprobs=1)),
}
NUM_DISTINCT = NUM_VARIANTS * len(KINDS)


def kind_of(number: int) -> str:
    """The kind of the stream with a number."""
    return list(KINDS)[number % len(KINDS)]


@dataclass(eq=False)
class Stream:
    """One request and what has arrived of its answer. `rank` is the engine where it begins."""

    number: int
    rank: int | None = None
    answer: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage: Any = None
    num_events: int = 0
    last_at: float = 0.0
    is_over: bool = False
    was_cut: bool = False  # its engine was ended while it ran
    longest_s: float = 0.0  # pause, of a stream that was cut, since then

    @property
    def whole(self) -> tuple[Any, ...]:
        """What must be equal to that of an undisturbed run."""
        return self.answer, self.usage

    def _took(self) -> None:
        now = time.monotonic()
        if self.num_events:
            self.longest_s = max(self.longest_s, now - self.last_at)
        self.num_events += 1
        self.last_at = now

    def cut(self) -> None:
        """Its engine is about to end."""
        self.was_cut, self.longest_s = True, 0.0

    def _add(self, index: int, **parts: Any) -> None:
        """Add parts to an answer: to texts, lists and numbers; other values replace the former ones."""
        known = self.answer.setdefault(index, {})
        for name, part in parts.items():
            if part is None:
                continue
            known[name] = (
                known[name] + part if isinstance(known.get(name), str | list | int) else part
            )

    async def run(self, http: httpx2.AsyncClient, rpc: VllmEngineStub | Fleet) -> None:
        """Send the request and read it to its end. Raises what a client would see as an error."""
        way, make = KINDS[kind_of(self.number)]
        body = make(self.number // len(KINDS) % NUM_VARIANTS)
        if way not in (RPC, RPC_ADAPTER):
            read = self._read_http(http, way, body)
        elif isinstance(rpc, Fleet):
            read = self._read_fleet(rpc, body, way == RPC_ADAPTER)
        else:
            read = self._read_rpc(rpc, body, way == RPC_ADAPTER)
        try:
            async for _ in read:
                self._took()
        finally:
            self.is_over = True

    async def _read_http(
        self, http: httpx2.AsyncClient, path: str, body: dict[str, Any]
    ) -> AsyncIterator[None]:
        body = {"stream": True, "stream_options": {"include_usage": True}, **body}
        headers = {} if self.rank is None else {"X-data-parallel-rank": str(self.rank)}
        is_done = False
        async for line in ResumedStream(http, path, body, headers, self.cut).lines():
            is_done = line == "data: [DONE]"
            if not is_done:
                self._take_event(json.loads(line[6:]))
            yield
        assert is_done, "the stream ended early"

    def _take_event(self, event: dict[str, Any]) -> None:
        assert "error" not in event, event
        if event.get("usage"):
            usage = event["usage"]
            self.usage = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in event["choices"]:
            delta = choice.get("delta", choice)
            calls = [call["function"] for call in delta.get("tool_calls") or ()]
            logprobs = choice.get("logprobs") or {}
            self._add(
                choice["index"],
                text=delta.get("text") or delta.get("content"),
                call="".join(call.get("name", "") + call.get("arguments", "") for call in calls),
                logprobs=logprobs.get("content") or logprobs.get("token_logprobs"),
                finish_reason=choice.get("finish_reason"),
                stop_reason=str(choice["stop_reason"]) if choice.get("stop_reason") else None,
            )

    async def _read_fleet(
        self, fleet: Fleet, body: dict[str, Any], has_adapter: bool
    ) -> AsyncIterator[None]:
        given = dict(body["sampling_params"])
        regex = given.pop("regex", None)
        params = SamplingParams(output_kind=OutputKind.DELTA, **given)
        if regex is not None:
            rule = StructuredOutputsParams(regex=regex)
            params = msgspec.structs.replace(params, structured_outputs=rule)
        async for output in fleet.generate(
            {"prompt_token_ids": body["tokenized"]["input_ids"]},
            params,
            secrets.token_hex(8),
            lora_request=fleet.lora_requests[ADAPTER] if has_adapter else None,
        ):
            for one in output.outputs:
                self._add(
                    one.index,
                    text=one.text,
                    token_ids=one.token_ids,
                    logprobs=[repr(row) for row in one.logprobs or ()],
                    finish_reason=one.finish_reason,
                    stop_reason=None if one.stop_reason is None else str(one.stop_reason),
                )
            self._add(0, scores=[repr(row) for row in output.prompt_logprobs or ()])
            yield

    async def _read_rpc(
        self, stub: VllmEngineStub, body: dict[str, Any], has_adapter: bool
    ) -> AsyncIterator[None]:
        request = ParseDict(body, pb.GenerateRequest())
        if self.rank is not None:
            request.data_parallel_rank = self.rank
        metadata = ((LORA_METADATA, ADAPTER),) if has_adapter else ()
        async for response in stub.Generate(request, metadata=metadata):
            if response.WhichOneof("response") == "chunk":
                chunk = response.chunk
                self._add(
                    chunk.index,
                    token_ids=list(chunk.token_ids),
                    num_tokens=chunk.completion_tokens,
                    logprobs=list(chunk.output_logprobs.token_logprobs),
                    scores=[one.value for one in chunk.input_logprobs.token_logprobs],
                )
            else:
                end = response.complete
                self._add(
                    end.index,
                    finish_reason=end.finish_reason,
                    ended=(end.prompt_tokens, end.matched_stop_str),
                )
            yield


def is_refused(error: Exception) -> bool:
    """Whether a request was refused because the engine that it names is down; another engine takes it."""
    if isinstance(error, httpx2.HTTPStatusError):
        return bool(error.response.status_code == 503)
    if isinstance(error, Unavailable):
        return True
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE
