"""Which models of a pool are in memory: starts, users, memory, order, ends."""

import asyncio
import random

import pytest

from tests.busy import PATIENCE_S
from tests.web.model_pool.fake_sources import Models, settle
from weft.core.errors import (
    ConfigError,
    FailedPrecondition,
    ModelLoading,
    ModelNotStarted,
    NotFound,
    Unavailable,
)


async def test_a_model_is_started_once_for_all_requests_that_wait_for_it():
    """Requests that come while a model starts wait for this start."""
    models = Models(a={})
    models.sources["a"].gate.clear()
    asked = [models.ask("a") for _ in range(5)]
    await settle()
    assert models.states() == {"a": "loading"}
    models.sources["a"].gate.set()
    served = await asyncio.gather(*asked)
    assert len({id(each.client) for each in served}) == 1
    assert models.log == ["+a"]
    assert models.pool.find("a").num_users == 5


async def test_a_model_without_requests_makes_room_and_the_least_recently_used_goes_first():
    """The model whose last request ended first leaves."""
    models = Models(2, a={}, b={}, c={})
    for name in ("a", "b"):
        await models.use(name)
        await models.clock.advance(1)
    await models.use("a")
    await models.use("c")
    assert models.log == ["+a", "+b", "-b", "+c"]
    assert models.pool.used_bytes == 2


async def test_no_answer_is_cut_to_make_room():
    """A model that has requests leaves when they have ended, and takes no new ones meanwhile."""
    models = Models(a={}, b={})
    await models.ask("a")
    wanted = models.ask("b")
    await models.clock.advance(1)
    assert models.states() == {"a": "unloading", "b": "loading"}
    late = models.ask("a")
    await settle()
    assert not wanted.done()
    models.end("a")
    await wanted
    assert models.log == ["+a", "-a", "+b"]
    assert not late.done()
    models.end("b")
    await late
    assert models.log == ["+a", "-a", "+b", "-b", "+a"]


async def test_models_that_stay_a_least_time_bound_how_often_the_server_loads():
    """Requests for two models in turn cause one start for each least time, not one for each request."""
    models = Models(min_stay_s=10.0, a={}, b={})
    await models.use("a")
    waiting = models.ask("b")
    await models.clock.advance(9)
    for _ in range(20):
        await models.use("a")
    assert models.log == ["+a"]
    await models.clock.advance(2)
    await waiting
    assert models.log == ["+a", "-a", "+b"]


async def test_a_model_that_always_has_requests_does_not_starve_another():
    """A busy model makes room once the other model's request has waited for the least time."""
    models = Models(min_stay_s=10.0, a={}, b={})
    await models.ask("a")
    await models.clock.advance(100)
    waiting = models.ask("b")
    await models.clock.advance(9)
    assert models.states()["a"] == "ready"
    await models.clock.advance(2)
    assert models.states()["a"] == "unloading"
    models.end("a")
    await waiting


async def test_memory_is_promised_in_the_order_of_the_requests():
    """A small model does not overtake a large one that waits for memory."""
    models = Models(3, a={"size": 2}, large={"size": 3}, small={})
    await models.ask("a")
    large = models.ask("large")
    await models.clock.advance(1)
    small = models.ask("small")
    await models.clock.advance(1)
    assert models.log == ["+a"]
    models.end("a")
    await large
    assert not small.done()
    models.end("large")
    await small
    assert models.log == ["+a", "-a", "+large", "-large", "+small"]


async def test_a_start_that_fails_fails_its_requests_alone():
    """The error names the model and the reason; requests for other models are answered."""
    models = Models(2, bad={"error": ConfigError("config.json is damaged")}, good={})
    bad, good = models.ask("bad"), models.ask("good")
    with pytest.raises(ModelNotStarted, match=r"model bad did not start: config\.json is damaged"):
        await bad
    await good
    assert models.states() == {"bad": "failed", "good": "ready"}


async def test_a_failed_start_is_not_repeated_at_once():
    """Callers who repeat a request do not make the server start processes without end; later it tries again."""
    models = Models(a={"error": ConfigError("no")})
    with pytest.raises(ModelNotStarted):
        await models.ask("a")
    models.sources["a"].error = None
    with pytest.raises(ModelNotStarted):
        await models.ask("a")
    await models.clock.advance(60)
    await models.ask("a")
    assert models.pool.find("a").error is None


