"""Tools of MCP servers, called from here: a server of the `mcp` package, and a model that says what a template says."""

import asyncio
import dataclasses
import time
from contextlib import asynccontextmanager, suppress

import openai
import pytest

from tests.busy import PATIENCE_S, is_within
from tests.web.mcp.tool_server import ANSWER, NAME, tool_serving
from tests.web.responses.serving_responses import Handlers
from tests.web.serving import ECHO, QWEN, http_serving, serving
from weft.core.errors import BadRequest, Overloaded
from weft.web.http.problem import HttpError
from weft.web.mcp.servers import ToolServers, read_servers
from weft.web.mcp.sessions import Sessions
from weft.web.mcp.values import ToolLimits
from weft.web.options import ApiOptions

pytestmark = pytest.mark.slow  # the mcp package takes seconds to import

# Behind a tool's result the model says that, before it what the input says.
LOOP = (
    "{% set last = messages[-1] %}"
    "{% if last.role == 'tool' %}It says: {{ last.content }}"
    "{% else %}{{ last.content }}{% endif %}"
)
ALWAYS = "{{ messages[0]['content'] }}"


def call(name="get_weather", arguments='{"city": "Oslo"}'):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def station(**fields):
    return {"type": "mcp", "server_label": "station", "require_approval": "never", **fields}


@pytest.fixture(scope="module")
def tools():
    with tool_serving() as (address, calls):
        yield address, calls


@asynccontextmanager
async def handlers(flag, template=LOOP, hosts=None, **limits):
    options = ApiOptions(tool_server=flag, allowed_tool_hosts=hosts)
    servers = ToolServers(read_servers(options), ToolLimits(**limits))
    async with serving(ECHO, options=QWEN, template=template, max_model_len=4096) as served:
        yield Handlers(dataclasses.replace(served, tool_servers=servers))
    servers.close()


def outputs(response):
    return [item["type"] for item in response["output"]]


async def test_a_call_is_made_and_the_model_goes_on_with_what_it_came_to(tools):
    """List, call, message; the next response knows all of it, and lists nothing again."""
    address, calls = tools
    calls.clear()
    async with handlers(f"station={address}") as to:
        made = await to.create(input=call(), tools=[station(allowed_tools=["get_weather"])])
        assert outputs(made) == ["mcp_list_tools", "mcp_call", "message"]
        listed, called, message = made["output"]
        assert [tool["name"] for tool in listed["tools"]] == ["get_weather"]
        assert listed["tools"][0]["annotations"] == {"readOnlyHint": True}
        expected = {
            "server_label": "station", "name": "get_weather", "arguments": '{"city": "Oslo"}',
            "output": ANSWER, "error": None, "status": "completed", "approval_request_id": None,
        }  # fmt: skip
        assert {key: called[key] for key in expected} == expected
        assert message["content"][0]["text"] == f"It says: {ANSWER}"
        assert made["status"] == "completed"
        assert calls == ["Oslo"]
        assert made["tools"][0]["server_label"] == "station"
        again = await to.create(input="thanks", previous_response_id=made["id"], tools=[station()])
        assert outputs(again) == ["message"]
        items = await to.create(input=[*made["output"], {"role": "user", "content": "hm"}])
        assert outputs(items) == ["message"]


async def test_the_usage_is_that_of_all_turns(tools):
    """Each turn reads its prompt and writes its tokens."""
    async with handlers(f"station={tools[0]}") as to:
        made = await to.create(input=call(), tools=[station()])
        first = await to.create(input=call())
        usage = made["usage"]
        assert usage["input_tokens"] > first["usage"]["input_tokens"]
        assert usage["output_tokens"] > first["usage"]["output_tokens"]


