"""HTTP through a real Envoy: requests arrive where the picker says, whole, and answers come back."""

import asyncio
import gzip
import json

import pytest

from tests.busy import PATIENCE_S, until
from tests.e2e.envoys import envoy
from tests.e2e.scenes import CHAT, STREAMED, scene, split
from tests.e2e.workers import FakePod, http_worker
from tests.ports import free_port
from weft.cli.up.envoy import EnvoyPlan
from weft.epp.decision.tickets import Ending
from weft.epp.request.values import Drop, Refused, Usage

pytestmark = pytest.mark.usefixtures("body_mode")
FOLLOWED = pytest.mark.parametrize("is_followed", [False, True], ids=["left", "followed"])
QUICK = 0.1


@FOLLOWED
async def test_requests_reach_the_chosen_worker(is_followed: bool):
    """Streamed or not, GET or not, with the response followed or left alone."""
    async with scene(tracks_response=is_followed) as here:
        whole = await here.post()
        assert whole.json()["worker"] == here.http[1].address
        streamed = await here.post(STREAMED)
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert streamed.text.count("data: ") == 7
        got = await here.client.get("/v1/models")
        assert got.status_code == 200
        assert [seen.path for seen in here.http[1].seen][:2] == ["/v1/chat/completions"] * 2
    assert len(here.director.endings) == 2 * is_followed


async def test_a_followed_response_tells_its_usage():
    """Whole or as events, exactly once each."""
    async with scene(tracks_response=True) as here:
        await here.post()
        await here.post(STREAMED)
        await until(lambda: len(here.director.endings) == 2)
    assert here.director.usages == [
        Usage(num_prompt_tokens=7, num_completion_tokens=3),
        Usage(num_prompt_tokens=7, num_completion_tokens=5),
    ]
    assert here.director.endings == [Ending.NATURAL, Ending.NATURAL]


@FOLLOWED
@pytest.mark.parametrize("is_chunked", [False, True], ids=["sized", "chunked"])
async def test_large_bodies_arrive_whole(is_followed: bool, is_chunked: bool):
    """300 kB, in one piece or in many."""
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x" * 300_000}]}
    ).encode()

    async def pieces():
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with scene(tracks_response=is_followed) as here:
        answer = await here.client.post(
            "/v1/chat/completions", content=pieces() if is_chunked else body
        )
        assert answer.json()["size"] == len(body)
        assert here.http[1].seen[0].body == body


async def test_a_compressed_body_is_read_and_arrives_as_it_was():
    """And unpacked, with headers that say so, where its model was rewritten."""
    packed = gzip.compress(CHAT)
    async with scene() as here:
        assert (await here.post(packed, content_encoding="gzip")).status_code == 200
        assert here.director.requests[0].prompts[0].text == "userHello"
        (seen,) = here.http[1].seen
        assert (seen.body, seen.headers["content-encoding"]) == (packed, "gzip")
    async with scene(rewritten_model="served") as here:
        assert (await here.post(packed, content_encoding="gzip")).status_code == 200
        (seen,) = here.http[1].seen
        assert json.loads(seen.body)["model"] == "served"
        assert "content-encoding" not in seen.headers


async def test_a_body_nobody_reads_passes_as_it_comes():
    """The fallback neither holds nor bounds it."""
    async with scene() as here:
        answer = await here.post(b"z" * 500_000, "/anything")
        assert answer.json()["size"] == 500_000


@FOLLOWED
async def test_no_answer_is_lost_when_workers_are_quick(is_followed: bool):
    """The picker leaves the stream in one write with its last word: no response falls in between."""
    async with scene(tracks_response=is_followed) as here:
        gate = asyncio.Semaphore(8)

        async def one() -> int:
            async with gate:
                return (await here.post()).json()["size"]

        sizes = await asyncio.gather(*(one() for _ in range(300)))
    assert sizes == [len(CHAT)] * 300


async def test_a_client_cannot_choose_its_worker():
    """Whatever destination headers it sends: with the picker, past it, and without it."""
    async with scene() as here:
        here.director.endpoints = (here.http[1].address,)
        wish = {"x_gateway_destination_endpoint": here.http[0].address}
        answers = [(await here.post(**wish)).json()["worker"] for _ in range(5)]
        assert set(answers) == {here.http[1].address}
        for name in ("x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset"):
            got = await here.client.get("/v1/models", headers={name: here.http[0].address})
            assert got.json()["worker"] == here.http[1].address
        await here.kill_picker()
        without = {(await here.post(**wish)).json()["worker"] for _ in range(6)}
        assert without == {worker.address for worker in here.http}  # in turn
        for worker in here.http:
            assert all(
                seen.headers.get("x-gateway-destination-endpoint") in {None, here.http[1].address}
                for seen in worker.seen
            )