async def test_a_model_that_can_never_fit_is_refused_by_its_size():
    """The error says the sizes, beside those of pinned models."""
    models = Models(4, a={"size": 2, "is_pinned": True}, b={"size": 3})
    await models.pool.start()
    with pytest.raises(
        ModelNotStarted,
        match="needs 3 B, and --models-memory is 4 B, of which pinned models have 2 B",
    ):
        await models.ask("b")


async def test_a_pinned_model_never_makes_room():
    """Pinned models are started first, and refuse to be unloaded."""
    models = Models(2, a={"is_pinned": True, "idle_s": 1.0}, b={}, c={})
    await models.pool.start()
    for name in ("b", "c", "b"):
        await models.use(name)
    await models.clock.advance(100)
    assert models.log == ["+a", "+b", "-b", "+c", "-c", "+b"]
    with pytest.raises(FailedPrecondition, match="pinned"):
        await models.pool.unload(models.pool.find("a"))


async def test_a_request_waits_within_a_bound():
    """The error says how far the start is, and that a retry makes sense; the start goes on."""
    models = Models(a={})
    models.sources["a"].gate.clear()
    entry = models.pool.find("a")
    with pytest.raises(ModelLoading, match=r"not ready after 0\.01 s") as refused:
        await models.pool.acquire(entry, within_s=0.01)
    assert refused.value.retry_after_s > 0
    models.sources["a"].gate.set()
    await settle()
    assert models.states() == {"a": "ready"}
    assert entry.num_users == 0


async def test_a_waiting_request_hears_of_the_progress():
    """The progress is told again and again until the model is there."""
    models = Models(a={})
    models.sources["a"].gate.clear()
    told: list[str] = []

    async def report(text: str) -> None:
        told.append(text)
        if len(told) == 3:
            models.sources["a"].gate.set()

    await models.pool.acquire(models.pool.find("a"), report)
    assert len(told) >= 3
    assert told[0].startswith("a: loading the weights")


async def test_a_model_that_nobody_waits_for_any_more_takes_no_room():
    """A request that goes away while its model waits for memory leaves the others alone."""
    models = Models(min_stay_s=10.0, a={}, b={})
    await models.use("a")
    waiting = models.ask("b")
    await models.clock.advance(1)
    waiting.cancel()
    await models.clock.advance(100)
    assert models.states() == {"a": "ready", "b": "unloaded"}
    assert models.log == ["+a"]