async def test_the_events_are_those_of_openais_client(tools):
    """Its own classes take them, in its order; the accumulated response is the one in one piece."""
    async with (
        handlers(f"station={tools[0]}") as to,
        http_serving(to.served) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        asked = {"model": (await client.models.list()).data[0].id, "input": call()}
        stream = await client.responses.create(stream=True, tools=[station()], **asked)
        events = [event async for event in stream]
        async with client.responses.stream(tools=[station()], **asked) as accumulated:
            async for _ in accumulated:
                pass
            assert (await accumulated.get_final_response()).output_text.startswith("It says")
    kinds = [event.type for event in events if not event.type.endswith(".delta")]
    assert kinds == [
        "response.created", "response.in_progress",
        "response.output_item.added", "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed", "response.output_item.done",
        "response.output_item.added", "response.mcp_call.in_progress",
        "response.mcp_call_arguments.done", "response.mcp_call.completed",
        "response.output_item.done",
        "response.output_item.added", "response.content_part.added", "response.output_text.done",
        "response.content_part.done", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in done] == [0, 1, 2]
    assert [event.item for event in done] == events[-1].response.output
    deltas = [event.delta for event in events if event.type == "response.mcp_call_arguments.delta"]
    assert "".join(deltas) == '{"city": "Oslo"}'
    # Known to the package, each of them.
    assert {type(event).__name__ for event in events} >= {
        "ResponseMcpCallInProgressEvent", "ResponseMcpCallCompletedEvent",
        "ResponseMcpListToolsCompletedEvent", "ResponseMcpCallArgumentsDoneEvent",
    }  # fmt: skip
    assert done[1].item.output == ANSWER


async def test_a_call_waits_for_its_approval(tools):
    """Which is the default; the next request decides, by id or with the item itself."""
    address, calls = tools
    calls.clear()
    asked = {"tools": [station(require_approval=None)]}
    async with handlers(f"station={address}") as to:
        first = await to.create(input=call(), **asked)
        assert outputs(first) == ["mcp_list_tools", "mcp_approval_request"]
        assert (first["status"], calls) == ("completed", [])
        request = first["output"][1]
        assert request["arguments"] == '{"city": "Oslo"}'
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
        for way in (
            {"input": [answer | {"approve": True}], "previous_response_id": first["id"]},
            {"input": [{"role": "user", "content": "x"}, request, answer | {"approve": True}]},
        ):
            made = await to.create(**way, **asked)
            assert outputs(made)[-2:] == ["mcp_call", "message"]
            assert made["output"][-2]["approval_request_id"] == request["id"]
            assert made["output"][-1]["content"][0]["text"] == f"It says: {ANSWER}"
        assert calls == ["Oslo", "Oslo"]
        denied = await to.create(
            input=[answer | {"approve": False, "reason": "too far"}],
            previous_response_id=first["id"],
            **asked,
        )
        assert "too far" in denied["output"][-1]["content"][0]["text"]
        for bad in (
            [answer | {"approve": True}, answer | {"approve": True}],
            [answer | {"approve": True, "approval_request_id": "mcpr_x"}],
        ):
            with pytest.raises(BadRequest):
                await to.create(input=bad, previous_response_id=first["id"], **asked)
        with pytest.raises(BadRequest, match="none of the tools"):
            await to.create(
                input=[answer | {"approve": True}],
                previous_response_id=first["id"],
                tools=[station(allowed_tools=["slow"])],
            )
        assert len(calls) == 2


@pytest.mark.parametrize(
    ("required", "is_made"),
    [
        ("never", True),
        ("always", False),
        ({"never": {"tool_names": ["get_weather"]}}, True),
        ({"never": {"read_only": True}}, True),
        ({"always": {"tool_names": ["get_weather"]}, "never": {"read_only": True}}, False),
        ({"never": {"tool_names": ["slow"]}}, False),
    ],
)
async def test_filters_decide_which_calls_wait(tools, required, is_made):
    """By name and by what tools say of themselves."""
    async with handlers(f"station={tools[0]}") as to:
        made = await to.create(input=call(), tools=[station(require_approval=required)])
        assert ("mcp_call" in outputs(made)) == is_made


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (call("broken", "{}"), "mcp_tool_execution_error", "broken"),
        (call("get_weather", '{"town": 1}'), "mcp_tool_execution_error", "city"),
        (call("slow", '{"seconds": 30}'), "http_error", "within 0.5 s"),
        (call("big", '{"size": 5000}'), "mcp_tool_execution_error", "4096 are taken"),
    ],
)
async def test_a_call_that_fails_is_reported_to_the_model_alone(tools, text, kind, said):
    """Its item has the error, as OpenAI writes it, and the response goes on."""
    limits = {"call_timeout_s": 0.5, "max_result_chars": 4096}
    async with handlers(f"station={tools[0]}", **limits) as to:
        events = await to.stream(input=text, tools=[station()])
        response = events[-1]["response"]
        called = response["output"][1]
        assert (called["status"], called["output"]) == ("failed", None)
        assert called["error"]["type"] == kind
        assert said in str(called["error"])
        assert said in response["output"][2]["content"][0]["text"]
        assert "response.mcp_call.failed" in [event["type"] for event in events]


async def test_arguments_that_are_no_object_reach_no_server(tools):
    """A model may write anything; it is said what was wrong."""
    tools[1].clear()
    request = {
        "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "station",
        "name": "get_weather", "arguments": '["Oslo"]',
    }  # fmt: skip
    approval = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    async with handlers(f"station={tools[0]}") as to:
        made = await to.create(input=[request, approval], tools=[station()])
        assert made["output"][1]["error"]["type"] == "mcp_protocol_error"
        assert tools[1] == []


