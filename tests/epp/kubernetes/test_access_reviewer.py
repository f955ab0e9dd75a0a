import asyncio
import json
from collections.abc import AsyncIterator

import httpx2
import pytest
import pytest_asyncio

from tests.doubles.api_server import ApiServerDouble
from tests.epp.pools import Clock, until
from weft.core.callers import HostRule
from weft.epp.kubernetes.access_reviewer import USUAL, AccessReviewer, ReviewLimits
from weft.epp.server.admin import AdminServer, Page

USER = {
    "username": "system:serviceaccount:monitoring:prometheus",
    "uid": "u1",
    "groups": ["system:serviceaccounts"],
    "extra": {"pod": ["p1"]},
}
NAME = USER["username"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def reviewer(api: ApiServerDouble, clock: Clock) -> AsyncIterator[AccessReviewer]:
    """Of a cluster that knows Prometheus, who may get its metrics, and one who may not."""
    api.users = {"good": USER, "other": {"username": "other"}}
    api.readers = {(NAME, "/metrics")}
    made = AccessReviewer("ns", ReviewLimits(), clock)
    yield made
    await made.close()


async def status_of(reviewer: AccessReviewer, token: bytes | None, path: str = "/metrics") -> int:
    refusal = await reviewer.refusal(token, path)
    return 200 if refusal is None else refusal[0]


async def test_who_may_get_a_page_is_what_the_cluster_says(
    api: ApiServerDouble, reviewer: AccessReviewer
):
    """By whom the token is of, with all that is known of them, the verb and the path."""
    assert await status_of(reviewer, b"good") == 200
    assert await status_of(reviewer, b"good", "/debug/decisions") == 403
    assert await status_of(reviewer, b"other") == 403
    assert await status_of(reviewer, b"stranger") == 401
    assert await status_of(reviewer, b"") == await status_of(reviewer, None) == 401
    paths = [each.path for each in api.asked]
    assert paths[0] == "apis/authentication.k8s.io/v1/tokenreviews"
    assert paths[1] == "apis/authorization.k8s.io/v1/subjectaccessreviews"
    spec = json.loads(api.asked[1].body)["spec"]
    assert spec.pop("nonResourceAttributes") == {"path": "/metrics", "verb": "get"}
    assert spec == {"user": NAME, **{key: USER[key] for key in ("uid", "groups", "extra")}}
    assert {each.headers["authorization"] for each in api.asked} == {"Bearer secret"}


async def test_answers_count_for_a_while(
    api: ApiServerDouble, reviewer: AccessReviewer, clock: Clock
):
    """A token for a minute, a right for five, its lack for half of one: so long may a change take."""
    for token in (b"good", b"other", b"stranger"):
        await status_of(reviewer, token)
        asked = len(api.asked)
        await status_of(reviewer, token)
        assert len(api.asked) == asked
    api.readers = {("other", "/metrics")}
    clock.advance(31)
    assert await status_of(reviewer, b"other") == 200
    clock.advance(200)
    assert await status_of(reviewer, b"good") == 200
    clock.advance(70)
    assert await status_of(reviewer, b"good") == 403
    api.users = {}
    clock.advance(61)
    assert await status_of(reviewer, b"other") == 401


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
async def test_without_an_answer_nobody_may(
    api: ApiServerDouble, reviewer: AccessReviewer, status: int, caplog: pytest.LogCaptureFixture
):
    """Said once in the log; what is known already counts on, and the next question may be answered."""
    await status_of(reviewer, b"good")
    api.refusals.extend([(status, "")] * 2)
    assert await status_of(reviewer, b"other") == 503
    assert await status_of(reviewer, b"good", "/debug/decisions") == 503
    assert await status_of(reviewer, b"good") == 200
    assert await status_of(reviewer, b"other") == 403
    assert len([each for each in caplog.messages if f"HTTP {status}" in each]) == 1


async def test_a_server_that_says_nothing_is_not_waited_for_longer_than_a_page(
    api: ApiServerDouble, clock: Clock
):
    """The port gives a page up after ten seconds; the refusal comes before."""
    api.is_mute = True
    assert USUAL.review_s < 10
    hasty = AccessReviewer("ns", ReviewLimits(review_s=0.2), clock)
    assert await status_of(hasty, b"good") == 503
    await hasty.close()


async def test_strangers_do_not_flood_the_cluster(api: ApiServerDouble, reviewer: AccessReviewer):
    """However many ask, a few reviews are under way."""
    api.is_mute = True
    many = [asyncio.create_task(reviewer.refusal(b"s%d" % n, "/metrics")) for n in range(20)]
    await until(lambda: len(api.asked) == USUAL.max_at_once)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(api.asked) == USUAL.max_at_once
    api.is_mute = False
    await api.tear()
    refusals = await asyncio.gather(*many)
    assert {refusal and refusal[0] for refusal in refusals} == {401, 503}


async def test_strangers_do_not_fill_memory(api: ApiServerDouble, clock: Clock):
    """Of what is known the oldest makes room."""
    small = AccessReviewer("ns", ReviewLimits(max_entries=3), clock)
    for token in (b"s1", b"s2", b"s3", b"s4"):
        await status_of(small, token)
    await status_of(small, b"s2")
    assert len(api.asked) == 4
    await status_of(small, b"s1")
    assert len(api.asked) == 5
    await small.close()


async def test_pages_are_guarded(api: ApiServerDouble, reviewer: AccessReviewer):
    """By status and sentence, 401 with the scheme that is wanted; probes need no token."""
    shown = {"/metrics": lambda _: Page(b"x 1\n"), "/livez": lambda _: Page(b"{}")}
    admin = AdminServer(shown, HostRule("127.0.0.1"), reviewer, ("/livez",))
    port = await admin.start("127.0.0.1", 0)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

            async def get(path: str, token: str = "") -> httpx2.Response:
                headers = {"authorization": f"Bearer {token}"} if token else {}
                return await client.get(path, headers=headers)

            without = await get("/metrics")
            assert (without.status_code, without.headers["www-authenticate"]) == (401, "Bearer")
            assert (await get("/metrics", "stranger")).status_code == 401
            denied = await get("/metrics", "other")
            assert (denied.status_code, denied.text.split()[:2]) == (403, ["other", "may"])
            assert (await get("/metrics", "good")).text == "x 1\n"
            assert (await get("/livez")).status_code == 200
    finally:
        await admin.stop()
