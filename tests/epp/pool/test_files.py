import asyncio
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.epp.pools import HEAD, opened, until
from weft.core.errors import ConfigError
from weft.epp.build import Picker, open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.pool import discovery
from weft.epp.pool.endpoints_file import EndpointsFile, read_endpoints
from weft.epp.pool.objects_files import ObjectFiles
from weft.epp.pool.pool import Pool

GOOD = """\
endpoints:
- {name: a, address: 10.0.0.1, port: "8000", labels: {llm-d.ai/role: decode}}
- {name: b, namespace: n, address: "fd00::1", port: 8001, metricsPort: 9000, grpcPort: "9001"}
"""


def write(path: Path, text: str) -> Path:
    """Replace a file as editors and mounts do: by renaming."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)
    return path


def test_endpoints_are_read(tmp_path: Path):
    """YAML; ports as text or numbers; IPv6; a metrics port beside the port."""
    found, problems = read_endpoints(write(tmp_path / "e.yaml", GOOD))
    assert problems == []
    assert [(each.namespace, each.name, each.address, each.port) for each in found] == [
        ("default", "a", "10.0.0.1", 8000), ("n", "b", "fd00::1", 8001),
    ]  # fmt: skip
    assert [each.metrics_port for each in found] == [None, 9000]
    assert [each.grpc_port for each in found] == [None, 9001]
    assert found[0].labels == {"llm-d.ai/role": "decode"}


def test_json_is_read_too(tmp_path: Path):
    """It is YAML as well."""
    text = json.dumps({"endpoints": [{"name": "a", "address": "host", "port": "1"}]}, indent=1)
    found, _ = read_endpoints(write(tmp_path / "e.json", text))
    assert [each.address for each in found] == ["host"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{name: x, address: 10.0.0.1}", "endpoints[2]: object missing required field `port`"),
        ('{name: x, address: 10.0.0.1, port: "0"}', "endpoints[2]: port must be from 1 to 65535"),
        ("{name: x, address: 10.0.0.1, port: 1, weight: 1}", "endpoints[2].weight: unknown key"),
        ("{name: x, address: 'a b', port: 1}", "endpoints[2]: address must be"),
        ("{name: a, address: 10.0.0.1, port: 1}", "endpoints[2].name: duplicate default/a"),
        ("7", "endpoints[2]: expected `object`"),
    ],
)
def test_bad_entries_are_skipped_and_reported(tmp_path: Path, entry: str, problem: str):
    """The good ones load."""
    found, problems = read_endpoints(write(tmp_path / "e.yaml", f"{GOOD}- {entry}\n"))
    assert [each.name for each in found] == ["a", "b"]
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize(
    "text", ["[]", "a: 1", "endpoints: 1", "endpoints: [", " " * (1 << 20) + "x"]
)
def test_files_that_are_no_list_of_endpoints_are_refused(tmp_path: Path, text: str):
    """With the file's name; so are files over 1 MiB and files that are not there."""
    with pytest.raises(ConfigError, match=r"e\.yaml"):
        read_endpoints(write(tmp_path / "e.yaml", text))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_endpoints(tmp_path / "none")


def config_for(path: Path) -> str:
    parameters = f"{{path: {path}, watchFile: true}}"
    return HEAD + (
        f"plugins: [{{type: file-discovery, parameters: {parameters}}}, {{type: queue-scorer}}]\n"
        "dataLayer: {discovery: {pluginRef: file-discovery}}\n"
    )


async def names(picker: Picker) -> list[str]:
    return sorted(endpoint.name for endpoint in picker.pool)


async def test_endpoints_file_is_followed(tmp_path: Path):
    """On rename and on write; a broken file changes nothing; vanished entries are gone."""
    path = write(tmp_path / "e.yaml", GOOD)
    async with opened(PickerOptions(config_text=config_for(path))) as picker:
        assert await names(picker) == ["default/a", "n/b"]
        write(path, "endpoints: [")
        await asyncio.sleep(0.7)
        assert await names(picker) == ["default/a", "n/b"]
        path.write_text("endpoints: [{name: c, address: 10.0.0.9, port: 1}]")
        await until(lambda: len(picker.pool) == 1)
        assert await names(picker) == ["default/c"]


