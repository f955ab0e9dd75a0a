"""The endpoints around the APIs, over a `FakeEngine`."""

import json
import re

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.doubles.fake_engine import FakeEngine
from tests.web.http.serving import generate, make_state, post, serving
from weft import __version__
from weft.core.errors import DeadlineExceeded
from weft.core.values.controls import Drained
from weft.core.values.engine_snapshots import RequestPhase, RequestState, RequestStates
from weft.text.templates.chat import RESERVED_NAMES
from weft.web.admin.invocations import invocations_endpoint, target_of
from weft.web.http.body import decode_body
from weft.web.http.endpoint import Access, Answer, Call, Dialect
from weft.web.routes import all_endpoints

CONTROL = {"control_api_keys": ("c",), "headers": {"x-api-key": "c"}}


@pytest.fixture
async def controlled():
    """A server whose client holds a control key."""
    async with serving(**CONTROL) as site:
        yield site


async def test_models_are_listed_by_every_name(site):
    """As the official clients read them."""
    models = (await site.http.get("/v1/models")).json()
    one = await site.http.get("/v1/models/fake-model")
    assert models["object"] == "list"
    [card] = models["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("fake-model", "model", 256)
    assert one.json() == card


@pytest.mark.parametrize("name", ["other", "a/b", "a%2Fb", "..%2f..%2fetc", "x" * 5000])
async def test_an_unknown_model_is_not_found(site, name: str):
    """Row 49: 404 with the code that clients look for, and no more of the name than is needed."""
    answer = await site.http.get(f"/v1/models/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json()["error"]["param"] == "model"
    assert len(answer.text) < 400


async def test_text_becomes_tokens_and_text_again(site):
    """Special tokens apart, which the byte tokenizer has none of."""
    tokens = (
        await site.http.post("/tokenize", json={"prompt": "naïve", "return_token_strs": True})
    ).json()
    text = (await site.http.post("/detokenize", json={"tokens": tokens["tokens"]})).json()
    assert tokens["count"] == len(tokens["tokens"]) == len("naïve".encode())
    assert tokens["token_strs"] == [*"na", "Ã", "¯", *"ve"]
    assert tokens["max_model_len"] == 256
    assert text == {"prompt": "naïve"}


SAID = [{"role": "user", "content": "a"}]


async def test_what_no_context_holds_is_not_tokenised(site):
    """Nor are so many ids made into text: both would take time and memory for nothing."""
    long = await site.http.post("/tokenize", json={"prompt": "a" * 2**19})
    many = await site.http.post("/detokenize", json={"tokens": [65] * 257})
    most = await site.http.post("/detokenize", json={"tokens": [65] * 256})
    assert (long.status_code, many.status_code, most.status_code) == (400, 400, 200)
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert many.json()["error"]["code"] == "context_length_exceeded"


async def test_a_conversation_becomes_tokens(site):
    """Through the chat template, as a request would."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    answer = await site.http.post("/tokenize", json={"messages": messages})
    text = await site.http.post("/detokenize", json={"tokens": answer.json()["tokens"]})
    assert text.json() == {"prompt": "a;b;"}


@pytest.mark.parametrize(
    ("path", "body", "parameter"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages"),
        ("/tokenize", {"messages": [{"role": "oracle", "content": "a"}]}, "messages"),
        ("/tokenize", {"messages": SAID, "chat_template": "x"}, "chat_template"),
        (
            "/tokenize",
            {"messages": SAID, "chat_template_kwargs": {"tokenize": True}},
            "chat_template_kwargs",
        ),
        *(
            (
                "/tokenize",
                {"messages": SAID, "chat_template_kwargs": {name: None}},
                "chat_template_kwargs",
            )
            for name in sorted(RESERVED_NAMES)
        ),
        ("/tokenize", {"prompt": "a", "mm_processor_kwargs": {}}, "mm_processor_kwargs"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, 512]}, "tokens[1]"),
        ("/detokenize", {"tokens": [2**70]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_what_cannot_be_tokens_is_refused(site, path: str, body: dict, parameter: str):
    """Rows 24, 39 and 47: by name."""
    answer = await site.http.post(path, json=body)
    await site.check_canary()
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == parameter


async def test_another_models_tokens_are_not_counted(site):
    """The count would be wrong."""
    answer = await site.http.post("/tokenize", json={"model": "other", "prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_what_is_under_way_is_listed_and_what_lists_nothing_says_so():
    """Of every engine; unsupported by one that is elsewhere."""
    state = RequestState(number=7, phase=RequestPhase.PREFILL, queue_s=0.5)

    class Listing(FakeEngine):
        async def get_request_states(self) -> list[RequestStates]:
            return [RequestStates(requests=[state], num_blocks=64)]

    async with serving(engine=Listing()) as site:
        answer = await site.http.get("/requests")
    async with serving() as site:
        refused = await site.http.get("/requests")
    [states] = answer.json()["engines"]
    assert (states["num_blocks"], states["requests"][0]["phase"]) == (64, "prefill")
    assert (states["requests"][0]["queue_s"], states["requests"][0]["prefill_s"]) == (0.5, None)
    assert refused.status_code == 400
    assert "get_request_states" in refused.json()["error"]["message"]


async def test_facts_are_told(site):
    """Version, load, configuration and tokenizer."""
    version = (await site.http.get("/version")).json()
    load = (await site.http.get("/load")).json()
    info = (await site.http.get("/server_info")).json()
    tokenizer = (await site.http.get("/tokenizer_info")).json()
    assert version == {"version": __version__}
    assert load["server_load"] == 0
    assert load["loads"][0]["max_total_tokens"] == 1024
    assert info["config"]["cache_config"]["block_size"] == 16
    assert tokenizer["chat_template"].startswith("{% for m")


async def test_metrics_count_requests_by_endpoint(site):
    """Paths that do not exist share one label: nobody can make a thousand series."""
    for path in ("/v1/models", "/v1/models/a", "/x", "/y", "/health"):
        await site.http.get(path)
    text = (await site.http.get("/metrics")).text
    samples = {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "http_requests_total"
    }
    assert samples == {
        ("/v1/models", "GET", "2xx"): 1,
        ("/v1/models/{model:path}", "GET", "4xx"): 1,
        ("none", "GET", "4xx"): 2,
        ("/health", "GET", "2xx"): 1,
    }
    assert 'http_request_duration_seconds_count{handler="/health",method="GET"} 1.0' in text
    assert "http_request_duration_highr_seconds_count 5.0" in text
    assert 'http_response_size_bytes_count{handler="none"} 2.0' in text


# -- control --------------------------------------------------------------------------------------


async def test_the_engine_is_paused_and_goes_on(controlled):
    """And says which."""
    assert (await controlled.http.post("/pause?mode=keep&clear_cache=false")).status_code == 200
    assert (await controlled.http.get("/is_paused")).json() == {"is_paused": True}
    assert (await controlled.http.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert (await controlled.http.post("/resume")).status_code == 200
    assert (await controlled.http.get("/is_paused")).json() == {"is_paused": False}


async def test_the_engine_sleeps_and_wakes(controlled):
    """As a whole, and by tags as vLLM's clients repeat them."""
    assert (await controlled.http.post("/sleep?level=2&mode=keep")).json() == {"status": "sleeping"}
    assert (await controlled.http.get("/is_sleeping")).json() == {"is_sleeping": True}
    partly = await controlled.http.post("/wake_up?tags=weights")
    refused = await controlled.http.post("/resume")
    wholly = await controlled.http.post("/wake_up?tags=weights&tags=kv_cache")
    assert (partly.json(), refused.status_code) == ({"status": "sleeping"}, 409)
    assert wholly.json() == {"status": "awake"}
    assert (await controlled.http.post("/sleep")).status_code == 200
    assert (await controlled.http.post("/wake_up")).json() == {"status": "awake"}
    assert (await controlled.http.get("/is_sleeping")).json() == {"is_sleeping": False}


@pytest.mark.parametrize(
    ("url", "parameter"),
    [
        ("/sleep?level=3", "level"),
        ("/wake_up?tags=dreams", "tags"),
        ("/pause?clear_cache=maybe", "clear_cache"),
        ("/reset_prefix_cache?reset_running_requests=", "reset_running_requests"),
        ("/start_profile?max_iterations=many", "max_iterations"),
    ],
)
async def test_control_refuses_what_it_cannot_read(controlled, url: str, parameter: str):
    """By name."""
    answer = await controlled.http.post(url)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, parameter)


async def test_control_refuses_what_it_does_not_know(controlled):
    """Row 20: a word that is misspelled must not be passed over, by any call."""
    controls = [
        endpoint
        for endpoint in all_endpoints(make_state())
        if endpoint.access is Access.CONTROL and not endpoint.is_refused
    ]
    for endpoint in controls:
        url, body = f"{endpoint.path}?deep=1", endpoint.example
        answer = await controlled.http.request(endpoint.method, url, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "deep"), url


async def test_requests_end_under_both_paths_of_vllm(controlled):
    """An RL trainer calls one, a router the other."""
    for path in ("/abort_requests", "/inference/v1/abort_requests"):
        answer = await controlled.http.post(path, json={"request_ids": ["unknown"]})
        assert answer.json() == {"status": "aborted"}


async def test_cached_blocks_are_dropped_or_held(controlled):
    """The answer says whether they were."""
    controlled.engine.num_resets_refused = 1
    assert (await controlled.http.post("/reset_prefix_cache")).json() == {"success": False}
    for cache in ("prefix", "mm", "encoder"):
        answer = await controlled.http.post(f"/reset_{cache}_cache")
        assert (answer.status_code, answer.json()) == (200, {"success": True})


async def test_profiles_start_and_stop(controlled):
    """Unsupported where the engine has no profiler; then with what the query says."""
    refused = await controlled.http.post("/start_profile")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported")
    controlled.engine.has_profiler = True
    url = "/start_profile?profile_prefix=a&delay_iterations=2&max_iterations=3"
    assert (await controlled.http.post(url)).json() == {"status": "profiling"}
    assert (await controlled.http.post("/stop_profile")).json() == {"status": "stopped"}
    assert controlled.engine.profiles == [("a", 2, 3)]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"method": "check_health"}, 200),
        ({"method": "check_health", "timeout": 5}, 200),
        ({"method": "eval", "args": ["1"]}, 400),
        ({"method": ["check_health"]}, 400),
        ({"method": "check_health", "unknown": 1}, 400),
        ({}, 400),
    ],
)
async def test_calls_of_the_worker(controlled, body: dict, status: int):
    """A method of the table answers; what is not in it is the caller's mistake."""
    answer = await controlled.http.post("/collective_rpc", json=body)
    assert answer.status_code == status
    assert status != 200 or answer.json() == {"results": [None]}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"request_ids": []}, 200),
        ({"request_ids": ["nobody"]}, 200),
        ({"request_ids": ["x"] * 10_001}, 413),
        ({"request_ids": [1]}, 400),
        ({"request_ids": [], "x": 1}, 400),
        ({}, 400),
    ],
)
async def test_aborting(controlled, body: dict, status: int):
    """Row 56: unknown ids are no error; too many, and other fields, are."""
    assert (await controlled.http.post("/abort_requests", json=body)).status_code == status


