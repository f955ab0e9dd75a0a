"""A picker goes by the clock that it is given, and long work by that of its loop."""

import asyncio

from benchmarks.scale.virtual_time import run_virtually
from weft.core.aio.turns import Turns
from weft.epp.build import load_config, make_picker
from weft.epp.config.options import PickerOptions
from weft.epp.pool.endpoint import EndpointSpec
from weft.epp.request.values import InferenceRequest, Prompt


def test_a_picker_at_rest_decides_by_its_clock():
    """When a pick was made, and what has become of it, are told in the caller's time."""
    now = 5.0
    options = PickerOptions()
    picker = make_picker(load_config(options), options, lambda: now)
    picker.pool.replace(
        "test", [(EndpointSpec(name="a", address="10.0.0.1", port=8000), "10.0.0.1")]
    )
    request = InferenceRequest(
        request_id="1", path="/v1/completions", headers={}, parser="openai-parser", model="m",
        prompts=(Prompt(packed=bytes(256)),),
    )  # fmt: skip
    asyncio.run(picker.director.pick(request, None))
    (endpoint,) = picker.pool
    assert list(endpoint.unseen.values()) == [5.0]
    now = 5.0 + options.unseen_ttl_s + 1.0
    picker.director.sweep()
    assert not endpoint.unseen


def test_turns_are_measured_by_the_loop():
    """On a loop in virtual time work is never too long; elsewhere that is its real clock."""

    async def worked() -> tuple[bool, bool]:
        others: list[str] = []
        asyncio.get_running_loop().call_soon(others.append, "had a turn")
        turns = Turns()
        await turns.yield_if_due()
        early = bool(others)
        await asyncio.sleep(1.0)
        others.clear()
        asyncio.get_running_loop().call_soon(others.append, "had a turn")
        await turns.yield_if_due()
        return early, bool(others)

    assert run_virtually(worked()) == (False, True)
