"""A load on a server whose timing is known: weft.bench.serving, drive, http_target, result and page."""

import json
import signal
from html.parser import HTMLParser

import pytest

from tests.bench.scripted_server import scripted
from tests.busy import PATIENCE_S, is_within
from weft.bench.options import Load, ReportOptions, TargetOptions, TrafficOptions
from weft.bench.prompt_options import PromptOptions
from weft.bench.serving import serve
from weft.core.errors import ConfigError

# What `vllm bench serve` writes for text, without what is of audio or speculation.
ALWAYS = set(
    "date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency "
    "duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput "
    "output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests".split()
)
SPREADS = {
    f"{kind}_{metric}_ms"
    for kind in ("mean", "median", "std", "p99")
    for metric in ("ttft", "tpot", "itl", "e2el")
}
DETAILS = set(
    "input_lens output_lens ttfts itls latencies start_times queue_times generated_texts errors".split()
)


async def measured(
    server, tmp_path, *, num_prompts=6, target=(), prompts=(), traffic=(), report=()
):
    """The exit status, and the document that was written."""
    load = Load(
        TargetOptions(**{"base_url": server.base_url, **dict(target)}),
        PromptOptions(
            **{"num_prompts": num_prompts, "input_len": 20, "output_len": 10, **dict(prompts)}
        ),
        TrafficOptions(**dict(traffic)),
        ReportOptions(
            **{
                "save_result": True,
                "result_dir": tmp_path,
                "result_filename": "r.json",
                **dict(report),
            }
        ),
    )
    status = await serve(load)
    return status, json.loads((tmp_path / "r.json").read_text().splitlines()[-1])


# What the machine adds to a figure it does not add each time; what we add, we do.
_TRIES = 5


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
async def test_figures_are_those_of_the_server(tmp_path, backend):
    """0.1 s and four gaps of 0.05 s, two tokens a message: never less, and what is more the machine's strain."""
    async with scripted() as server:
        for _ in range(_TRIES):
            status, found = await measured(server, tmp_path, target={"backend": backend})
            ttft_s, itl_s = found["median_ttft_ms"] / 1000, found["median_itl_ms"] / 1000
            assert ttft_s >= 0.1
            assert itl_s >= 0.049
            if ttft_s < 0.2 and itl_s < 0.075:
                break
    assert is_within(ttft_s, 0.2)
    assert is_within(itl_s, 0.075)
    assert status == 0
    assert (found["completed"], found["failed"]) == (6, 0)
    assert found["total_output_tokens"] == 6 * 10
    assert found["mean_e2el_ms"] == pytest.approx(
        found["mean_ttft_ms"] + 4 * found["mean_itl_ms"], rel=0.001
    )
    assert found["mean_tpot_ms"] == pytest.approx(4 * found["mean_itl_ms"] / 9, rel=0.001)
    assert found["output_throughput"] == pytest.approx(60 / found["duration"])


async def test_a_message_that_only_begins_or_ends_an_answer_is_no_token(tmp_path):
    """A role at once is not a first token, and a reason for the end no gap of nothing."""
    async with scripted() as server:
        _, found = await measured(
            server, tmp_path, target={"backend": "openai-chat"}, report={"save_detailed": True}
        )
    assert [len(gaps) for gaps in found["itls"]] == [4] * 6
    assert min(found["ttfts"]) >= 0.1
    assert found["generated_texts"] == ["x " * 5] * 6


async def test_the_document_has_vllms_keys(tmp_path):
    """So that what reads vLLM's results reads these; details only if they are asked for."""
    async with scripted(gap_s=0.001) as server:
        report = {"goodput": ("ttft:500",), "metadata": ("version=1",)}
        _, plain = await measured(server, tmp_path, report=report)
        _, full = await measured(server, tmp_path, report={"save_detailed": True})
    assert set(plain) == ALWAYS | SPREADS | {"version"}
    assert set(full) == ALWAYS | SPREADS | DETAILS
    assert plain["request_rate"] == "inf"
    assert plain["request_goodput"] == plain["request_throughput"]
    assert full["request_goodput"] is None