REFUSED = [endpoint for endpoint in all_endpoints(make_state()) if endpoint.is_refused]


@pytest.mark.parametrize("endpoint", REFUSED, ids=lambda endpoint: endpoint.path)
async def test_what_is_not_offered_is_refused_by_name(endpoint):
    """404, and a sentence that names it."""
    async with serving(control_api_keys=("c",)) as site:
        answer = await site.http.request(endpoint.method, endpoint.path, headers={"x-api-key": "c"})
    assert answer.status_code == 404
    if endpoint.dialect is Dialect.OLLAMA:
        assert "not supported" in answer.json()["error"]
        return
    assert answer.json()["error"]["code"] == "unsupported"
    assert "not supported" in answer.json()["error"]["message"]


# -- description ----------------------------------------------------------------------------------


async def test_every_operation_has_a_name_of_its_own(site):
    """Programs that are generated from the description have functions of these names."""
    paths = (await site.http.get("/openapi.json")).json()["paths"]
    names = [one["operationId"] for operations in paths.values() for one in operations.values()]
    assert all(name.isidentifier() for name in names)
    assert len(set(names)) == len(names)
    assert paths["/v1/chat/completions"]["post"]["operationId"] == "post_v1_chat_completions"


async def test_the_description_names_every_endpoint(site):
    """Made from the same table; every reference in it leads somewhere."""
    description = (await site.http.get("/openapi.json")).json()
    described = {
        (method.upper(), path)
        for path, operations in description["paths"].items()
        for method in operations
    }
    endpoints = all_endpoints(make_state())
    assert described == {(e.method, e.path.replace(":path", "")) for e in endpoints}
    schemas = description["components"]["schemas"]
    references = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description))
    assert set(references) <= set(schemas)
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_every_endpoint_stands_under_an_api_with_an_example_that_is_a_body(site):
    """What /docs shows, and what its curl lines send; the model's name is the one that is served."""
    description = (await site.http.get("/openapi.json")).json()
    model = site.engine.model_config.served_model_name
    groups = [tag["name"] for tag in description["tags"]]
    assert len(set(groups)) == len(groups)
    for endpoint in all_endpoints(make_state()):
        path = endpoint.path.replace(":path", "")
        operation = description["paths"][path][endpoint.method.lower()]
        assert operation["tags"][0] in groups
        if endpoint.is_form:  # whose file no example has
            assert list(operation["requestBody"]["content"]) == ["multipart/form-data"]
        elif endpoint.body is not None:
            example = operation["requestBody"]["content"]["application/json"]["example"]
            body = decode_body(json.dumps(example).encode(), endpoint.body)
            assert getattr(body, "model", model) == model
            assert endpoint.example


