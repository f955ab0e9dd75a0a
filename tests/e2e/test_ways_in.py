"""One engine, every way in: what HTTP and gRPC can both express gives the same tokens on both."""

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, running
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

VOCAB_SIZE = 300
MAX_TOKENS = 12
# Of the JSON schema, the pattern and the choices, as gRPC and as HTTP name them.
CONSTRAINTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"json_schema": '{"type": "boolean"}'}, {"json": {"type": "boolean"}}),
    ({"regex": "[ab]{2,5}"}, {"regex": "[ab]{2,5}"}),
    ({"choice": {"choices": ["yes", "no"]}}, {"choice": ["yes", "no"]}),
    ({"json_object": True}, {"json_object": True}),
    ({"grammar": 'root ::= "x" | "yz"'}, {"grammar": 'root ::= "x" | "yz"'}),
]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as both can express it. Numbers are those that 32 bits hold exactly, as gRPC's do."""

    prompt: list[int]
    params: dict[str, Any] = field(default_factory=dict)
    constraint: int = 0

    def over_grpc(self, is_streamed: bool) -> pb.GenerateRequest:
        """As VllmEngine's message."""
        params = pb.SamplingParams(
            skip_special_tokens=True,
            spaces_between_special_tokens=True,
            **self.params,
            **CONSTRAINTS[self.constraint][0],
        )
        return pb.GenerateRequest(
            tokenized=pb.TokenizedInput(input_ids=self.prompt),
            sampling_params=params,
            stream=is_streamed,
        )

    def tokens_body(self) -> dict[str, Any]:
        """For /inference/v1/generate, as an engine's client is asked."""
        params = dict(self.params)
        if self.constraint:
            params["structured_outputs"] = self._constraint()
        return {"token_ids": self.prompt, "sampling_params": params}

    def completion_body(self) -> dict[str, Any]:
        """For /v1/completions."""
        body = {"prompt": self.prompt, "return_token_ids": True, **self.params}
        if self.constraint:
            body["structured_outputs"] = self._constraint()
        return body

    def _constraint(self) -> dict[str, Any]:
        return CONSTRAINTS[self.constraint][1]


FRACTIONS = st.sampled_from([0.25, 0.5, 0.75, 1.0])
PENALTIES = st.sampled_from([-1.5, -0.5, 0.0, 0.5, 1.0, 2.0])
TOKENS = st.integers(3, VOCAB_SIZE - 1)
WISHES = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, MAX_TOKENS),
        "temperature": st.sampled_from([0.0, 0.5, 1.0, 1.75]),
        "seed": st.integers(0, 2**31 - 1),
    },
    optional={
        "n": st.integers(1, 3),
        "top_p": FRACTIONS,
        "top_k": st.integers(1, 20),
        "min_p": st.sampled_from([0.0, 0.125, 0.5]),
        "presence_penalty": PENALTIES,
        "frequency_penalty": PENALTIES,
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.5]),
        "stop": st.lists(st.sampled_from("abcdefgh \n"), min_size=1, max_size=4, unique=True),
        "stop_token_ids": st.lists(TOKENS, min_size=1, max_size=40),
        "include_stop_str_in_output": st.booleans(),
        "ignore_eos": st.booleans(),
        "min_tokens": st.just(1),
        "logprobs": st.integers(0, 5),
        "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-4.0, 6.0]), max_size=5),
        "truncate_prompt_tokens": st.integers(1, 8),
    },
)
REQUESTS = st.builds(
    Asked,
    st.lists(TOKENS, min_size=1, max_size=40),
    WISHES,
    st.sampled_from([0, 0, 0, *range(1, len(CONSTRAINTS))]),
)
Answers = list[tuple[list[int], str]]


class GrpcWay:
    """VllmEngine's Generate."""

    def __init__(self, stub: VllmEngineStub, is_streamed: bool) -> None:
        self._stub = stub
        self._is_streamed = is_streamed

    def ask(self, asked: Asked) -> Answers:
        """Ids and reason of each answer."""
        ids: dict[int, list[int]] = {}
        reasons: dict[int, str] = {}
        for response in self._stub.Generate(asked.over_grpc(self._is_streamed), timeout=PATIENCE_S):
            if response.HasField("chunk"):
                ids.setdefault(response.chunk.index, []).extend(response.chunk.token_ids)
            else:
                end = response.complete
                reasons[end.index] = end.finish_reason
                if not self._is_streamed:
                    ids[end.index] = list(end.output_ids)
        return [(ids[index], reasons[index]) for index in sorted(reasons)]


class HttpWay:
    """A path that answers with ids."""

    def __init__(self, url: str, body_of: Any, is_streamed: bool) -> None:
        self._url = url
        self._body_of = body_of
        self._is_streamed = is_streamed

    def ask(self, asked: Asked) -> Answers:
        """Ids and reason of each answer."""
        body = json.dumps({**self._body_of(asked), "stream": self._is_streamed}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self._url, body, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        if not self._is_streamed:
            choices = json.loads(text)["choices"]
            return [(choice["token_ids"], choice["finish_reason"]) for choice in choices]
        assert text.endswith("data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        ids: dict[int, list[int]] = {}
        reasons: dict[int, str] = {}
        for choice in (choice for event in events for choice in event["choices"]):
            ids.setdefault(choice["index"], []).extend(choice["token_ids"])
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
        return [(ids[index], reasons[index]) for index in sorted(reasons)]


def http_ways(base: str, name: str) -> dict[str, HttpWay]:
    """All of one server."""
    paths = {
        "/inference/v1/generate": Asked.tokens_body,
        "/v1/completions": Asked.completion_body,
    }
    return {
        f"{name} {path} {'streamed' if is_streamed else 'whole'}": HttpWay(
            base + path, body_of, is_streamed
        )
        for path, body_of in paths.items()
        for is_streamed in (False, True)
    }


@pytest.fixture(scope="module")
def ways() -> Iterator[dict[str, GrpcWay | HttpWay]]:
    """Of a worker, and of HTTP before it."""
    worker = running(SMALL, "--max-model-len", "128")
    with (
        worker as direct,
        running("--remote", f"grpc://{direct.address}") as front,
        grpc.insecure_channel(direct.address) as channel,
    ):
        stub = VllmEngineStub(channel)
        yield {
            "gRPC whole": GrpcWay(stub, is_streamed=False),
            "gRPC streamed": GrpcWay(stub, is_streamed=True),
            **http_ways(direct.http, "HTTP"),
            **http_ways(front.http, "remote"),
        }


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(asked=REQUESTS)
def test_a_request_has_one_answer_whichever_way_it_comes(ways, asked):
    """Greedy and seeded, with penalties, stops, biases, constraints and several answers."""
    answers = {name: way.ask(asked) for name, way in ways.items()}
    expected = answers["gRPC whole"]
    assert expected
    assert all(ids for ids, _ in expected)
    assert {name: answer for name, answer in answers.items() if answer != expected} == {}
