import asyncio
import gzip
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.loop_probe import check_pauses
from tests.epp.pools import make_pool, until
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Adapters, Endpoint, EndpointSpec, Load
from weft.epp.pool.engines import ENGINES, EngineConfig, LoadReader, configured
from weft.epp.pool.exposition import Sample, SeriesReader, parse_series_spec, pieces, select
from weft.epp.pool.http_get import MAX_BODY_BYTES, GetFailed, KeepAliveGet
from weft.epp.pool.poller import (
    HttpLoadSource,
    MetricsSourceParameters,
    Poller,
    Unreadable,
    http_sources,
)
from weft.epp.pool.pool import Pool, reachable

VLLM = """\
# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting_other 99
vllm:num_requests_running{model_name="m"} 7.0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="1234",x="a}b\\"c"} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="b",waiting_lora_adapters="c"} 1.8e+09
"""


def test_vllm_load_is_read():
    """Ranks add up; of the adapter series the newest counts."""
    assert LoadReader(ENGINES["vllm"]).read(VLLM) == Load(
        num_waiting=3, num_running=7, kv_usage=0.25, block_size=16, num_blocks=1234,
        adapters=Adapters(active=frozenset("b"), waiting=frozenset("c"), max_active=4),
    )  # fmt: skip


@pytest.mark.parametrize(("name", "store"), [("m0123456789ab", "m0123456789ab"), ("x", "")])
def test_the_name_of_a_store_is_read(name: str, store: str):
    """Ids of stored objects name it. A server cannot make the picker keep another text."""
    page = VLLM + f'weft:store_info{{store="{name}"}} 1.0\n'
    load = LoadReader(ENGINES["vllm"]).read(page)
    assert load is not None
    assert load.store == store


@pytest.mark.parametrize(
    ("engine", "text", "load"),
    [
        ("vllm", "vllm:gpu_cache_usage_perc 0.5\n", Load(kv_usage=0.5)),
        ("sglang", ('sglang:num_queue_reqs 3\nsglang:num_running_reqs{a="b"} 4\n'
         'sglang:token_usage 0.5\nsglang:cache_config_info{page_size="64",num_pages="10"} 1'),
         Load(num_waiting=3, num_running=4, kv_usage=0.5, block_size=64, num_blocks=10)),
        ("sglang", ('sglang:num_queue_reqs{priority=""} 3\nsglang:num_queue_reqs{priority="1"} 3\n'
         'sglang:page_size{dp_rank="0"} 64\nsglang:page_size{dp_rank="1"} 64\n'
         'sglang:num_pages{dp_rank="0"} 10\nsglang:num_pages{dp_rank="1"} 10\n'),
         Load(num_waiting=3, block_size=64, num_blocks=20)),
        ("trtllm-serve", ("trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\n"
         "trtllm_kv_cache_utilization 0.1\ntrtllm_kv_cache_tokens_per_block 32\n"
         "trtllm_kv_cache_max_blocks 77\n"),
         Load(num_waiting=1, num_running=2, kv_usage=0.1, block_size=32, num_blocks=77)),
        ("triton-tensorrt-llm",
         ('nv_trt_llm_request_metrics{model="t",request_type="waiting",version="1"} 5\n'
         'nv_trt_llm_request_metrics{model="t",request_type="scheduled",version="1"} 6\n'
         'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.75\n'
         'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"} 64\n'
         'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"} 6239\n'),
         Load(num_waiting=5, num_running=6, kv_usage=0.75, block_size=64, num_blocks=6239)),
        ("triton", "nv_inference_pending_request_count 2\nnv_inference_exec_count 9\n",
         Load(num_waiting=2, num_running=9)),
    ],
)  # fmt: skip
def test_each_server_is_read_by_its_own_names(engine: str, text: str, load: Load):
    """The names of the model-server protocol."""
    assert LoadReader(ENGINES[engine]).read(text) == load


def test_metrics_are_where_the_engine_has_them():
    """Unless a path was configured."""
    (endpoint,) = make_pool(EndpointSpec(name="e", address="127.0.0.1", port=1))
    reader = LoadReader(ENGINES["trtllm-serve"])
    for path, asked in ((None, b"GET /prometheus/metrics "), ("/m", b"GET /m ")):
        make = http_sources(MetricsSourceParameters(path=path), lambda _: reader)
        assert make(endpoint)._get._request.startswith(asked)


