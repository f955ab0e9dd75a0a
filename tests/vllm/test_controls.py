"""An operator's calls to vLLM's engine, with an `AsyncLLM` that only records them."""

from types import SimpleNamespace

import pytest

from tests.doubles.fake_engine import make_config
from weft.core.errors import Unsupported
from weft.core.operator_calls import CALLS
from weft.vllm.controls import VllmControls

NOTHING = SimpleNamespace(profiler=None)


class RecordingLlm:
    """Keeps each call, and answers it with `value`."""

    def __init__(self, value, profiler_config=NOTHING, weight_transfer_config=None):
        self.vllm_config = SimpleNamespace(
            profiler_config=profiler_config,
            weight_transfer_config=weight_transfer_config,
            parallel_config=SimpleNamespace(enable_elastic_ep=False),
        )
        self.value = value
        self.calls = []

    def __getattr__(self, name):
        async def record(*arguments, **named):
            self.calls.append((name, arguments, named))
            return self.value

        return record


def controls(llm):
    """Controls of a running engine."""
    return VllmControls(llm, make_config(), lambda: None, lambda size: None)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("is_paused", 1, True),
        ("list_loras", [2, 1], {1, 2}),
        ("pin_lora", None, False),
        ("reset_prefix_cache", True, True),
        ("reset_mm_cache", "anything", None),
        ("resume_generation", "anything", None),
    ],
)
async def test_an_answer_of_vllm_has_the_type_that_the_table_names(name, value, expected):
    """Servers encode the answer by that type."""
    llm = RecordingLlm(value)
    assert await controls(llm).answer(name) == expected
    assert [called for called, *_ in llm.calls] == [name]


async def test_arguments_are_passed_as_vllm_takes_them():
    """The rank of a rejected request and the counts of a profile have no position there."""
    llm = RecordingLlm(None, profiler_config=SimpleNamespace(profiler="torch"))
    await controls(llm).answer("notify_kv_transfer_request_rejected", "r", {"a": 1}, 3)
    await controls(llm).answer("start_profile", "p", 1, 2)
    await controls(llm).answer("reset_prefix_cache", True)
    assert llm.calls == [
        ("notify_kv_transfer_request_rejected", ("r", {"a": 1}), {"data_parallel_rank": 3}),
        ("start_profile", ("p",), {"delay_iterations": 1, "max_iterations": 2}),
        ("reset_prefix_cache", (True,), {}),
    ]


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.flag is not None])
async def test_a_call_of_a_flag_that_was_not_given_does_not_reach_vllm(name):
    """The error names the flag, as that of Weft's own engine does."""
    llm = RecordingLlm(None)
    with pytest.raises(Unsupported, match=f"{name} is not supported: .* {CALLS[name].flag}"):
        await controls(llm).answer(name)
    assert not llm.calls