@pytest.mark.parametrize("num_turns", range(12))
async def test_a_request_that_goes_away_as_its_model_gets_ready_is_no_user(num_turns):
    """The count of users is right, whatever came first."""
    models = Models(a={})
    models.sources["a"].gate.clear()
    waiting = models.ask("a")
    await settle()
    models.sources["a"].gate.set()
    for _ in range(num_turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    if not waiting.cancelled():
        models.end("a")
    await settle()
    assert models.states() == {"a": "ready"}
    assert models.pool.find("a").num_users == 0


async def test_an_idle_model_is_unloaded_after_its_time_and_its_least_stay():
    """The time is that of the last request, of the model, or none."""
    models = Models(2, min_stay_s=5.0, a={"idle_s": 20.0}, b={})
    await models.use("a")
    await models.ask("b")
    models.end("b", keep_alive_s=0)
    await models.clock.advance(4)
    assert models.states() == {"a": "ready", "b": "ready"}
    await models.clock.advance(2)
    assert models.states() == {"a": "ready", "b": "unloaded"}
    await models.clock.advance(15)
    assert models.states() == {"a": "unloaded", "b": "unloaded"}


async def test_a_request_keeps_a_model_that_would_be_idle():
    """The time begins again with each request; a negative time means for ever."""
    models = Models(a={"idle_s": 10.0})
    await models.use("a")
    await models.clock.advance(9)
    await models.ask("a")
    await models.clock.advance(20)
    models.end("a", keep_alive_s=-1)
    await models.clock.advance(1000)
    assert models.states() == {"a": "ready"}


async def test_a_model_can_be_unloaded_and_new_requests_start_it_again():
    """Unloading waits for requests that have the model; others wait for the next start."""
    models = Models(a={})
    await models.ask("a")
    unloading = asyncio.create_task(models.pool.unload(models.pool.find("a")))
    await settle()
    assert models.states() == {"a": "unloading"}
    late = models.ask("a")
    await settle()
    models.end("a")
    await unloading
    await late
    assert models.log == ["+a", "-a", "+a"]


async def test_an_engine_that_ends_by_itself_is_started_again_by_the_next_request():
    """The state says that it failed; its memory is free."""
    models = Models(a={})
    await models.use("a")
    models.sources["a"].running.die()
    await settle()
    assert models.states() == {"a": "failed"}
    assert models.pool.used_bytes == 0
    await models.use("a")
    assert models.states() == {"a": "ready"}


async def test_work_after_an_exchange_holds_its_model():
    """A response in the background is a user of its own."""
    models = Models(a={}, b={})
    served = await models.ask("a")
    with served.hold():
        models.end("a")
        waiting = models.ask("b")
        await models.clock.advance(1)
        assert models.sources["a"].running is not None
    await waiting
    assert models.log == ["+a", "-a", "+b"]


async def test_an_unknown_name_is_not_found_and_no_name_is_the_default():
    """The error lists names; Ollama's default tag may be added."""
    models = Models(a={}, b={})
    with pytest.raises(NotFound, match="'c' does not exist; this server has a, b"):
        models.pool.find("c")
    assert models.pool.find(None) is models.pool.find("") is models.pool.find("a:latest")


async def test_two_models_of_one_name_are_refused():
    """A request must mean one model."""
    models = Models(a={}, b={})
    sources = list(models.sources.values())
    with pytest.raises(ConfigError, match="two models have the name a"):
        type(models.pool)([*sources, sources[0]], models.pool.limits, models.clock)


async def test_closing_stops_every_model_and_fails_what_waits():
    """No engine is left, also one that is starting."""
    models = Models(2, a={}, b={})
    await models.use("a")
    models.sources["b"].gate.clear()
    waiting = models.ask("b")
    await settle()
    await models.pool.close()
    with pytest.raises(Unavailable, match="shutting down"):
        await waiting
    assert all(source.running is None for source in models.sources.values())
    with pytest.raises(Unavailable, match="shutting down"):
        await models.ask("b")


async def test_health_counts_models_by_state():
    """Probes need no key, so names are left out."""
    models = Models(2, a={}, b={}, c={"error": ConfigError("no")})
    await models.use("a")
    with pytest.raises(ModelNotStarted):
        await models.ask("c")
    assert models.pool.health() == (
        b'{"models": {"unloaded": 1, "loading": 0, "ready": 1, "unloading": 0, "failed": 1}}'
    )


@pytest.mark.parametrize("seed", range(2))
async def test_ten_models_on_the_memory_of_three(seed):
    """Every request ends, no model is loaded twice, memory stays within the bound, and no model waits for ever."""
    draw = random.Random(seed)
    names = [f"m{number}" for number in range(10)]
    models = Models(3, min_stay_s=1.0, **{name: {} for name in names})
    ended: list[str] = []

    async def request(name: str) -> None:
        await models.ask(name)
        assert models.pool.used_bytes <= 3
        for _ in range(draw.randrange(30)):
            await asyncio.sleep(0)
        models.end(name)
        ended.append(name)

    tasks = [asyncio.create_task(request(draw.choice(names))) for _ in range(300)]
    for _ in range(400):
        if all(task.done() for task in tasks):
            break
        await models.clock.advance(0.25)
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    assert len(ended) == 300
    loads = [line for line in models.log if line.startswith("+")]
    # All 300 came at once: each model is loaded about once, not once for each request.
    assert len(loads) <= 20
    assert sum(entry.num_users for entry in models.pool.entries) == 0


async def test_while_a_request_waits_each_other_model_is_loaded_once_at_most():
    """That bounds the wait: by the number of models, however many requests come for the others."""
    draw = random.Random(3)
    names = [f"m{number}" for number in range(6)]
    models = Models(2, min_stay_s=1.0, **{name: {} for name in names})
    waits: list[tuple[str, list[str]]] = []

    async def caller() -> None:
        for _ in range(20):
            name, begin = draw.choice(names), len(models.log)
            await models.ask(name)
            loads = [line for line in models.log[begin:] if line.startswith("+")]
            waits.append((name, loads))
            await asyncio.sleep(0)
            models.end(name)

    tasks = [asyncio.create_task(caller()) for _ in range(5)]
    for _ in range(800):
        if all(task.done() for task in tasks):
            break
        await models.clock.advance(0.25)
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    waited = [loads[: loads.index(f"+{name}")] for name, loads in waits if f"+{name}" in loads]
    assert len(waited) > 20
    assert max(map(len, waited)) > 2
    assert all(len(set(before)) == len(before) for before in waited)