async def test_results_may_be_appended(tmp_path):
    """One line a run."""
    async with scripted(gap_s=0.001) as server:
        for _ in range(2):
            await measured(server, tmp_path, report={"append_result": True})
    assert len((tmp_path / "r.json").read_text().splitlines()) == 2


async def test_tokens_are_the_servers_count_and_lengths_are_learnt_from_it(tmp_path):
    """This one counts two tokens a word and three around them: 20 tokens are 10 words."""
    async with scripted(gap_s=0.001) as server:
        _, found = await measured(server, tmp_path, report={"save_detailed": True})
    assert found["input_lens"] == [2 * 10 + 3] * 6
    assert {len(body["prompt"].split()) for body in server.bodies[-6:]} == {10}


async def test_without_usage_a_tokenizer_counts_and_nothing_is_guessed(tmp_path, capsys):
    """An answer that nobody can count has failed."""
    async with scripted(gap_s=0.001, has_usage=False) as server:
        target = {"tokenizer": "embedded:tiny"}
        status, found = await measured(server, tmp_path, target=target)
        assert status == 0
        assert found["total_output_tokens"] > 0
        with pytest.raises(Exception, match="--tokenizer"):
            await measured(server, tmp_path)


async def test_no_more_are_open_than_may_be(tmp_path):
    """The others wait here, which is a time of its own."""
    async with scripted(gap_s=0.01) as server:
        report = {"percentile_metrics": "ttft,client_queue_time,e2el_including_client_queue,e2el"}
        _, found = await measured(server, tmp_path, traffic={"max_concurrency": 2}, report=report)
    assert server.most_open == found["max_concurrent_requests"] == 2
    assert found["median_client_queue_time_ms"] > 100
    assert found["mean_e2el_including_client_queue_ms"] == pytest.approx(
        found["mean_e2el_ms"] + found["mean_client_queue_time_ms"]
    )


async def test_requests_leave_at_their_rate(tmp_path):
    """The last of 6 at 20 a second after 0.3 s, though answers take a thirtieth of that; never sooner."""
    async with scripted(ttft_s=0.01, gap_s=0.0) as server:
        traffic = {"request_rate": 20.0, "burstiness": float("inf")}
        _, found = await measured(server, tmp_path, traffic=traffic, report={"save_detailed": True})
    assert found["start_times"] == sorted(found["start_times"])
    assert found["duration"] >= 0.3


async def test_warm_ups_are_sent_and_not_counted(tmp_path):
    """Two to learn how long words are, three to warm up, six to measure."""
    async with scripted(gap_s=0.001) as server:
        _, found = await measured(server, tmp_path, traffic={"num_warmups": 3})
    assert len(server.bodies) == 2 + 3 + 6
    assert found["completed"] == 6


@pytest.mark.parametrize(("breaks", "said"), [(False, "HTTP 503: no room"), (True, "it broke")])
async def test_a_request_that_fails_is_counted_and_the_first_is_shown(
    tmp_path, capsys, breaks, said
):
    """Before its answer or within it; the figures are of the others."""
    async with scripted(fails_each=4, breaks=breaks, gap_s=0.001) as server:
        status, found = await measured(server, tmp_path, report={"save_detailed": True})
    assert status == 0
    assert (found["completed"], found["failed"]) == (4, 2)
    assert sum(bool(error) for error in found["errors"]) == 2
    assert f"2 requests failed; the first: {said}" in capsys.readouterr().err


async def test_when_all_fail_so_does_the_command(tmp_path, capsys):
    """Scripts must notice."""
    async with scripted(fails_each=1) as server:
        target = {"tokenizer": "embedded:tiny"}  # so that nothing is learnt from answers before
        status, found = await measured(server, tmp_path, target=target)
    assert status == 1
    assert (found["completed"], found["failed"]) == (0, 6)
    assert "Time to first token" not in capsys.readouterr().out