async def test_a_server_that_floods_ends_its_session_only(tools):
    """Bytes of a session are counted; the response goes on without it."""
    async with handlers(f"station={tools[0]}", max_received_bytes=100_000) as to:
        made = await to.create(input=call("big", '{"size": 200000}'), tools=[station()])
        assert made["output"][1]["status"] == "failed"
        assert made["status"] == "completed"
        fine = await to.create(input=call(), tools=[station()])
        assert fine["output"][1]["output"] == ANSWER


@pytest.mark.parametrize(
    ("fields", "limits", "num_calls"),
    [({}, {"max_turns": 3}, 2), ({}, {"max_calls": 4}, 4), ({"max_tool_calls": 1}, {}, 1)],
)
async def test_a_model_that_calls_for_ever_has_to_do_without(tools, fields, limits, num_calls):
    """After so many turns or calls its text is what it says."""
    async with handlers(f"station={tools[0]}", template=ALWAYS, **limits) as to:
        made = await to.create(input=call(), tools=[station()], **fields)
        assert outputs(made) == ["mcp_list_tools", *["mcp_call"] * num_calls, "message"]
        assert made["status"] == "completed"


async def test_all_turns_together_take_no_more_tokens_than_the_request_allows(tools):
    """What is left is the next turn's."""
    async with handlers(f"station={tools[0]}") as to:
        whole = await to.create(input=call(), tools=[station()])
        num_tokens = whole["usage"]["output_tokens"]
        cut = await to.create(input=call(), tools=[station()], max_output_tokens=num_tokens - 2)
        assert cut["usage"]["output_tokens"] == num_tokens - 2
        assert cut["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_function_of_the_clients_waits_for_it_while_a_servers_tool_is_called(tools):
    """Both in one turn; the client's result is fed back as ever."""
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    async with handlers(f"station={tools[0]}") as to:
        text = call() + "\n" + call("f", "{}")
        made = await to.create(input=text, tools=[station(), function])
        assert outputs(made) == ["mcp_list_tools", "mcp_call", "function_call"]
        assert made["output"][1]["status"] == "completed"
        result = {
            "type": "function_call_output",
            "call_id": made["output"][2]["call_id"],
            "output": "9",
        }
        again = await to.create(
            input=[result], previous_response_id=made["id"], tools=[station(), function]
        )
        assert again["output"][-1]["content"][0]["text"] == "It says: 9"


async def test_a_tool_that_has_to_be_called_is_called_once(tools):
    """Whatever was said; afterwards the model may stop."""
    async with handlers(f"station={tools[0]}") as to:
        choice = {"type": "mcp", "server_label": "station", "name": "get_weather"}
        made = await to.create(
            input="hello", tools=[station()], tool_choice=choice, max_output_tokens=600
        )
        called = [item for item in made["output"] if item["type"] == "mcp_call"]
        assert [item["name"] for item in called] == ["get_weather"]


async def test_responses_in_the_background_call_tools_too(tools):
    """Followed by their events, and cancelled in the middle of a call."""
    async with handlers(f"station={tools[0]}") as to:
        begun = await to.create(input=call(), tools=[station()], background=True)
        await _until(lambda: not to.runs.open())
        state = await to.of("GET", begun["id"])
        assert outputs(state) == ["mcp_list_tools", "mcp_call", "message"]
        slow = call("slow", '{"seconds": 30}')
        tools[1].clear()
        begun = await to.create(input=slow, tools=[station()], background=True)
        await _until(lambda: tools[1])
        since = time.monotonic()
        ended = await to.of("POST", begun["id"], "/cancel")
        assert is_within(time.monotonic() - since, 20)  # and not the 30 s of the tool
        assert ended["status"] == "cancelled"
        assert ended["output"][1]["status"] == "incomplete"


async def test_a_client_in_the_background_waits_for_no_server_of_tools():
    """It has its answer before the tools are listed; a server that lists none fails the response."""
    is_connected, is_let_go = asyncio.Event(), asyncio.Event()

    async def connected(_reader, writer):
        is_connected.set()
        await is_let_go.wait()
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as mute:
        port = mute.sockets[0].getsockname()[1]
        async with handlers(f"station=http://127.0.0.1:{port}/mcp") as to:
            begun = await to.create(input=call(), tools=[station()], background=True)
            assert begun["status"] == "queued"
            cancelled = await to.create(input=call(), tools=[station()], background=True)
            await is_connected.wait()
            ended = await to.of("POST", cancelled["id"], "/cancel")
            assert (ended["status"], ended["output"]) == ("cancelled", [])
            is_let_go.set()
            await _until(lambda: not to.runs.open())
            state = await to.of("GET", begun["id"])
    assert state["status"] == "failed"
    assert "'station'" in state["error"]["message"]


async def test_a_wrong_label_is_refused_in_the_background_too(tools):
    """That is known before any server is called."""
    async with handlers(f"station={tools[0]}") as to:
        with pytest.raises(BadRequest, match="there are 'station'"):
            await to.create(input=call(), tools=[station(server_label="x")], background=True)


async def _until(is_so):
    for _ in range(3000):
        if is_so():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come")


async def test_servers_over_events_are_known_by_the_name_they_give_themselves():
    """HOST:PORT, as vLLM has it."""
    with tool_serving("/sse") as (address, _):
        port = address.removesuffix("/sse").rpartition(":")[2]
        async with handlers(f"127.0.0.1:{port}") as to:
            made = await to.create(input=call(), tools=[station(server_label=NAME)])
            assert made["output"][1]["output"] == ANSWER
            with pytest.raises(BadRequest, match=NAME):
                await to.create(input=call(), tools=[station(server_label="x")])


async def test_what_a_server_calls_itself_is_known_when_its_session_is_over():
    """Of a client that is closed the package tells nothing, and it closes on a thread of its own."""
    sessions = Sessions(ToolLimits(max_sessions=1))
    with tool_serving() as (address, _):
        first = await sessions.open("a", address, {})
        first.close()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(Overloaded):
                    (await sessions.open("b", address, {})).close()
                    break
                await asyncio.sleep(0.01)
        sessions.close()
    assert first.server_name == NAME


async def test_a_request_may_bring_a_server_of_an_allowed_host(tools):
    """By its own address, with its own headers; what opens it is not repeated."""
    address, _ = tools
    own = station(server_url=f"{address}?key=secret", headers={"X-Key": "k"}, authorization="t")
    async with handlers(None, hosts="127.0.0.1") as to:
        made = await to.create(input=call(), tools=[own])
        assert made["output"][1]["output"] == ANSWER
        assert made["tools"][0]["server_url"] == address
        assert "secret" not in str(made)
    async with handlers(f"station={address}") as to:
        stranger = station(server_label="other", server_url="http://127.0.0.1:9/mcp")
        with pytest.raises(BadRequest, match="allowed-tool-hosts"):
            await to.create(input=call(), tools=[stranger])


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ({"server_label": None}, "server_label"),
        ({"server_label": "a b"}, "server_label"),
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"tunnel_id": "x"}, "tunnel_id"),
        ({"name": "x"}, "name does not go"),
        ({"require_approval": "perhaps"}, "require_approval"),
        ({"headers": {"Host": "x"}}, "headers"),
        ({"headers": {"X-A": "b\r\nc"}}, "headers"),
        ({"headers": {f"X-{number}": "x" for number in range(33)}}, "headers"),
        ({"authorization": "a\nb"}, "headers"),
    ],
)
async def test_what_names_no_server_is_refused_by_name(tools, tool, said):
    """Before any server is called."""
    tools[1].clear()
    async with handlers(f"station={tools[0]}") as to:
        with pytest.raises(BadRequest, match=said) as refused:
            await to.create(input=call(), tools=[station(**tool)])
        assert refused.value.parameter == "tools"


