"""What schemathesis makes of `/openapi.json`: requests good and bad, and no answer that it does not describe."""

from collections import Counter
from typing import Any

import jsonschema
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.busy import PATIENCE_S
from tests.cli.running import running, with_every_call
from weft.web.admin.openapi import describe
from weft.web.http.state import ServerState
from weft.web.routes import all_endpoints

NUM_EXAMPLES = 12
API_KEY, CONTROL_KEY = "for-the-api", "for-control"
CHECKS = (status_code_conformance, content_type_conformance, response_schema_conformance)

pytestmark = pytest.mark.slow


def _document() -> dict[str, Any]:
    """What a server would answer: it is made from the same table."""
    endpoints = all_endpoints(ServerState(CollectorRegistry()))
    document: dict[str, Any] = describe(endpoints, "m")
    return document


def _examples(is_embedding: bool) -> dict[str, Any]:
    """Bodies that are answered, by path. What is made up goes on top, a few fields at a time: of bodies made up
    as a whole hardly one asks for something possible.
    """
    return {
        path: body["content"]["application/json"]["example"]
        for path, methods in DOCUMENT["paths"].items()
        if (body := methods.get("post", {}).get("requestBody"))
        and _embeds(path, methods["post"]) is is_embedding
        and "multipart/form-data" not in body["content"]  # which the models here refuse unread
        and not path.endswith(("_lora_adapter", "/classify"))  # which the models here have none of
        # The example names weights or a file that nobody sent, or the instruction is longer than the context here.
        and path not in ("/update_weights", "/v1/batches", "/v1/responses/compact")
        and "{" not in path  # the path names an object that nobody stored
    }


def _embeds(path: str, operation: dict[str, Any]) -> bool:
    return operation["tags"] == ["Embeddings and scores"] or path.startswith("/api/embed")


DOCUMENT = _document()
ASKING, EMBEDDING = _examples(is_embedding=False), _examples(is_embedding=True)
# Only what takes something can be asked wrongly.
OPERATIONS = [
    (method.upper(), path, mode)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if mode is GenerationMode.POSITIVE or {"requestBody", "parameters"} & operation.keys()
]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Those of a server that generates, and of one that embeds; their contexts are short."""
    keys = ("--api-key", API_KEY, "--control-api-key", CONTROL_KEY)
    every_call = with_every_call(tmp_path_factory.mktemp("served"))
    argv = (*every_call, "--served-model-name", "m", "--max-model-len", "128", "--no-grpc", *keys)
    load_all_checks()
    with running(*argv) as generating, running(*argv, "--runner", "pooling") as embedding:
        yield generating.http, embedding.http


@pytest.fixture(scope="module")
def schema():
    """The document, as schemathesis reads it."""
    return schemathesis.openapi.from_dict(DOCUMENT)


def _has_example(method: str, path: str) -> bool:
    """True for calls with a body that is answered; a WebSocket may be at the same path."""
    return method == "POST" and path in ASKING | EMBEDDING


def _strategy(schema: Any, method: str, path: str, mode: GenerationMode) -> Any:
    """Cases for one operation."""
    operation = schema[path][method]
    made = operation.as_strategy(generation_mode=mode)
    if not _has_example(method, path) or mode is GenerationMode.NEGATIVE:
        return made
    return st.builds(_asking, made, st.randoms(use_true_random=False))


def _asking(case: Any, dice: Any) -> Any:
    """A case for a body that is answered but for what was made up of it."""
    names = sorted(case.body) if isinstance(case.body, dict) else []
    chosen = dice.sample(names, min(len(names), dice.randrange(3)))
    case.body = (ASKING | EMBEDDING)[case.path] | {name: case.body[name] for name in chosen}
    if "text/event-stream" in _described(case)["200"].get("content", {}) and dice.random() < 0.3:
        case.body["stream"] = True
    return case


def _described(case: Any) -> dict[str, Any]:
    """The answers that the description has for a request."""
    answers: dict[str, Any] = DOCUMENT["paths"][case.path][case.method.lower()]["responses"]
    return answers


def _check(case: Any, response: Any) -> None:
    """An answer is one of those described, and no failure of the server."""
    case.validate_response(response, checks=[not_a_server_error, *CHECKS])
    if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        _check_events(case, response.text)


def _check_events(case: Any, text: str) -> None:
    """Every event's data is what the description says, or an error; nothing follows an error."""
    described = _described(case)
    event = described["200"]["content"]["text/event-stream"]["schema"]
    wanted = event["properties"]["data"]["anyOf"][1]["contentSchema"]
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    data = [msgspec.json.decode(line) for line in events if line != "[DONE]"]
    for value in data:
        jsonschema.validate(value, wanted | {"components": DOCUMENT["components"]})
    assert not any("error" in value for value in data[:-1])
    assert not ("error" in data[-1] and "[DONE]" in events)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_no_answer_is_outside_the_description(
    schema, addresses, method: str, path: str, mode: GenerationMode
):
    """With a key for it, with one for something else, and without any: described, and no failure."""
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        _strategy(schema, method, path, mode),
        st.sampled_from([API_KEY, CONTROL_KEY, API_KEY, CONTROL_KEY, None]),
    )
    def send(case: Any, key: str | None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        response = case.call(
            base_url=addresses[path in EMBEDDING], headers=headers, timeout=PATIENCE_S
        )
        statuses[response.status_code] += 1
        _check(case, response)

    send()
    assert statuses
    if mode is GenerationMode.POSITIVE and _has_example(method, path):
        assert statuses[200], statuses
