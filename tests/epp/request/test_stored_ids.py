"""Ids of stored objects in paths and bodies, by which the picker finds their server."""

import json

import pytest

from tests.epp.server.messages import Stream, request_body, request_headers
from weft.core.checks.object_ids import new_id, new_store_name
from weft.epp.request.apart import Result
from weft.epp.request.parsers.parser import Call
from weft.epp.request.parsers.table import DEFAULT_PARSERS, ParserTable
from weft.epp.request.values import InferenceRequest, Refused

# Not random: they are parts of the names of tests.
STORE, RANDOM = "m0123456789ab", "0" * 32
RESPONSE, CONVERSATION = f"resp_{STORE}{RANDOM}", f"conv_{STORE}{RANDOM}"
FILE, ITEM = f"file-{STORE}{RANDOM}", f"msg_{STORE}{RANDOM}"
PARSERS = ParserTable(DEFAULT_PARSERS)


def parse(path: str, body: object) -> InferenceRequest:
    """The request of a JSON body."""
    call = Call(
        path=path, headers={}, request_id="r", is_grpc=False, body=json.dumps(body).encode()
    )
    parser = PARSERS.find(path)
    assert parser is not None
    return parser.parse(call)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "x", "previous_response_id": RESPONSE}),
        ("/v1/responses", {"input": "x", "conversation": CONVERSATION}),
        ("/v1/responses", {"input": "x", "conversation": {"id": CONVERSATION}}),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": ITEM}]}),
        (
            "/v1/responses",
            {"input": [{"type": "mcp_approval_response", "approval_request_id": ITEM}]},
        ),
        ("/v1/responses/compact", {"previous_response_id": RESPONSE}),
        ("/v1/responses/compact", {"input": "x", "previous_response_id": RESPONSE}),
        ("/v1/responses/input_tokens", {"previous_response_id": RESPONSE}),
        ("/v1/batches", {"input_file_id": FILE}),
    ],
)
def test_a_body_names_the_store_of_its_objects(path: str, body: dict):
    """Each member that refers to an object; also through the process that reads large bodies."""
    request = parse(path, {"model": "m", **body})
    assert request.store == STORE
    call = Call(path=path, headers={}, request_id="r", is_grpc=False)
    assert Result(store=request.store).to_request(call, "openai-parser").store == STORE


@pytest.mark.parametrize(
    "body",
    [
        {"input": "x"},
        {"input": "x", "previous_response_id": "resp_" + "0" * 32, "conversation": None},
        {"input": [{"role": "user", "id": ITEM, "content": f"item_reference {RESPONSE}"}]},
        {"input": "x", "metadata": {"about": RESPONSE}},
    ],
)
def test_a_body_that_refers_to_nothing_names_no_store(body: dict):
    """Ids of other servers, whole items with ids, and mere texts."""
    assert parse("/v1/responses", {"model": "m", **body}).store == ""


def test_objects_of_two_servers_are_refused():
    """No server could find both."""
    other = new_id("resp", new_store_name(is_durable=False))
    body = {"model": "m", "input": "x", "previous_response_id": other, "conversation": CONVERSATION}
    with pytest.raises(Refused, match="objects of several servers") as caught:
        parse("/v1/responses", body)
    assert caught.value.status == 400


@pytest.mark.parametrize("body", [{}, {"input_file_id": 5}, [], {"input_file_id": "x" * 10_000}])
def test_a_batch_that_cannot_be_read_is_left_to_the_server(body: object):
    """Any server refuses it."""
    request = parse("/v1/batches", body)
    assert (request.is_schedulable, request.store) == (False, "")


@pytest.mark.parametrize(
    ("method", "path", "is_empty"),
    [
        ("GET", f"/v1/responses/{RESPONSE}?stream=true", True),
        ("DELETE", f"/v1/conversations/{CONVERSATION}/items/msg_1", True),
        ("GET", f"/v1/batches?limit=2&after=batch_{STORE}{RANDOM}", True),
        ("POST", f"/v1/messages/batches/msgbatch_{STORE}{RANDOM}/cancel", True),
        ("POST", f"/v1/responses/{RESPONSE}/cancel", False),
        ("POST", f"/v1/conversations/{CONVERSATION}", False),
        ("POST", "/v1/batches", False),
    ],
)
async def test_the_director_learns_the_store_of_every_path(method: str, path: str, is_empty: bool):
    """With a body or without, and whether or not the body is read."""
    stream = Stream()
    await stream.send(request_headers(path, method=method, end=is_empty))
    if not is_empty:
        await stream.send(request_body(json.dumps({"input_file_id": FILE}).encode()))
    stores = [*stream.director.stores, *(request.store for request in stream.director.requests)]
    assert stores == [STORE]