@pytest.mark.parametrize(
    ("key", "metrics_address", "comes"),
    [("secret", None, True), (None, None, False), ("secret", "127.0.0.1", False)],
)
async def test_the_key_goes_to_endpoints_alone(
    key: str | None, metrics_address: str | None, comes: bool
):
    """A server with keys shows its metrics to who has one; another host is not the endpoint's, and learns no key."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer(VLLM.encode()))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        spec = EndpointSpec(
            name="e", address="127.0.0.1", port=port, metrics_address=metrics_address
        )
        (endpoint,) = make_pool(spec)
        reader = LoadReader(ENGINES["vllm"])
        source = http_sources(MetricsSourceParameters(), lambda _: reader, key)(endpoint)
        assert (await source.load()).num_running == 7
        await source.close()
    (head,) = heads
    assert (b"\r\nAuthorization: Bearer secret\r\n" in head) == comes


def test_page_without_any_expected_series_is_not_an_idle_server():
    """Nothing known is not zero."""
    assert LoadReader(ENGINES["vllm"]).read("up 1\n") is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "x"])
def test_odd_numbers_do_not_spread(value: str):
    """They count as nothing."""
    text = f"vllm:num_requests_waiting {value}\nvllm:kv_cache_usage_perc {value}\nvllm:num_requests_running 1\n"
    assert LoadReader(ENGINES["vllm"]).read(text) == Load(num_running=1)


def test_numbers_that_no_float_can_hold_together_do_not_add_up():
    """One server's report must not make the mean over the pool impossible."""
    text = "vllm:num_requests_waiting 1e308\nvllm:num_requests_running 1e308\n"
    load = LoadReader(ENGINES["vllm"]).read(text)
    assert load is not None
    assert math.isfinite(10 * load.num_waiting / 3 + load.num_running)


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_custom_metric_that_is_no_number_is_none(value: str):
    """On a scale from the lowest to the highest it would leave no candidate a score."""
    config = parameters_of(
        name="vllm", customMetrics=[{"attributeKey": "heat", "metricSpec": "gpu_heat"}]
    )
    load = LoadReader(configured(config)).read(VLLM + f"gpu_heat {value}\n")
    assert load is not None
    assert load.attributes == {}


def test_configured_engine_changes_some_names():
    """Its own series for one thing, the built-in ones for the rest; custom metrics by key."""
    config = parameters_of(
        name="vllm", queuedRequestsSpec="mine{kind=queued}", loraSpec="",
        customMetrics=[{"attributeKey": "heat", "metricSpec": "gpu_heat"}],
    )  # fmt: skip
    text = VLLM + 'mine{kind="queued"} 9\nmine{kind="other"} 1\ngpu_heat 77.5\n'
    load = LoadReader(configured(config)).read(text)
    assert (load.num_waiting, load.num_running, load.adapters) == (9, 7, Adapters())
    assert load.attributes == {"heat": 77.5}


def parameters_of(**values) -> EngineConfig:
    return msgspec.convert(values, EngineConfig)


LABELS = st.dictionaries(
    st.from_regex(r"[a-z_][a-z0-9_]{0,4}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]) | st.just("\n"), max_size=8),
    max_size=3,
)  # fmt: skip


@given(LABELS, st.floats(allow_nan=False))
def test_any_labels_come_back(labels: dict[str, str], value: float):
    """Quotes, backslashes, braces and newlines included."""
    quoted = {
        key: text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        for key, text in labels.items()
    }
    line = "a{" + ",".join(f'{key}="{text}"' for key, text in quoted.items()) + "}"
    found = SeriesReader(["a"]).read(f"# a 1\nb 2\n{line} {value} 123\naa 3\n")
    assert found == {"a": [Sample(labels, value)]}


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str):
    """A server cannot break its poll."""
    LoadReader(ENGINES["vllm"]).read("vllm:kv_cache_usage_perc" + text)


def test_spec_names_series_and_labels():
    """Quotes are optional."""
    spec = parse_series_spec('a:b{c=d, e="f"}')
    assert (spec.name, spec.labels) == ("a:b", (("c", "d"), ("e", "f")))
    assert select({"a:b": [Sample({"c": "d"}, 1), Sample({"c": "d", "e": "f"}, 2)]}, spec) == [
        Sample({"c": "d", "e": "f"}, 2)
    ]


# -- over HTTP --------------------------------------------------------------------------------


@asynccontextmanager
async def server(*answers: bytes, closes: bool = False) -> AsyncIterator[tuple[int, list[int]]]:
    """Answers the nth request with the nth answer, then the last again; counts connections."""
    connections: list[int] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(left.pop(0) if len(left) > 1 else left[0])
                await writer.drain()
                if closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], connections
    finally:
        listening.close()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    ("given_answer", "body"),
    [
        (answer(b"abc"), b"abc"),
        (CHUNKED, b"abcde"),
        (answer(gzip.compress(b"zipped", mtime=0), "Content-Encoding: gzip"), b"zipped"),
    ],
)
async def test_answers_are_read_and_the_connection_kept(given_answer: bytes, body: bytes):
    """By length, in chunks, compressed; twice over one connection."""
    async with server(given_answer) as (port, connections):
        get = KeepAliveGet("127.0.0.1", port, "/metrics")
        assert [await get.fetch(), await get.fetch()] == [body, body]
        assert len(connections) == 1
        get.close()


async def test_connection_the_server_closed_is_opened_again():
    """A kept connection may be gone; that is no failed poll."""
    async with server(answer(b"a"), closes=True) as (port, connections):
        get = KeepAliveGet("127.0.0.1", port, "/")
        assert [await get.fetch(), await get.fetch()] == [b"a", b"a"]
        assert len(connections) == 2
        get.close()


