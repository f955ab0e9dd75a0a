import asyncio
from typing import Any

import pytest

from tests.doubles.api_server import POOLS, ApiServerDouble
from tests.epp.kubernetes.cluster import inference_pool
from tests.epp.pools import until
from weft.epp.build import Picker, open_picker
from weft.epp.config.options import PickerOptions

NEW = "apis/llm-d.ai/v1alpha2/namespaces/ns/"
V1 = "apis/llm-d.ai/v1/namespaces/ns/"
OLD = "apis/inference.networking.x-k8s.io/v1alpha2/namespaces/ns/"
OBJECTIVES, REWRITES = "inferenceobjectives", "inferencemodelrewrites"
OURS = {"name": "llm", "group": "inference.networking.k8s.io"}


def made(name: str, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    """An object as the API server has it, with what it adds."""
    return {
        "apiVersion": "x/v1",
        "metadata": {
            "name": name, "namespace": "ns", "creationTimestamp": created, "managedFields": []
        },
        "spec": {"poolRef": OURS, **spec},
        "status": {"conditions": []},
    }  # fmt: skip


def rule(target: str, *models: str) -> dict[str, Any]:
    """Requests for these models, or for all, go to `target`."""
    matches = [{"model": {"type": "Exact", "value": model}} for model in models]
    return {"matches": matches, "targets": [{"modelRewrite": target, "weight": 1}]}


@pytest.fixture
async def picker(api: ApiServerDouble):
    """One that follows the pool."""
    api.put(POOLS, inference_pool(selector={"matchLabels": {"app": "vllm"}}))
    api.put(NEW + OBJECTIVES, made("gold", priority=10))
    api.put(OLD + OBJECTIVES, made("gold", priority=1))
    api.put(OLD + OBJECTIVES, made("batch", priority=-1))
    api.put(NEW + OBJECTIVES, made("other", priority=5, poolRef={"name": "another"}))
    picker = await open_picker(PickerOptions(pool_name="llm"))
    yield picker
    await picker.close()


async def test_priorities_are_those_of_objectives(api: ApiServerDouble, picker: Picker):
    """Of both groups, the newer first; of this pool only; as they change."""

    def priorities() -> list[int]:
        return [picker.director.objects.priority(name) for name in ("gold", "batch", "other")]

    await until(lambda: priorities() == [10, -1, 0])
    api.put(NEW + OBJECTIVES, made("gold", priority=20))
    await until(lambda: priorities() == [20, -1, 0])
    api.delete(NEW + OBJECTIVES, "gold")
    await until(lambda: priorities() == [1, -1, 0])
    await api.tear()
    assert priorities() == [1, -1, 0]


async def test_fields_of_later_versions_leave_the_priority(api: ApiServerDouble, picker: Picker):
    """Also in a reference; and v1's list of pools is read."""
    later = {**OURS, "sectionName": "a"}
    api.put(NEW + OBJECTIVES, made("later", priority=7, poolRef=later, latencyBudget="5s"))
    api.put(
        V1 + OBJECTIVES, made("several", priority=8, poolRef=None, poolRefs=[{"name": "x"}, OURS])
    )
    api.put(V1 + OBJECTIVES, made("others", priority=9, poolRef=None, poolRefs=[{"name": "x"}]))
    await until(lambda: picker.director.objects.priority("later") == 7)
    await until(lambda: picker.director.objects.priority("several") == 8)
    assert picker.director.objects.priority("others") == 0


async def test_a_reference_without_a_group_is_by_name(api: ApiServerDouble, picker: Picker):
    """llm-d's kind has its own group as the default, of which there is no pool; any other must be the pool's."""
    unsaid = {"name": "llm", "group": "llm-d.ai", "kind": "InferencePool"}
    foreign = {"name": "llm", "group": "inference.networking.x-k8s.io"}
    api.put(NEW + OBJECTIVES, made("foreign", priority=3, poolRef=foreign))
    api.put(NEW + OBJECTIVES, made("unsaid", priority=4, poolRef=unsaid))
    await until(lambda: picker.director.objects.priority("unsaid") == 4)
    assert picker.director.objects.priority("foreign") == 0


async def test_rewrites_are_in_force(api: ApiServerDouble, picker: Picker):
    """The oldest object first; and their models are names that metrics may show."""
    api.put(NEW + REWRITES, made("late", "2026-02-01T00:00:00Z", rules=[rule("b", "m")]))
    api.put(NEW + REWRITES, made("early", "2026-01-01T00:00:00Z", rules=[rule("a", "m")]))
    await until(lambda: picker.director.objects.rewrite("m") == ("early", "a"))
    assert picker.director.objects.rewrite("n") is None
    assert "a" in picker.metrics.model_names.allowed
    api.delete(NEW + REWRITES, "early")
    await until(lambda: picker.director.objects.rewrite("m") == ("late", "b"))


async def test_an_object_that_makes_no_sense_changes_nothing(
    api: ApiServerDouble, picker: Picker, caplog: pytest.LogCaptureFixture
):
    """What was in force stays so; the log names the key."""
    api.put(NEW + REWRITES, made("one", rules=[rule("a", "m")]))
    await until(lambda: picker.director.objects.rewrite("m") == ("one", "a"))
    api.put(NEW + REWRITES, made("one", rules=[{"targets": []}]))
    api.put(NEW + OBJECTIVES, made("gold", priority="high"))
    await until(lambda: "spec.priority" in caplog.text and "targets" in caplog.text)
    assert picker.director.objects.rewrite("m") == ("one", "a")
    assert picker.director.objects.priority("gold") == 10


async def test_files_come_before_the_api_server(api: ApiServerDouble, tmp_path):
    """`--objects` says all; and a selector is of no pool that objects could name."""
    api.put(POOLS, inference_pool())
    (tmp_path / "none.yaml").write_text("")
    for options in (
        PickerOptions(pool_name="llm", objects=(tmp_path / "none.yaml",)),
        PickerOptions(endpoint_selector="app=vllm", endpoint_target_ports="8000"),
    ):
        picker = await open_picker(options)
        await asyncio.sleep(0.05)
        await picker.close()
    assert not [each for each in api.asked if OBJECTIVES in each.path or REWRITES in each.path]