async def test_a_server_that_does_not_answer_is_said_so(unused_port):
    """424, as OpenAI has it, and nobody else is concerned."""
    async with handlers(f"station=http://127.0.0.1:{unused_port}/mcp") as to:
        with pytest.raises(HttpError) as refused:
            await to.create(input=call(), tools=[station()])
        assert refused.value.status == 424
        assert "station" in str(refused.value)
        assert (await to.create(input="hello"))["status"] == "completed"


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]  # nobody else gets it, and nobody listens


async def test_sessions_are_bounded_and_given_back(tools):
    """One at a time here: each response ends its own, also where it is refused."""
    async with handlers(f"station={tools[0]}", max_sessions=1) as to:
        for fields in (
            {},
            {"tool_choice": {"type": "mcp", "server_label": "station", "name": "y"}},
            {},
        ):
            while True:
                try:
                    made = await to.create(input=call(), tools=[station()], **fields)
                    assert made["status"] == "completed"
                    break
                except Overloaded:  # the one before is being closed
                    await asyncio.sleep(0.01)
                except BadRequest:
                    assert fields
                    break
        one, two = await asyncio.gather(
            *(to.create(input=call(), tools=[station()]) for _ in range(2)), return_exceptions=True
        )
        assert isinstance(two, Overloaded) or isinstance(one, Overloaded)