async def test_a_lookup_that_takes_long_does_not_bring_former_endpoints_back(
    tmp_path: Path, monkeypatch
):
    """The file was read again while their names were looked up."""
    has_answer = asyncio.Event()
    has_answer.set()

    async def look_up(*_, **__):
        await has_answer.wait()
        return [(None, None, 0, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    path = write(tmp_path / "e.yaml", "endpoints: [{name: old, address: w.example, port: 1}]")
    pool = Pool()
    file = EndpointsFile(path, pool)
    await file.load()
    has_answer.clear()
    lookup = asyncio.create_task(file.resolve())
    await asyncio.sleep(0)
    write(path, "endpoints: [{name: new, address: 10.0.0.2, port: 1}]")
    await file.reload()
    has_answer.set()
    await lookup
    assert [endpoint.name for endpoint in pool] == ["default/new"]


async def test_a_name_server_that_fails_empties_no_pool(monkeypatch):
    """Not even if it fails the first time that names are looked up again."""
    num_lookups = 0

    async def look_up(*_, **__):
        nonlocal num_lookups
        num_lookups += 1
        if num_lookups > 1:
            raise OSError("no answer")
        return [(None, None, 0, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    monkeypatch.setattr(discovery, "RESOLVE_EVERY_S", 0.001)
    config = HEAD + "plugins: [{type: queue-scorer}]\n"
    async with opened(PickerOptions(config_text=config, endpoints=("w.example:8000",))) as picker:
        await until(lambda: num_lookups > 3)
        assert [endpoint.host_port for endpoint in picker.pool] == ["10.0.0.1:8000"]


async def test_broken_endpoints_file_stops_the_start(tmp_path: Path):
    """Nobody is served from a file that says nothing."""
    path = write(tmp_path / "e.yaml", "[]")
    with pytest.raises(ConfigError, match=r"e\.yaml"):
        await open_picker(PickerOptions(config_text=config_for(path)))


# -- objects ----------------------------------------------------------------------------------

OBJECTIVE = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -5, poolRef: {name: default}}
"""
REWRITE = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: %s, creationTimestamp: "%s"}
spec:
  rules:
%s
"""


def rewrite(name: str, created: str, *rules: str) -> str:
    return REWRITE % (name, created, "\n".join(f"  - {rule}" for rule in rules))


def exact(model: str, *targets: str) -> str:
    listed = ", ".join(f"{{modelRewrite: {target}}}" for target in targets)
    return f"{{matches: [{{model: {{type: Exact, value: {model}}}}}], targets: [{listed}]}}"


def generic(target: str) -> str:
    return f"{{targets: [{{modelRewrite: {target}}}]}}"


def read(tmp_path: Path, *texts: str, pool_name: str | None = None, namespace: str | None = None):
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.yaml").write_text(text)
    return ObjectFiles([tmp_path], pool_name=pool_name, namespace=namespace).read()


def test_objectives_give_priorities(tmp_path: Path):
    """By name; an unknown one is 0."""
    objects = read(tmp_path, OBJECTIVE)
    assert [objects.priority(name) for name in ("batch", "x")] == [-5, 0]


@pytest.mark.parametrize(
    ("pool_name", "namespace", "priority"),
    [(None, None, -5), ("default", "n", -5), ("other", None, 0), (None, "other", 0)],
)
def test_named_pool_takes_its_own_objects(tmp_path: Path, pool_name, namespace, priority: int):
    """Those that refer to another pool, or are of another namespace, do not count."""
    text = OBJECTIVE.replace("name: batch", "name: batch, namespace: n")
    objects = read(tmp_path, text, pool_name=pool_name, namespace=namespace)
    assert objects.priority("batch") == priority


@pytest.mark.parametrize(
    ("group", "priority"), [("inference.networking.k8s.io", 3), ("example.com", 0)]
)
def test_another_group_is_another_pool(tmp_path: Path, group: str, priority: int):
    """Though it has the same name."""
    ref = f"{{name: mine, group: {group}}}"
    (tmp_path / "o.yaml").write_text(
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: gold}\n"
        f"spec: {{priority: 3, poolRef: {ref}}}\n"
    )
    files = ObjectFiles(
        [tmp_path], pool_name="mine", namespace=None, pool_group="inference.networking.k8s.io"
    )
    assert files.read().priority("gold") == priority


def test_exact_rewrites_beat_generic_and_older_beat_newer(tmp_path: Path):
    """Then the order of the rules."""
    objects = read(
        tmp_path,
        rewrite("new", "2026-02-01T00:00:00Z", exact("m", "new"), generic("rest")),
        rewrite("old", "2026-01-01T00:00:00Z", exact("m", "old"), exact("m", "second")),
        rewrite("undated", "", exact("m", "undated"), exact("n", "only")),
    )
    assert objects.rewrite("m") == ("old", "old")
    assert objects.rewrite("n") == ("undated", "only")
    assert objects.rewrite("x") == ("new", "rest")


def test_weights_share_out(tmp_path: Path):
    """In proportion; without weights alike."""
    targets = "targets: [{modelRewrite: a, weight: 3}, {modelRewrite: b, weight: 1}]"
    objects = read(tmp_path, rewrite("w", "", f"{{{targets}}}"))
    counts = Counter(objects.rewrite("m")[1] for _ in range(4000))
    assert counts["a"] == pytest.approx(3000, abs=200)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod\napiVersion: v1\nmetadata: {name: a}", ".kind: must be InferenceObjective"),
        (OBJECTIVE.replace("v1alpha2", "v1").replace("llm-d.ai", "x.y"), ".apiVersion"),
        (OBJECTIVE.replace("name: batch", "x: y"), ".metadata.name: must be given"),
        (OBJECTIVE.replace("-5", "high"), ".spec.priority: expected `int`"),
        (OBJECTIVE.replace("priority", "prio"), ".spec.prio: unknown key"),
        (OBJECTIVE + "more: 1", ".more: unknown key"),
        (OBJECTIVE + "---\n" + OBJECTIVE, "[1].metadata.name: duplicate 'batch'"),
        (rewrite("r", "", "{targets: []}"), ".spec.rules[0].targets: expected `array` of length"),
        (rewrite("r", "", "{targets: [{modelRewrite: a, weight: 1}, {modelRewrite: b}]}"),
         ".spec.rules[0]: targets: give every target a weight, or none"),
    ],
)  # fmt: skip
def test_wrong_manifests_are_refused_with_file_and_key(tmp_path: Path, text: str, message: str):
    """A typo in a priority must not become 0."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "0.yaml" in str(caught.value)


async def test_objects_are_followed(tmp_path: Path):
    """New files count, broken ones leave what there is."""
    (tmp_path / "a.yaml").write_text(OBJECTIVE)
    async with opened(PickerOptions(endpoints=("10.0.0.1:1",), objects=(tmp_path,))) as picker:
        assert picker.director.objects.priority("batch") == -5
        (tmp_path / "b.yaml").write_text("kind: [")
        await asyncio.sleep(0.7)
        assert picker.director.objects.priority("batch") == -5
        (tmp_path / "b.yaml").write_text(OBJECTIVE.replace("batch", "b").replace("-5", "7"))
        await until(lambda: picker.director.objects.priority("b") == 7)