async def test_the_limit_of_time_ends_a_run(tmp_path, capsys):
    """What is open by then is given up: neither completed nor failed."""
    async with scripted(ttft_s=PATIENCE_S) as server:
        target = {"tokenizer": "embedded:tiny"}
        status, found = await measured(
            server, tmp_path, target=target, traffic={"time_limit": 0.3, "max_concurrency": 2}
        )
    assert status == 1
    assert (found["completed"], found["failed"], found["cut_short"]) == (0, 0, True)
    assert found["duration"] >= 0.3
    assert "6 unfinished requests do not count" in capsys.readouterr().err


async def test_ctrl_c_ends_with_what_was_measured(tmp_path):
    """The status is that of an interrupted program, and the result is written."""
    async with scripted(gap_s=0.001) as server:
        server.on_request = {6: lambda: signal.raise_signal(signal.SIGINT)}
        status, found = await measured(
            server, tmp_path, num_prompts=2000, traffic={"max_concurrency": 1}
        )
    assert status == 130
    assert found["cut_short"]
    assert found["completed"] == 3  # two were sent to learn the lengths of words


async def test_what_is_sent_is_what_the_flags_say(tmp_path):
    """Headers, sampling, and fields that only this server knows."""
    async with scripted(gap_s=0.001) as server:
        target = {
            "header": ("x-team=blue",),
            "api_key": "secret",
            "temperature": 0.5,
            "extra_body": '{"mood": "good"}',
            "model": "other",
        }
        await measured(server, tmp_path, target=target)
    body, head = server.bodies[-1], server.heads[-1].lower()
    assert (body["temperature"], body["mood"], body["model"]) == (0.5, "good", "other")
    assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (10, True, True)
    assert "x-team: blue" in head
    assert "authorization: bearer secret" in head


async def test_conversations_are_sent_to_chats_only(tmp_path):
    """A text completion has no turns; no request of the file could be answered."""
    path = tmp_path / "c.jsonl"
    path.write_text('{"prompt": [{"role": "user", "content": "a b"}]}')
    prompts = {"dataset_name": "custom", "dataset_path": path, "input_len": None}
    async with scripted(gap_s=0.001) as server:
        target = {"backend": "openai-chat"}
        _, found = await measured(server, tmp_path, target=target, prompts=prompts)
        assert found["completed"] == 6
        assert server.bodies[-1]["messages"] == [{"role": "user", "content": "a b"}]
        with pytest.raises(ConfigError, match="openai-chat"):
            await measured(server, tmp_path, prompts=prompts)


class _Page(HTMLParser):
    """Collects what a browser would fetch, and whether every element is closed."""

    VOID = {"meta", "link", "br"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.fetched += [v for k, v in attrs if k in ("src", "href", "data", "action", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


async def test_the_page_stands_by_itself(tmp_path):
    """One file that is well formed, with plots, no script, and no address of anything outside."""
    async with scripted(gap_s=0.001) as server:
        path = tmp_path / "run.html"
        await measured(server, tmp_path, report={"html": path, "label": "<b>"})
    text = path.read_text()
    page = _Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.fetched == []
    assert page.seen.count("svg") == 7
    assert "script" not in page.seen
    assert "://" not in text
    assert "url(" not in text
    assert "&lt;b&gt;" in text


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"target": {"endpoint": "/v1/embeddings"}}, "--endpoint"),
        ({"target": {"header": ("x",)}}, "--header"),
        ({"target": {"extra_body": "[]"}}, "--extra-body"),
        ({"target": {"grpc_tls_ca": "x"}}, "--grpc-tls-ca"),
        ({"target": {"backend": "grpc", "header": ("a=b",)}}, "--header"),
        ({"report": {"save_result": False, "save_detailed": True}}, "--save-result"),
        ({"report": {"metadata": ("x",)}}, "--metadata"),
        ({"report": {"goodput": ("x",)}}, "--goodput"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_flag(tmp_path, parts, said):
    """In a line that says what is allowed."""
    async with scripted() as server:
        with pytest.raises(ConfigError, match=said):
            await measured(server, tmp_path, **parts)