async def test_a_client_that_names_a_stranger_reaches_nobody_new():
    """Not even a server outside the pool that would answer: no way through the router."""
    async with scene() as here:
        await here.kill_picker()
        answer = await here.post(x_gateway_destination_endpoint=here.grpc[0].address)
        assert answer.json()["worker"] in {worker.address for worker in here.http}
        assert here.grpc[0].requests == []


async def test_control_headers_end_at_the_picker():
    """It sees them; the worker does not."""
    async with scene() as here:
        await here.post(x_llm_d_inference_objective="batch", x_prefiller_host_port="6.6.6.6:6")
        headers = here.http[1].seen[0].headers
        assert here.director.requests[0].headers["x-llm-d-inference-objective"] == "batch"
        assert not {"x-llm-d-inference-objective", "x-prefiller-host-port"} & headers.keys()
        assert headers["x-request-id"] == here.director.requests[0].request_id


@pytest.mark.parametrize(
    ("status", "reason"), [(429, Drop.SATURATED), (503, Drop.NO_ENDPOINTS), (400, None)]
)
async def test_refusals_arrive_with_status_reason_and_sentence(status: int, reason: Drop | None):
    """What a client needs in order to do the right thing next."""
    async with scene() as here:
        here.director.refusal = Refused(status, "because", reason)
        answer = await here.post()
        assert answer.status_code == status
        assert answer.headers.get("x-llm-d-request-dropped-reason") == reason
        assert answer.json()["error"]["message"].endswith(" - because")
        assert here.http[1].seen == []


async def test_a_malformed_body_is_refused_with_a_sentence():
    """By the picker; no worker sees it."""
    async with scene() as here:
        answer = await here.post(b"x")
        assert answer.status_code == 400
        assert "not valid JSON" in answer.text
        assert here.http[1].seen == []


async def test_a_multimodal_body_arrives_whole():
    """25 MB in one request: images are sent so."""
    body = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"x" * 25_000_000)
    async with scene() as here:
        answer = await here.post(body)
        assert answer.json()["size"] == len(body)


async def test_the_client_is_told_the_model_it_asked_for():
    """The worker gets the other name."""
    async with scene(rewritten_model="served") as here:
        await here.post(CHAT.replace(b'"m"', b'"asked"'))
        assert json.loads(here.http[1].seen[0].body)["model"] == "served"


async def test_a_dead_worker_is_replaced():
    """Its connection is refused, nothing was sent: Envoy takes another one, and the picker hears."""
    async with scene(EnvoyPlan(health_interval_s=5.0), tracks_response=True) as here:
        here.director.choose = None
        here.director.decision = {"tracks_response": True}
        here.director.endpoints = ("127.0.0.3:1",)
        answer = await here.post()
        assert answer.status_code == 200


async def test_a_worker_that_dies_under_load_is_replaced():
    """Before Envoy has noticed: all that it refuses at once are tried elsewhere, not three of them."""
    port = free_port()
    pods = [FakePod(ip, ip, port) for ip in ("127.0.0.2", "127.0.0.3")]
    for pod in pods:
        await pod.start()
    workers = [(pod.ip, port) for pod in pods]
    plan = EnvoyPlan(
        picker=("127.0.0.1", free_port()), http_workers=workers, health_interval_s=PATIENCE_S
    )
    async with (
        envoy(plan) as running,
        running.client() as client,
    ):
        pods[1].stop()
        asked = (client.post("/v1/chat/completions", content=CHAT) for _ in range(60))
        answers = await asyncio.gather(*asked)
        pods[0].stop()
    assert [answer.status_code for answer in answers] == [200] * 60


async def test_fail_open_serves_without_a_picker():
    """Round robin, and not one request fails, bodies or not."""
    async with scene() as here:
        await here.kill_picker()
        answers = [await here.post() for _ in range(30)]
        assert [answer.status_code for answer in answers] == [200] * 30
        assert {answer.json()["worker"] for answer in answers} == {
            worker.address for worker in here.http
        }


async def test_without_a_picker_the_dead_get_nothing():
    """Also where most workers are: no request is tried there, and none is lost."""
    dead = [("127.0.0.1", free_port()) for _ in range(4)]
    async with http_worker("127.0.0.2") as alive:
        plan = EnvoyPlan(
            picker=("127.0.0.1", free_port()),
            http_workers=[split(alive.address), *dead],
            health_interval_s=QUICK,
        )
        async with (
            envoy(plan) as running,
            running.client() as client,
        ):
            answers = [await client.post("/v1/chat/completions", content=CHAT) for _ in range(20)]
    assert [answer.status_code for answer in answers] == [200] * 20


