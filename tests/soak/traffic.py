"""Random traffic for one server: whole answers, callers that leave at every phase, aborts, bad requests."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import grpc

from tests.busy import PATIENCE_S
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

VOCAB = 256
# Weights of what happens to a request.
KINDS = {
    "streamed": 28,
    "whole": 27,
    "leaves_at_once": 6,
    "leaves_before_first_token": 6,
    "leaves_mid_stream": 8,
    "leaves_before_answer": 6,
    "is_aborted": 8,
    "runs_out_of_time": 5,
    "is_bad": 6,
}
BAD = (
    {"sampling_params": {"temperature": -1.0}},
    {"sampling_params": {"n": 1000}},
    {"sampling_params": {"stop_token_ids": [10**6]}},
    {"tokenized": {"input_ids": [10**6]}},
    {"tokenized": {"input_ids": [5] * 1000}},
    {"data_parallel_rank": 3},
    {"request_id": "x" * 1000},
)
Status = grpc.StatusCode


class Traffic:
    """Sends requests and checks what comes back. The same seed sends the same requests."""

    def __init__(
        self, address: str, seed: int, kinds: Mapping[str, int] = MappingProxyType(KINDS)
    ) -> None:
        self._address = address
        self._kinds = kinds
        self._draw = random.Random(seed)
        self._number = 0
        self._bases = [self._tokens(self._draw.randint(20, 80)) for _ in range(6)]
        self._repeated = [self._tokens(self._draw.randint(2, 60)) for _ in range(40)]
        # The longest greedy answer seen to each prompt; every other one must be a prefix of it.
        self._answers: dict[tuple[int, ...], list[int]] = {}
        self.num_by_kind: Counter[str] = Counter()
        self.num_compared = 0
        self.num_kv_batches = 0

    async def run(self, num_requests: int, *, at_once: int) -> None:
        """So many requests, so many of them open at a time. Raises on the first wrong answer."""
        numbers = iter(range(num_requests))
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub = VllmEngineStub(channel)

            async def send_many() -> None:
                for _ in numbers:
                    await asyncio.wait_for(self._send(stub), PATIENCE_S)

            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(send_many())

    async def follow_kv_events(self) -> None:
        """Subscribe, and check that no batch is missing, until cancelled."""
        async with grpc.aio.insecure_channel(self._address) as channel:
            request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=0)
            async for batch in VllmEngineStub(channel).SubscribeKvEvents(request):
                if not batch.load.load_only:
                    assert batch.sequence_number == self.num_kv_batches
                    self.num_kv_batches += 1

    # -- requests -----------------------------------------------------------------------------

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(VOCAB) for _ in range(count)]

    def _prompt(self) -> list[int]:
        """Most share a beginning with others, many are repeated, some are new or long."""
        draw = self._draw.random()
        if draw < 0.4:
            return self._draw.choice(self._repeated)
        if draw < 0.8:
            return self._draw.choice(self._bases) + self._tokens(self._draw.randint(1, 20))
        return self._tokens(self._draw.choice((1, 3, 10, 30, 150)))

    def _request(self, *, stream: bool, is_long: bool = False) -> pb.GenerateRequest:
        self._number += 1
        is_greedy = self._draw.random() < 0.7
        return pb.GenerateRequest(
            request_id=f"soak-{self._number}" if self._draw.random() < 0.8 else "",
            tokenized=pb.TokenizedInput(input_ids=self._prompt()),
            sampling_params=pb.SamplingParams(
                temperature=0.0 if is_greedy else 1.0,
                seed=self._draw.randrange(1000),
                n=self._draw.choice((1, 1, 1, 1, 2, 4)),
                max_tokens=60 if is_long else self._draw.choice((1, 2, 4, 8, 16)),
                ignore_eos=True,
                logprobs=self._draw.choice((None, None, None, 2)),
            ),
            stream=stream,
        )

    async def _send(self, stub: VllmEngineStub) -> None:
        [kind] = self._draw.choices(list(self._kinds), list(self._kinds.values()))
        self.num_by_kind[kind] += 1
        await getattr(self, f"_{kind}")(stub)

    async def _streamed(self, stub: VllmEngineStub) -> None:
        await self._check(stub, self._request(stream=True))

    async def _whole(self, stub: VllmEngineStub) -> None:
        await self._check(stub, self._request(stream=False))

    async def _check(self, stub: VllmEngineStub, request: pb.GenerateRequest) -> None:
        params = request.sampling_params
        answers: list[list[int]] = [[] for _ in range(params.n)]
        reasons: list[str] = []
        async for response in stub.Generate(request):
            if response.HasField("chunk"):
                answers[response.chunk.index] += response.chunk.token_ids
            else:
                reasons.append(response.complete.finish_reason)
                if not request.stream:
                    answers[response.complete.index] += response.complete.output_ids
        assert reasons == ["length"] * params.n
        assert [len(answer) for answer in answers] == [params.max_tokens] * params.n
        if params.temperature == 0.0:
            for answer in answers:
                self._compare(tuple(request.tokenized.input_ids), answer)

    def _compare(self, prompt: tuple[int, ...], answer: list[int]) -> None:
        known = self._answers.get(prompt)
        if known is None and len(self._answers) >= 500:
            return
        longer = known if known is not None and len(known) > len(answer) else answer
        assert longer[: len(answer)] == answer
        assert known is None or longer[: len(known)] == known
        self.num_compared += known is not None
        self._answers[prompt] = longer

    # -- callers that do not wait for the end -------------------------------------------------

    async def _leaves_at_once(self, stub: VllmEngineStub) -> None:
        call = stub.Generate(self._request(stream=self._draw.random() < 0.5, is_long=True))
        await self._leave(call, after_s=0.0)

    async def _leaves_before_first_token(self, stub: VllmEngineStub) -> None:
        call = stub.Generate(self._request(stream=True, is_long=True))
        await call.initial_metadata()
        await self._leave(call, after_s=0.0)

    async def _leaves_mid_stream(self, stub: VllmEngineStub) -> None:
        call = stub.Generate(self._request(stream=True, is_long=True))
        num_chunks = self._draw.randint(1, 20)
        async for _ in call:
            num_chunks -= 1
            if num_chunks == 0:
                break
        await self._leave(call, after_s=0.0)

    async def _leaves_before_answer(self, stub: VllmEngineStub) -> None:
        call = stub.Generate(self._request(stream=False, is_long=True))
        await self._leave(call, after_s=self._draw.random() * 0.1)

    @staticmethod
    async def _leave(call: grpc.aio.UnaryStreamCall, *, after_s: float) -> None:
        await asyncio.sleep(after_s)
        call.cancel()
        assert await call.code() in (Status.CANCELLED, Status.OK)

    async def _is_aborted(self, stub: VllmEngineStub) -> None:
        request = self._request(stream=self._draw.random() < 0.5, is_long=True)
        request.request_id = f"aborted-{self._number}"
        call = stub.Generate(request)
        await call.initial_metadata()  # from then on the server knows the id
        await asyncio.sleep(self._draw.random() * 0.05)
        await stub.Abort(pb.AbortRequest(request_ids=[request.request_id, "nobody"]))
        reasons = [r.complete.finish_reason async for r in call if r.HasField("complete")]
        assert len(reasons) == request.sampling_params.n
        assert set(reasons) <= {"abort", "length"}

    async def _runs_out_of_time(self, stub: VllmEngineStub) -> None:
        request = self._request(stream=self._draw.random() < 0.5, is_long=True)
        call = stub.Generate(request, timeout=self._draw.random() * 0.05)
        assert await call.code() in (Status.DEADLINE_EXCEEDED, Status.OK)

    async def _is_bad(self, stub: VllmEngineStub) -> None:
        request = self._request(stream=self._draw.random() < 0.5)
        change = self._draw.choice(BAD)
        if "tokenized" in change:
            request.ClearField("tokenized")
        request.MergeFrom(pb.GenerateRequest(**change))  # type: ignore[arg-type]
        assert await stub.Generate(request).code() == Status.INVALID_ARGUMENT