# -- invocations ----------------------------------------------------------------------------------


async def echo(call: Call) -> Answer:
    """What it was given."""
    return call.body


async def test_invocations_lead_where_the_body_belongs():
    """SageMaker has one path for all of it."""

    endpoints = (post("/v1/chat/completions", generate), post("/v1/completions", echo))
    handler = invocations_endpoint(endpoints).handler
    async with serving(post("/sage", handler, body=invocations_endpoint(()).body)) as site:
        chat = await site.http.post("/sage", json={"messages": [], "max_tokens": 2})
        text = await site.http.post("/sage", json={"prompt": "a", "max_tokens": 7})
        wrong = await site.http.post("/sage", json={"prompt": "a", "max_tokens": "x"})
        other = await site.http.post("/sage", json={"query": "a", "documents": []})
        none = await site.http.post("/sage", json={"x": 1})
        real = await site.http.post("/invocations", json={"x": 1})
    assert len(chat.json()["token_ids"]) == 2
    assert text.json()["max_tokens"] == 7
    assert wrong.json()["error"]["param"] == "max_tokens"
    assert other.status_code == 400
    assert (none.status_code, real.status_code) == (400, 400)


@pytest.mark.parametrize(
    ("tasks", "path"),
    [
        ((), "/v1/responses"),
        (("embed", "token_embed"), "/v1/embeddings"),
        (("classify", "score"), "/classify"),
        (("token_classify",), "/pooling"),
    ],
)
def test_an_input_goes_where_the_model_takes_it(tasks: tuple[str, ...], path: str):
    """To answer it, to embed it, to classify it: the same field in four APIs."""
    assert target_of({"input"}, tasks) == path
    assert target_of({"input", "task"}, tasks) == "/pooling"
    assert target_of({"messages"}, tasks) == ("/v1/chat/completions" if not tasks else path)
    assert target_of({"prompt", "input"}, tasks) == "/v1/completions"
    assert target_of({"query"}, tasks) is None