async def test_fail_close_refuses_without_a_picker():
    """500, and no worker sees anything."""
    async with scene(EnvoyPlan(health_interval_s=QUICK, is_fail_open=False)) as here:
        await here.kill_picker()
        answers = [await here.post() for _ in range(3)]
        assert {answer.status_code for answer in answers} == {500}
        assert here.http[0].seen == here.http[1].seen == []


async def test_a_slow_picker_is_waited_for():
    """Longer than Envoy's own default of 200 ms, which would not let it tokenise or queue."""
    async with scene() as here:
        here.director.delay_s = 1.0
        assert (await here.post()).json()["worker"] == here.http[1].address


async def test_a_slow_client_is_waited_for():
    """The picker answers headers when it has the body; an upload may take its time."""

    async def pieces():
        yield CHAT[:20]
        await asyncio.sleep(1.5)
        yield CHAT[20:]

    async with scene(EnvoyPlan(health_interval_s=QUICK, picker_timeout_s=10)) as here:
        answer = await here.client.post("/v1/chat/completions", content=pieces())
        assert answer.json()["worker"] == here.http[1].address


async def test_a_client_that_leaves_while_the_picker_thinks_is_forgotten():
    """Nothing is sent to a worker, nothing stays open."""
    async with scene() as here:
        here.director.delay_s = PATIENCE_S
        leaving = asyncio.create_task(here.post())
        await until(lambda: here.director.requests)
        leaving.cancel()
        await until(lambda: here.server.num_streams == 0)
        assert here.http[1].seen == []


async def test_a_client_that_leaves_in_mid_stream_is_reported():
    """Whoever counts requests in flight hears of it; the worker is let go."""
    async with scene(tracks_response=True) as here:
        here.http[1].num_events = 10_000
        url = "/v1/chat/completions"
        async with here.client.stream("POST", url, content=STREAMED) as answer:
            async for _ in answer.aiter_bytes():
                break
        await until(lambda: here.director.endings == [Ending.DISCONNECTED])
        await until(lambda: here.server.num_streams == 0)


async def test_a_draining_picker_loses_nothing():
    """Health turns first; until Envoy notices, requests are answered as ever."""
    async with scene() as here:
        draining = asyncio.create_task(here.server.drain(PATIENCE_S))
        statuses = []
        while not draining.done():
            statuses.append((await here.post()).status_code)
        await draining
        statuses += [(await here.post()).status_code for _ in range(5)]
    assert set(statuses) == {200}


async def test_requests_in_hand_are_answered_when_the_picker_stops():
    """With a 503 that says why: a clean end would let them pass unrouted."""
    async with scene(EnvoyPlan(health_interval_s=QUICK, is_fail_open=False)) as here:
        here.director.delay_s = PATIENCE_S
        waiting = asyncio.create_task(here.post())
        await until(lambda: len(here.director.requests) == 1)
        await here.server.stop()
        answer = await waiting
        assert answer.status_code == 503
        assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", None),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (500, "server_error", "internal_error"),
        (503, "server_error", "service_unavailable"),
    ],
)
async def test_a_refusal_has_openais_form(status: int, kind: str, code: str | None):
    """As the workers write theirs: clients read the message out of it."""
    async with scene() as here:
        here.director.choose = None
        here.director.refusal = Refused(status, 'said "so"', Drop.SATURATED)
        answer = await here.post()
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
        error = answer.json()["error"]
        assert error.pop("message").strip().endswith(' - said "so"')
        assert error == {"type": kind, "param": None, "code": code}


async def test_a_refusal_of_messages_has_anthropics_form():
    """503 is 529 there, which its clients know as overloaded."""
    async with scene() as here:
        here.director.choose = None
        for status, told, kind in ((503, 529, "overloaded_error"), (429, 429, "rate_limit_error")):
            here.director.refusal = Refused(status, "no")
            answer = await here.post(path="/v1/messages", x_request_id="r1")
            assert answer.status_code == told
            assert answer.json()["error"]["type"] == kind
            assert answer.json()["type"] == "error"


async def test_envoys_own_errors_have_openais_form():
    """A worker that cannot be reached, a picker that fails closed, a path without workers."""
    async with scene(EnvoyPlan(health_interval_s=QUICK, is_fail_open=False)) as here:
        await here.kill_picker()
        answer = await here.post()
        assert (answer.status_code, answer.headers["content-type"]) == (500, "application/json")
        assert answer.json()["error"]["type"] == "server_error"
