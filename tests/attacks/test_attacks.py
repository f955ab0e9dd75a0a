"""Whatever one caller sends, the others are served: how long it holds the event loop, and what it takes."""

import random
from collections.abc import Iterable, Iterator
from itertools import cycle, islice

import pytest

from tests.attacks.bodies import BASES, KINDS, Attack, attacks, fields_by_path
from tests.attacks.messages import CALLS, MessageAttack, message_attacks
from tests.attacks.target import Target, target
from tests.doubles.loop_probe import TRIES, is_bounded

# That one request may hold the others, each as long as the largest body.
NUM_STRINGS = 3
MAX_GROWTH = 4  # bodies
# What is there anyway: a text of 32,768 tokens' context while it is cut into tokens, pages of the heap.
FIXED_BYTES = 160 * 2**20
NUM_OF_FUZZ = 100

GENERATING = ("embedded:echo?max_len=32768",)
POOLING = (
    "embedded:random?layers=1&hidden=32&heads=2&kv_heads=1&head_dim=16&vocab=400&max_len=2048",
    "--runner=pooling",
)


def misses(aimed: Target, attack: Attack | MessageAttack) -> list[str]:
    """What it broke, each time that it was tried."""
    body = attack.body()
    found: list[str] = []
    for _ in range(TRIES):
        aimed.read()
        status = aimed.send(attack, body)
        reading = aimed.read()
        most_bytes = MAX_GROWTH * len(body) + FIXED_BYTES
        if (
            is_bounded(reading.pause_s, NUM_STRINGS)
            and reading.grown_bytes < most_bytes
            and is_told(status)
        ):
            return []
        found.append(f"{attack}: {status}, {reading}, body of {len(body)} bytes")
    return found


def is_told(status: int | str) -> bool:
    """Whether the caller was answered, or told what is wrong: by HTTP's status, or gRPC's."""
    return status not in (0, 500, "INTERNAL", "UNKNOWN", "UNAVAILABLE")


@pytest.fixture(scope="module")
def aimed(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A server of those flags: the same for all attacks, as for all callers."""
    with target(*request.param) as started:
        yield started


generating = pytest.mark.parametrize("aimed", [GENERATING], ids=["generating"], indirect=True)
pooling = pytest.mark.parametrize("aimed", [POOLING], ids=["pooling"], indirect=True)
either = pytest.mark.parametrize(
    "aimed", [GENERATING, POOLING], ids=["generating", "pooling"], indirect=True
)


def run(aimed: Target, chosen: Iterable[Attack | MessageAttack]) -> list[str]:
    """All that the attacks broke, on a server that is there afterwards as before."""
    found = [miss for attack in chosen for miss in misses(aimed, attack)]
    assert aimed.is_well()
    return found


def one_for_each_path() -> list[Attack]:
    """In the field that a body is about or in one that there is not, another kind for each endpoint."""
    kinds = cycle(KINDS)
    names = cycle((None, "an_unknown_field"))
    return [
        Attack(path, next(names) or next(iter(base)), next(kinds)) for path, base in BASES.items()
    ]


def one_for_each_call() -> list[MessageAttack]:
    """A few of every call, each of another kind and in another field."""
    return [
        attack
        for name in CALLS
        for attack in islice((a for a in message_attacks() if a.method == name), 0, 120, 17)
    ]


def test_every_endpoint_that_takes_a_body_is_attacked():
    """A new one needs a body here to be attacked in."""
    assert fields_by_path().keys() == BASES.keys()


@pytest.mark.slow
@generating
def test_no_body_holds_the_event_loop(aimed: Target):
    """One kind for each endpoint."""
    assert run(aimed, one_for_each_path()) == []


@pytest.mark.slow
@generating
def test_no_message_holds_the_event_loop(aimed: Target):
    """One kind or another for each call."""
    assert run(aimed, one_for_each_call()) == []


# What once held a server for seconds, or ended it.
KNOWN = (
    Attack("/tokenize", "prompt", "text"),
    Attack("/tokenize", "prompt", "spaces"),
    Attack("/tokenize", "prompt", "one_emoji"),
    Attack("/tokenize", "prompt", "text_of_a_context"),
    Attack("/tokenize", "messages", "messages"),
    Attack("/v1/completions", "prompt", "too_many_lists"),
    Attack("/v1/completions", "prompt", "lists"),
    Attack("/v1/completions", "prompt", "too_many_ids"),
    Attack("/v1/completions", "prompt", "ids"),
    Attack("/v1/completions", "prompt", "lists_of_ids"),
    Attack("/v1/completions", "prompt", "texts_at_once"),
    Attack("/v1/completions", "bad_words", "strings"),
    Attack("/v1/completions", "stop", "strings"),
    Attack("/v1/completions", "an_unknown_field", "keys"),
    Attack("/v1/completions", "an_unknown_field", "deeper_lists"),
    Attack("/v1/completions", "an_unknown_field", "long_number"),
    Attack("/detokenize", "tokens", "ids"),
    Attack("/detokenize", "tokens", "too_many_ids"),
    Attack("/inference/v1/generate", "token_ids", "ids"),
    Attack("/v1/chat/completions", "messages", "messages"),
    Attack("/v1/chat/completions", "messages", "long_messages"),
    Attack("/v1/chat/completions", "messages", "parts"),
    Attack("/v1/chat/completions", "messages", "calls"),
    Attack("/v1/chat/completions", "tools", "tools"),
    Attack("/v1/messages", "messages", "messages"),
    Attack("/v1/responses", "input", "messages"),
    Attack("/pooling", "embed_dtype", "emoji"),
    Attack("/v1/embeddings", "encoding_format", "one_emoji"),
    Attack("/v2/embed", "truncate", "letters"),
    Attack("/generative_scoring", "query", "text"),
)


@pytest.mark.slow
@generating
def test_what_once_held_the_event_loop_does_not(aimed: Target):
    """The list of attacks that were found; a new find is added here."""
    assert run(aimed, KNOWN) == []


@pytest.mark.slow
@either
def test_no_body_of_a_fuzz_holds_the_event_loop(aimed: Target):
    """Any kind in any field of any endpoint, drawn anew with each change of the table."""
    assert run(aimed, random.Random(1).sample(list(attacks()), NUM_OF_FUZZ)) == []


@pytest.mark.slow
@either
def test_no_message_of_a_fuzz_holds_the_event_loop(aimed: Target):
    """Any kind in any field of any call."""
    assert run(aimed, random.Random(1).sample(list(message_attacks()), NUM_OF_FUZZ)) == []


@pytest.mark.slow
@pooling
@pytest.mark.parametrize("kind", KINDS)
def test_no_input_of_a_pooling_model_holds_the_event_loop(aimed: Target, kind: str):
    """Texts and ids in every number and length."""
    paths = ("/v1/embeddings", "/pooling", "/rerank")
    fields = {"/rerank": "documents"}
    assert run(aimed, [Attack(path, fields.get(path, "input"), kind) for path in paths]) == []