@pytest.mark.parametrize(
    "given_answer",
    [answer(b"", status="404 Not Found"), b"\0\0\0\4\1\0\0\0\0\r\n\r\n", (b"HTTP/1.1 200 OK\r\n"
     b"Content-Length: 999999999999\r\n\r\n"), b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
     answer(b"no gzip", "Content-Encoding: gzip")],
)  # fmt: skip
async def test_what_is_no_page_is_a_failed_get(given_answer: bytes):
    """One kind of error, whatever came."""
    async with server(given_answer, closes=True) as (port, _):
        get = KeepAliveGet("127.0.0.1", port, "/")
        with pytest.raises((GetFailed, EOFError)):
            await get.fetch()
        get.close()


def make_poller(pool: Pool, source: Callable, metrics: PickerMetrics) -> Poller:
    return Poller(pool, metrics, source, interval_s=0.02)


def page_source(endpoint: Endpoint) -> HttpLoadSource:
    get = KeepAliveGet(endpoint.host, endpoint.metrics_port, "/metrics")
    return HttpLoadSource(get, LoadReader(ENGINES["vllm"]))


async def test_endpoints_are_polled_while_they_are_in_the_pool():
    """At their metrics port; load arrives, and ends with the endpoint."""
    async with server(answer(VLLM.encode())) as (port, _):
        spec = EndpointSpec(name="e", address="127.0.0.1", port=1, metrics_port=port)
        pool = make_pool(spec)
        (endpoint,) = pool
        poller = make_poller(pool, page_source, PickerMetrics())
        await until(lambda: endpoint.loaded_at is not None)
        assert endpoint.load.num_waiting == 3
        pool.replace("test", [])
        assert not poller._tasks
        await poller.close()


async def test_refusing_endpoints_are_left_out_while_others_remain():
    """Refused at the serving port is gone; refused everywhere is worth a try."""
    metrics = PickerMetrics()
    pool = make_pool(
        EndpointSpec(name="a", address="127.0.0.1", port=1),
        EndpointSpec(name="b", address="127.0.0.1", port=2, metrics_port=1),
    )
    dead, unknown = pool
    poller = make_poller(pool, page_source, metrics)
    await until(lambda: dead.num_poll_failures >= 2 and unknown.num_poll_failures >= 2)
    await poller.close()
    assert list(reachable(pool.ready)) == [unknown]
    assert list(reachable([dead])) == [dead]
    assert unknown.is_stale(1e9, 3.0)
    errors = metrics.registry.get_sample_value(
        "llm_d_epp_datalayer_poll_errors_total", {"source_type": "metrics-data-source"}
    )
    assert errors >= 4


LINE = b"vllm:num_requests_waiting"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGEST = {
    "other series": answer(b"python_gc_objects_collected 1\n" * (MAX_BODY_BYTES // 30)),
    "one series": answer((LINE + b" 1\n") * (MAX_BODY_BYTES // 28)),
    "a line": answer(LINE + b"{" + b"a" * (MAX_BODY_BYTES - 100)),
    "a label": answer(LINE + b"{" + b"a" * 60_000 + b"} 1\n"),
    "labels": answer((LINE + b"{" + b'a="",' * 12_000 + b"} 1\n") * 60),
    "a number": answer(LINE + b" " + b"1" * 60_000 + b"\n"),
    "packed": answer(gzip.compress(b"\n" * MAX_BODY_BYTES), "Content-Encoding: gzip"),
    "chunks": CHUNKS + b"1\r\n\n\r\n" * 200_000 + b"0\r\n\r\n",
    "trailers": CHUNKS + b"0\r\n" + b"a: b\r\n" * 500_000,
}


@pytest.mark.parametrize("name", LARGEST)
async def test_no_page_holds_up_requests(name: str):
    """Whatever a server sends: sixteen megabytes of series took seconds, labels without a value hours."""

    async def load() -> None:
        source = HttpLoadSource(
            KeepAliveGet("127.0.0.1", port, "/metrics"), LoadReader(ENGINES["vllm"])
        )
        with suppress(Unreadable, GetFailed):
            await source.load()
        await source.close()

    async with server(LARGEST[name]) as (port, _):
        await check_pauses(load)


@given(st.lists(st.sampled_from([b"a 1\n", b"a 2\n", b"\n", b"b" * 40_000, b'a{x="y"} 3'])))
def test_a_page_says_the_same_in_pieces(parts: list[bytes]):
    """They are cut between lines; lines that are longer than a piece say nothing."""
    page = b"".join(parts)
    reader = SeriesReader(["a"])
    found: dict[str, list[Sample]] = {}
    for text in pieces(page):
        reader.read(text, found)
    short = b"".join(line for line in page.splitlines(keepends=True) if len(line) <= 64 * 2**10)
    assert found == reader.read(short.decode())