class Scalable(FakeEngine):
    """Has as many engines as one says, unless there are nine: then one has requests that do not end."""

    async def scale_elastic_ep(self, new_data_parallel_size, drain_timeout=300.0):
        if new_data_parallel_size == 9:
            raise DeadlineExceeded(f"after {drain_timeout:g} s")
        self.size = new_data_parallel_size

    async def drain(self, data_parallel_ranks, timeout=300.0):
        self.drained = data_parallel_ranks, timeout
        return [Drained(data_parallel_rank=1, moved={0: 2, 2: 1}, recomputed=3)]

    async def undrain(self, data_parallel_ranks):
        self.drained = None


async def test_a_drain_says_where_requests_went():
    """The counts of each engine; and it ends when an operator says so."""
    engine = Scalable()
    async with serving(engine=engine, **CONTROL) as site:
        body = {"data_parallel_ranks": [1], "timeout": 5}
        answer = await site.http.post("/drain", json=body)
        assert engine.drained == ([1], 5)
        again = await site.http.post("/undrain", json={"data_parallel_ranks": [1]})
    counts = {"transferred": 0, "recomputed": 3, "waited": 0, "running": 0, "left": 0}
    moved = {"data_parallel_rank": 1, "moved": {"0": 2, "2": 1}, **counts}
    assert answer.json() == {"drained": [moved]}
    assert again.json() == {"status": "undrained"}
    assert engine.drained is None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"new_data_parallel_size": 2}, 200),
        ({"new_data_parallel_size": 9, "drain_timeout": 5}, 408),
        ({"new_data_parallel_size": "2"}, 400),
        ({"new_data_parallel_size": 2, "x": 1}, 400),
        ({}, 400),
    ],
)
async def test_the_number_of_engines_is_changed(body: dict, status: int):
    """As programs written for vLLM do it; where engines that are to leave do not finish in time it is 408."""
    engine = Scalable()
    async with serving(engine=engine, **CONTROL) as site:
        answer = await site.http.post("/scale_elastic_ep", json=body)
        under_way = await site.http.post("/is_scaling_elastic_ep")
    assert answer.status_code == status
    assert under_way.json() == {"is_scaling_elastic_ep": False}
    assert status != 200 or engine.size == 2


async def test_a_server_whose_number_of_engines_is_fixed_refuses_by_name(controlled):
    """And is no engine that has a flag for it."""
    answer = await controlled.http.post("/scale_elastic_ep", json={"new_data_parallel_size": 2})
    assert answer.status_code == 400
    assert "scale_elastic_ep is not supported by this engine" in answer.text
