import pytest

from tests.epp.pools import bench, pool_of, request, sample

CONFIG = (
    "plugins:\n- {type: agent-identity, parameters: {additionalSessionHeaders: [X-Mine]}}\n"
    "- {type: queue-scorer}\n"
)


@pytest.mark.parametrize(
    ("headers", "flow"),
    [
        ({"x-claude-code-session-id": "a", "session_id": "b"}, "a"),
        ({"x-session-affinity": "c"}, "c"),
        ({"session-id": "d"}, "d"),
        ({"session_id": "e", "x-mine": "f"}, "e"),
        ({"x-mine": "f"}, "f"),
        ({"x-mine": "f", "x-llm-d-inference-fairness-id": "g"}, "g"),
        ({"x-mine": " "}, "default-flow"),
        ({"x-mine": "x" * 1000}, "other"),
    ],
)
def test_a_session_is_a_flow(headers: dict[str, str], flow: str):
    """Unless the client names one itself."""
    made = bench(CONFIG, pool_of(1))
    made.pick(request(1, model="m", headers=headers))
    labels = {
        "model_name": "m", "target_model_name": "m", "fairness_id": flow, "priority": "0"
    }  # fmt: skip
    assert sample(made, "llm_d_epp_request_total", **labels) == 1
