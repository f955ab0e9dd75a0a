import pytest

from tests.doubles.api_server import PODS, POOLS, ApiServerDouble
from tests.epp.kubernetes.cluster import (
    LABELS,
    following,
    inference_pool,
    pod,
    put_pods,
    where,
)
from tests.epp.pools import opened, until
from weft.core.errors import ConfigError
from weft.epp.build import open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.kubernetes.discovery import Wanted
from weft.epp.kubernetes.manifests import check_selector, parse_ports
from weft.epp.pool.pool import Pool


async def test_each_ready_pod_is_an_endpoint_at_each_port(api: ApiServerDouble):
    """Named by rank, with the pod's labels; asked for with the token of the kubeconfig."""
    api.put(POOLS, inference_pool(8000, 8001))
    put_pods(api, PODS, pod(1), pod(2, ready=False), pod(3, labels={"app": "other"}))
    pool = Pool()
    async with following(pool) as discovery:
        assert where(pool) == {"10.0.0.1:8000", "10.0.0.1:8001"}
        assert {each.name for each in pool} == {"ns/p1-rank-0", "ns/p1-rank-1"}
        assert next(iter(pool)).labels == LABELS
        assert discovery.has_synced
    assert {each.headers["authorization"] for each in api.asked} == {"Bearer secret"}


async def test_pods_come_and_go(api: ApiServerDouble):
    """Ready, not ready, terminating, relabelled, deleted: each shows without a list."""
    put_pods(api, PODS, pod(1))
    pool = Pool()
    async with following(pool):
        api.put(PODS, pod(2))
        await until(lambda: len(pool) == 2)
        api.put(PODS, pod(1, ready=False))
        await until(lambda: where(pool) == {"10.0.0.2:8000"})
        api.put(PODS, pod(1))
        await until(lambda: len(pool) == 2)
        api.put(PODS, pod(1, deletionTimestamp="2026-01-01T00:00:00Z"))
        await until(lambda: where(pool) == {"10.0.0.2:8000"})
        api.put(PODS, pod(3))
        api.put(PODS, pod(2, labels={"app": "other"}))
        await until(lambda: where(pool) == {"10.0.0.3:8000"})
        api.delete(PODS, "p3")
        await until(lambda: not len(pool))
    assert len([each for each in api.lists if each.path == PODS]) == 1


@pytest.mark.parametrize(
    ("later", "is_same"),
    [
        (pod(1), True),
        (pod(1, annotations={"a": "b"}), True),
        (pod(1, labels=LABELS | {"team": "b"}), True),
        (pod(1, sidecar=3), True),
        (pod(1, uid="another"), False),
        (pod(1, restarts=1), False),
        (pod(1, ip="10.0.0.9"), False),
    ],
    ids=[
        "the same",
        "annotated",
        "labelled",
        "with a restarted sidecar",
        "made anew",
        "restarted",
        "moved",
    ],
)
async def test_another_incarnation_is_another_endpoint(
    api: ApiServerDouble, later: dict, is_same: bool
):
    """Caches and load of the former say nothing of it, at the same address too."""
    put_pods(api, PODS, pod(1), pod(2))
    pool = Pool()
    async with following(pool):
        former = {each.name: each for each in pool}["ns/p1-rank-0"]
        api.put(PODS, later)
        api.delete(PODS, "p2")
        await until(lambda: len(pool) == 1)
        (now,) = pool
        assert (now is former) is is_same


async def test_the_pool_may_change(api: ApiServerDouble, caplog: pytest.LogCaptureFixture):
    """Its ports, its selector; without the object nobody is a member."""
    put_pods(api, PODS, pod(1), pod(2, labels={"app": "new"}))
    pool = Pool()
    async with following(pool):
        api.put(POOLS, inference_pool(9000, appProtocol="kubernetes.io/h2c"))
        await until(lambda: where(pool) == {"10.0.0.1:9000"})
        api.put(POOLS, inference_pool(selector={"matchLabels": {"app": "new"}}))
        await until(lambda: where(pool) == {"10.0.0.2:8000"})
        api.delete(POOLS, "llm")
        await until(lambda: not len(pool))
        assert caplog.text.count("the InferencePool ns/llm of the API group") == 1
        api.put(POOLS, inference_pool())
        await until(lambda: where(pool) == {"10.0.0.1:8000"})


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"appProtocol": "grpc"}, "appProtocol must be http or kubernetes.io/h2c, got 'grpc'"),
        ({"targetPorts": [{"number": 0}]}, "targetPorts[0].number"),
        ({"targetPorts": []}, "targetPorts"),
        ({"targetPorts": [{"number": 1}, {"number": 1}]}, "duplicate number"),
        ({"selector": {"matchLabels": {}}}, "matchLabels"),
    ],
)
async def test_a_pool_that_makes_no_sense_changes_nothing(
    api: ApiServerDouble, spec: dict, problem: str, caplog: pytest.LogCaptureFixture
):
    """The log says what is wrong; those who serve go on."""
    put_pods(api, PODS, pod(1))
    pool = Pool()
    async with following(pool):
        api.put(POOLS, inference_pool(**spec))
        await until(lambda: problem in caplog.text)
        api.put(PODS, pod(2))
        await until(lambda: len(pool) == 2)


