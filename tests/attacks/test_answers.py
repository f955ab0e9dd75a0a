"""However much there is in an answer, others are served while it is made, written and let go of."""

import json
from collections.abc import Iterator

import pytest

from tests.attacks.target import Target, target
from tests.doubles.loop_probe import TRIES, is_bounded
from tests.slow import slow_but
from weft.pb import vllm_engine_pb2 as pb

MODEL = "embedded:random?layers=1&hidden=32&heads=2&kv_heads=1&head_dim=16&vocab=600&max_len=2048"
# Tokens of 128 answers, with as many others beside each as are allowed without a flag: a million log-probabilities.
MANY = {"n": 128, "max_tokens": 400, "ignore_eos": True}
FEWER = MANY | {"max_tokens": 48}
CHAT = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20}
COMPLETION = {"prompt": [65], "logprobs": 20}
BEAMS = {"n": 128, "max_tokens": 4, "ignore_eos": True, "use_beam_search": True}
# As many questions as there may be, with as many options as the model's tokenizer has labels.
PREDICATE = {"type": "predicate", "instructions": "a"}
CHOICE = {"type": "choice", "instructions": "a", "choices": [{"value": str(i)} for i in range(26)]}
SCORE = {"type": "score", "criteria": [str(i) for i in range(26)]}
ASKED = {
    "predicates": ("/v1/decisions", {"input": "a", "questions": [PREDICATE] * 400}),
    "choices": ("/v1/decisions", {"input": "a", "questions": [CHOICE] * 400}),
    "scores by name": ("/v1/systemone", {"state": "a", "questions": dict.fromkeys(map(str, range(400)), SCORE)}),
    "scores of items": (
        "/generative_scoring",
        {"query": "a", "items": ["b"] * 2048, "label_token_ids": list(range(128))},
    ),
    "chat of fewer tokens": ("/v1/chat/completions", CHAT | FEWER),
    "chat": ("/v1/chat/completions", CHAT | MANY),
    "chat, streamed": ("/v1/chat/completions", CHAT | MANY | {"stream": True}),
    "completions": ("/v1/completions", COMPLETION | MANY),
    "completions, streamed": ("/v1/completions", COMPLETION | MANY | {"stream": True}),
    "tokens": (
        "/inference/v1/generate",
        {"token_ids": [65], "sampling_params": {"logprobs": 20, **MANY}},
    ),
    "responses": (
        "/v1/responses",
        {
            "input": "a", "store": False, "max_output_tokens": 1500, "top_logprobs": 20,
            "include": ["message.output_text.logprobs"], "ignore_eos": True,
        },
    ),
    "beams": ("/v1/completions", {"prompt": [65], **BEAMS}),
    "beams with log-probabilities": ("/v1/completions", COMPLETION | BEAMS),
    "prompt": ("/v1/completions", {"prompt": [65] * 1900, "prompt_logprobs": 100, "max_tokens": 1}),
}  # fmt: skip
GENERATE = pb.GenerateRequest(
    tokenized=pb.TokenizedInput(input_ids=[65]),
    sampling_params=pb.SamplingParams(n=128, max_tokens=400, ignore_eos=True, logprobs=20),
)


@pytest.fixture(scope="module")
def aimed() -> Iterator[Target]:
    """With room for the widest beam search that there may be."""
    with target(MODEL, "--max-logprobs", "256") as started:
        yield started


def check(aimed: Target, ask) -> None:
    """`ask` is answered, and the loop is held no longer than it may be."""
    found: list[object] = []
    for _ in range(TRIES):
        aimed.read()
        assert ask() in (200, "OK")
        found.append(aimed.read())
        if is_bounded(found[-1].pause_s):
            return
    raise AssertionError(found)


@pytest.mark.parametrize("name", slow_but({"chat of fewer tokens", "beams", "predicates"}, ASKED))
def test_no_answer_holds_the_event_loop(aimed: Target, name: str):
    """A million log-probabilities are read, written and let go of a few thousand at a time."""
    path, body = ASKED[name]
    check(aimed, lambda: aimed.post(path, json.dumps(body).encode())[0])


@pytest.mark.slow
@pytest.mark.parametrize("is_streamed", [False, True])
def test_no_answer_over_grpc_holds_the_event_loop(aimed: Target, is_streamed: bool):
    """Neither in one message an answer nor in chunks."""
    request = pb.GenerateRequest(stream=is_streamed)
    request.MergeFrom(GENERATE)
    check(aimed, lambda: aimed.call("Generate", request.SerializeToString()))
