"""A position that a server does not continue is refused by name, before anything is computed."""

import time

import pytest
import pytest_asyncio

from tests.web.resuming.streams import HEADER, SAME, SECRET, read, resumable_site, summed
from tests.web.serving import TINY, serving
from weft.web.http.options import MAX_RESUME_BYTES
from weft.web.resuming.position import (
    MAX_AGE_S,
    Beginning,
    Signer,
    beginning_part,
    digest_of,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/completions"
BODY = {"prompt": "The sea", "max_tokens": 16, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    """An engine."""
    async with serving(TINY) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(engine):
    """Its server."""
    async with resumable_site(engine) as site:
        yield site


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(site):
    """A stream that was read to its end."""
    return await read_in_groups(site, 3)


async def read_in_groups(site, num_groups, resume="new", **more):
    """A stream of at least so many groups: a server that is slower than its engine joins outputs."""
    while True:
        found = await read(site, PATH, {**BODY, **more}, resume)
        if len(found.groups) >= num_groups:
            return found


def signed(secret: bytes = SECRET, **changed) -> str:
    """A position without outputs, signed with a secret."""
    usual = {
        "version": 1, "label": "one", "created": int(time.time()), "seed": 1, "num_cached_tokens": 0,
        "fingerprint": SAME, "digest": digest_of(b""), "nonce": b"n", "store": "",
    }  # fmt: skip
    part = beginning_part(Beginning(**{**usual, **changed}))
    tag = Signer(secret).begin()
    tag.add(part)
    return f"{part}.{tag.text.decode()}"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: "", "signature"),
        (lambda: "later", "signature"),
        (lambda: "." * 1000, "signature"),
        (lambda: signed(b"the secret of another fleet"), "signature"),
        (lambda: signed(created=int(time.time()) - 2 * MAX_AGE_S), "expired"),
        (lambda: signed(created=int(time.time()) + 2 * MAX_AGE_S), "expired"),
        (lambda: signed(version=2), "version"),
        (signed, "another body"),
        (lambda: "x" * (MAX_RESUME_BYTES + 1), "longer"),
    ],
)
async def test_a_position_of_no_stream_of_equal_servers_is_refused(make, reason, site):
    """Each reason has its words, and status 400."""
    found = await read(site, PATH, BODY, make())
    assert found.status == 400
    assert HEADER in found.error["error"]["message"]
    assert reason in found.error["error"]["message"]


async def test_a_changed_part_is_refused(whole, site):
    """A client cannot write tokens into its answer."""
    changed = whole.position(2).replace(whole.parts[1], "AAAA", 1)
    found = await read(site, PATH, BODY, changed)
    assert (found.status, "signature" in found.error["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {**BODY, "max_tokens": 7}),
        (PATH, {**BODY, "prompt": "The see"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
async def test_another_request_is_refused(path, body, whole, site):
    """A position belongs to one body at one path."""
    found = await read(site, path, body, whole.position(2))
    assert (found.status, "another body" in found.error["error"]["message"]) == (400, True)


async def test_a_server_with_other_weights_refuses(whole, engine):
    """Its answer would go on with other words."""

    async def other(_lora):
        return "other weights"

    async with resumable_site(engine, fingerprint_of=other) as site:
        found = await read(site, PATH, BODY, whole.position(2))
        metrics = (await site.get("/metrics")).text
    assert (found.status, "other weights" in found.error["error"]["message"]) == (409, True)
    assert 'weft:resumable_streams_total{outcome="refused"} 1.0' in metrics


@pytest.mark.parametrize(
    ("path", "body"),
    [(PATH, {**BODY, "stream": False}), ("/v1/responses", {"input": "a", "background": True})],
)
async def test_only_streams_can_be_continued(path, body, site):
    """Other answers are refused, instead of silently given without a position."""
    found = await read(site, path, body)
    assert (found.status, "stream" in found.error["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": ["The sea", "A ship"]},
        {"echo": True, "logprobs": 1},
    ],
)
async def test_a_stream_that_needs_more_than_tokens_says_that_it_cannot_be_continued(more, site):
    """The client then shows events at once, and has no position."""
    found = await read(site, PATH, {**BODY, **more})
    assert (found.status, found.parts, found.is_off, found.is_done) == (200, [], True, True)


async def test_a_server_without_a_known_fingerprint_offers_and_continues_nothing(whole, engine):
    """It reads its weights, or they are in no file. Another server may continue the stream: status 503."""

    async def unknown(_lora):
        return ""

    async with resumable_site(engine, fingerprint_of=unknown) as site:
        found = await read(site, PATH, BODY)
        rest = await read(site, PATH, BODY, whole.position(1))
    assert (found.parts, found.is_off) == ([], True)
    assert (rest.status, "fingerprint" in rest.error["error"]["message"]) == (503, True)


async def test_a_stream_that_becomes_too_long_goes_on_without_positions(engine, monkeypatch):
    """The head of a request is bounded; the answer is not."""
    monkeypatch.setattr("weft.web.resuming.resumable_client.MAX_RESUME_BYTES", 700)
    async with resumable_site(engine) as site:
        found = await read_in_groups(site, 1, max_tokens=200)
        plain = await read(site, PATH, {**BODY, "max_tokens": 8}, None)
    assert found.is_off
    assert 0 < len(found.position(len(found.groups))) <= 700
    assert len(found.events()) > len(found.events(len(found.parts)))
    assert not plain.parts
    assert plain.outcome is None


async def test_a_position_continues_more_than_once(whole, site):
    """A client whose second server ends too sends the position of both parts."""
    second = await read_in_groups(site, 1, whole.position(1))
    both = ".".join((whole.parts[0], second.parts[0], second.tags[0]))
    third = await read(site, PATH, BODY, both)
    events = [*whole.events(1), *second.events(1), *third.events()]
    assert summed(events) == summed(whole.events())