async def test_the_older_pool_is_read(api: ApiServerDouble):
    """One port, and labels without a word around them."""
    older = POOLS.replace(
        "inference.networking.k8s.io/v1", "inference.networking.x-k8s.io/v1alpha2"
    )
    spec = {"selector": LABELS, "targetPortNumber": 8100}
    api.put(older, {"metadata": {"name": "llm", "namespace": "ns"}, "spec": spec})
    api.put(PODS, pod(1))
    pool = Pool()
    wanted = Wanted(pool_name="llm", pool_group="inference.networking.x-k8s.io")
    async with following(pool, wanted):
        assert where(pool) == {"10.0.0.1:8100"}


async def test_a_picker_follows_a_selector(api: ApiServerDouble):
    """Without any InferencePool, in the namespace of the kubeconfig; until it is closed."""
    api.put(PODS, pod(1))
    options = PickerOptions(endpoint_selector="app=vllm", endpoint_target_ports="8000,8001")
    async with opened(options) as picker:
        assert where(picker.pool) == {"10.0.0.1:8000", "10.0.0.1:8001"}
        assert picker.may_serve()


async def test_a_picker_follows_a_pool_by_name(api: ApiServerDouble):
    """`--pool-name` alone is enough."""
    put_pods(api, PODS, pod(1))
    async with opened(PickerOptions(pool_name="llm")) as picker:
        assert where(picker.pool) == {"10.0.0.1:8000"}


async def test_endpoints_named_by_hand_need_no_cluster(api: ApiServerDouble):
    """Then `--pool-name` is a name."""
    async with opened(PickerOptions(pool_name="llm", endpoints=("10.0.0.7:8000",))) as picker:
        assert where(picker.pool) == {"10.0.0.7:8000"}
    assert api.asked == []


@pytest.mark.parametrize("text", ["", "0", "65536", "8000,", "1,1", "1,2,3,4,5,6,7,8,9", "8000 "])
def test_ports_are_checked(text: str):
    """As an InferencePool would have them."""
    with pytest.raises(ConfigError, match="--endpoint-target-ports"):
        parse_ports(text)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"endpoint_selector": "a=b"}, "need each other"),
        ({"endpoint_target_ports": "1"}, "need each other"),
        ({"endpoint_selector": " ", "endpoint_target_ports": "1"}, "must not be empty"),
        (
            {"endpoint_selector": "a", "endpoint_target_ports": "1", "pool_name": "p"},
            "--endpoint-selector and --pool-name exclude each other",
        ),
        (
            {"endpoint_selector": "a", "endpoint_target_ports": "1", "endpoints": ("h:1",)},
            "--endpoint-selector and --endpoint exclude each other",
        ),
        ({"pool_name": ""}, "--pool-name must not be empty"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(given: dict, problem: str):
    """At the start, by name."""
    with pytest.raises(ConfigError, match=problem):
        PickerOptions(**given)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"pool_name": "llm", "pool_group": "example.com"}, "--pool-group 'example.com'"),
        ({"pool_name": "llm", "pool_namespace": "../x"}, "--pool-namespace '../x'"),
        ({"pool_name": "Llm"}, "--pool-name 'Llm'"),
    ],
)
async def test_names_are_those_of_kubernetes(api: ApiServerDouble, given: dict, problem: str):
    """Nothing is asked for that cannot be."""
    with pytest.raises(ConfigError, match=problem):
        await open_picker(PickerOptions(**given))
    assert api.asked == []


@pytest.mark.parametrize(
    "text",
    [
        *("app", "!app", "a=b", "a==b", "a != b", "a=", "x.org/a_b=1.2", "a>1,b<-2"),
        *("tier in (front, back),!old", "a notin (b),c", "a in (,b)", " a = b , c "),
    ],
)
def test_selectors_are_those_of_kubernetes(text: str):
    """By equality, by sets, by whether a label is there, and by numbers."""
    check_selector(text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a=b,,c=d", "''"),
        ("app:vllm", "'app:vllm'"),
        ("ok,a in b", "'a in b'"),
        ("a in (b", "'a in (b'"),
        ("a ni (b,c),d", "'a ni (b,c)'"),
        ("a=b c", "'a=b c'"),
        ("-a=b", "'-a=b'"),
        ("a=" + 64 * "b", "'a=b"),
        ("/a", "'/a'"),
        ("X.org/a", "'X.org/a'"),
        ("a>b", "'a>b'"),
    ],
)
async def test_a_selector_that_cannot_be_is_refused_at_the_start(
    api: ApiServerDouble, text: str, wrong: str
):
    """Else the API server refuses it, over and over, and only the log has it."""
    options = PickerOptions(endpoint_selector=text, endpoint_target_ports="8000")
    with pytest.raises(ConfigError) as refused:
        await open_picker(options)
    assert f": {wrong}" in str(refused.value)
    assert "KEY notin (A,B)" in str(refused.value)
    assert api.asked == []


async def test_a_start_without_a_way_to_the_api_server_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path
):
    """A kubeconfig that is not there will not come by itself."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot reach the Kubernetes API server"):
        await open_picker(PickerOptions(pool_name="llm"))
