"""KV transfer of vLLM's engine: keys and values through files, and `kv_transfer_params` through both wires."""

import json

import psutil
import pytest

from tests.busy import PATIENCE_S
from tests.vllm.served import fetched, refused, serving
from weft.core.headers import PREFILLER
from weft.core.values.kv_transfer import KEY
from weft.core.values.types import SamplingParams
from weft.rpc.client import RpcClient

pytestmark = pytest.mark.vllm

PROMPT = list(range(90, 390))  # two blocks of 128 and more
BODY = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
# As connectors of vLLM's have them: more names than those that we know, and none that is lost.
GIVEN = {"do_remote_decode": True, "transfer_id": "x-1", "tp_size": 2, "remote_block_ids": None}


@pytest.fixture(scope="module")
def server(checkpoint, tmp_path_factory):
    """With a connector that says what its requests were given."""
    directory = tmp_path_factory.mktemp("kv")
    config = {
        "kv_connector": "RecordingConnector",
        "kv_connector_module_path": "tests.vllm.recording_connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(directory)},
    }
    flags = ("--kv-transfer-config", json.dumps(config), "--control-api-key", "c", "-c", "512")
    with serving(checkpoint, *flags) as started:
        yield started


def completion(server, **changes):
    """The answer to a completion."""
    return json.loads(fetched(server, "/v1/completions", {**BODY, **changes}))


def test_what_http_brings_the_connector_has_and_its_answer_comes_back(server):
    """Unchanged in both directions; without them, nothing."""
    received = completion(server, **{KEY: GIVEN})[KEY]
    assert received["received"] == GIVEN
    assert (received["do_remote_prefill"], received["remote_port"]) == (True, 5600)
    assert completion(server)[KEY] is None


async def test_what_grpc_brings_the_connector_has_and_its_answer_comes_back(server):
    """The same connector behind the other wire."""
    client = await RpcClient.connect(server.address)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, extra_args={KEY: GIVEN})
    try:
        outputs = [o async for o in client.generate({"prompt_token_ids": PROMPT}, params, "g")]
    finally:
        await client.close()
    assert outputs[-1].kv_transfer_params["received"] == GIVEN
    over_http = completion(server, return_token_ids=True)["choices"][0]["token_ids"]
    assert outputs[-1].outputs[0].token_ids == over_http


def test_a_prompt_is_computed_where_a_router_says(server):
    """Here, by itself: what it received the first time came back to its connector with the second request."""
    address = server.http.removeprefix("http://")
    answer = fetched(server, "/v1/completions", BODY, **{PREFILLER: address})
    asked = json.loads(answer)[KEY]["received"]
    assert (asked["do_remote_prefill"], asked["remote_host"]) == (True, "127.0.0.1")
    assert asked["received"]["do_remote_decode"]


def test_a_prompt_is_taken_from_the_connectors_files(server):
    """After the engine's own cache was emptied."""
    body = {"prompt": PROMPT[::-1]}
    first = completion(server, **body)
    fetched(server, "/reset_prefix_cache", {}, authorization="Bearer c")
    second = completion(server, **body)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 256
    assert first["choices"][0]["text"] == second["choices"][0]["text"]


def test_one_prompt_is_moved_for_one_answer(server):
    """Each of several is a request of its own there."""
    code, error = refused(server, "/v1/completions", {**BODY, KEY: GIVEN, "n": 2})
    assert code == 400
    assert KEY in error["message"]
    assert error["param"] == KEY


def test_a_killed_server_leaves_no_engine_behind(server):
    """It could end nothing itself. The last test here."""
    family = server.front.children(recursive=True)
    assert any("EngineCore" in process.name() for process in family)
    server.front.kill()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not alive
