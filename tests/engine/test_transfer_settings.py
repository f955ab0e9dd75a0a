"""What users and callers write of transfers, and what is refused of it."""

import pytest

from tests.doubles.secret_file import SECRET, secret_file
from tests.doubles.transfers import computed_at
from tests.engine.test_kv_transfer import LEND, answers_of, options, run_apart, with_args
from tests.engine.test_offloading import MODEL
from tests.model.checkpoints import CONFIG, write_checkpoint
from weft import LLM
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import BadRequest, ConfigError
from weft.core.values.kv_transfer import read_params
from weft.core.values.types import SamplingParams
from weft.engine.start.fit import fit
from weft.engine.transfer.settings import read_kv_transfer
from weft.model.open import open_model


def given(**more):
    """Of an engine that knows a secret."""
    extra = {"secret_file": secret_file(), **more.pop("kv_connector_extra_config", {})}
    return {
        "kv_connector": "TcpConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
        **more,
    }


def without_secret(*peers, **more):
    """Of an engine that is told its peers, if any."""
    extra = {"kv_connector_extra_config": {"peers": peers}} if peers else {}
    return {"kv_connector": "TcpConnector", "kv_role": "kv_consumer", **extra, **more}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"kv_role": "kv_both"}, "kv_connector"),
        (given(kv_connector="P2pNcclConnector", kv_rank=0), "it pushes from GPU to GPU"),
        (given(kv_connector="x"), "'x' is not supported: take TcpConnector, ShmConnector, Nixl"),
        (given(kv_role="x"), "kv_role"),
        (given(kv_rank=1), "kv_rank"),
        (given(kv_connector_extra_config={"backends": ["UCX"]}), "backends"),
        (given(kv_port=70000), "kv_port must be between 0 and 65535"),
        (given(kv_ip="0.0.0.0"), "must be the address that others reach"),
        (given(kv_ip="localhost"), "kv_ip must be an address"),
        (without_secret(kv_ip="10.0.0.1"), "needs a secret_file when kv_ip or peers"),
        (without_secret("10.0.0.0/8"), "needs a secret_file when kv_ip or peers"),
        (without_secret("10.0.0.7:14579"), "needs a secret_file when kv_ip or peers"),
        (without_secret(), "needs a secret_file, or peers that are addresses with ports"),
        (without_secret(kv_role="kv_both"), "needs a secret_file, or peers"),
        (without_secret("127.0.0.1"), "needs a secret_file, or peers"),
        (without_secret("127.0.0.1:1", "127.0.0.0/8"), "needs a secret_file, or peers"),
        (given(kv_connector="ShmConnector", kv_ip="10.0.0.1"), "kv_ip and peers must be loopback"),
        (
            given(
                kv_connector="ShmConnector",
                kv_connector_extra_config={"peers": ["10.0.0.0/8"], "secret_file": "x"},
            ),
            "shares the memory of one machine; take TcpConnector",
        ),
        (given(kv_connector_extra_config={"peers": ["x"]}), "peers must be networks or addresses"),
        *(
            (
                given(kv_connector_extra_config={"peers": [one]}),
                "peers must be networks or addresses",
            )
            for one in (
                "x:1",
                "127.0.0.1:0",
                "127.0.0.1:65536",
                "127.0.0.1:1/a",
                "u@127.0.0.1:1",
                "::1:x",
                "10.0.0.1/8",
            )
        ),
        (given(kv_connector_extra_config={"peers": []}), "number of peers"),
        (given(kv_connector_extra_config={"lease_s": 0}), "lease_s must be between 1"),
        (
            given(kv_connector_extra_config={"fetch_timeout_s": 0}),
            "fetch_timeout_s must be between 1",
        ),
        (given(kv_load_failure_policy="x"), "must be recompute or fail"),
        (given(engine_id=""), "engine_id must have 1 to 128"),
    ],
)
def test_settings_that_cannot_work_are_refused(config, text):
    """By their names."""
    with pytest.raises(ConfigError, match=text):
        read_kv_transfer(config)


@pytest.mark.parametrize(
    ("peer", "is_peer"),
    [
        ("127.0.0.1:7", [False, True, False]),
        ("127.0.0.1", [True, True, False]),
        ("10.0.0.0/8", [False, False, False]),
        ("[::1]:7", [False, False, True]),
        ("::1", [False, False, True]),
    ],
)
def test_an_engine_that_a_request_names_has_to_be_a_peer(peer, is_peer):
    """Of an address with a port this port alone."""
    config = read_kv_transfer(given(kv_connector_extra_config={"peers": [peer]}))
    named = [("127.0.0.1", 6), ("127.0.0.1", 7), ("::1", 7)]
    assert [config.is_peer(host, port) for host, port in named] == is_peer


def test_without_a_secret_peers_are_addresses_with_ports():
    """And who only lends believes nobody."""
    assert read_kv_transfer(without_secret("127.0.0.1:14579", "[::1]:7")).secret_path is None
    assert read_kv_transfer(without_secret(kv_role="kv_producer")).secret_path is None


def test_several_engines_count_ids_and_ports_from_the_first():
    """So that each can be reached, and a lease of one is not looked for at another."""
    config = read_kv_transfer(given(engine_id="a", kv_port=7000))
    third = config.of_rank(2)
    assert (third.engine_id, third.port) == ("a-2", 7002)
    assert read_kv_transfer(given(kv_port=0)).of_rank(2).port == 0


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"enable_prefix_caching": False}, "needs a prefix cache"),
        ({"block_size": 24}, "a multiple of 16, not 24"),
    ],
)
def test_an_engine_whose_blocks_cannot_be_copied_takes_no_part(more, text):
    """As with a second tier."""
    settings = EngineOptions(model=MODEL, kv_transfer_config=given(), **more)
    with pytest.raises(ConfigError, match=f"--kv-transfer-config {text}|{text}"):
        fit(open_model(MODEL), settings)


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (None, 0, "No such file"),
        (b"short", 0o600, "16 to 4096 bytes, and has 5"),
        (SECRET, 0o604, "open to others"),
    ],
)
def test_a_secret_that_is_none_is_refused_at_the_start(tmp_path, content, mode, text):
    """Before anything is served."""
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    extra = {"secret_file": str(path)}
    with pytest.raises(ConfigError, match=text):
        LLM(MODEL, **options("kv_both", kv_connector_extra_config=extra))


FOUND = computed_at(1) | {"remote_block_ids": [[1, 2]]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"do_remote_decode": True}, "cannot both be true"),
        ({"remote_engine_id": None}, "needs remote_engine_id"),
        ({"remote_request_id": None}, "needs remote_request_id"),
        ({"remote_host": None}, "needs remote_host"),
        ({"remote_host": "localhost"}, "remote_host must be an IP address, got 'localhost'"),
        ({"remote_host": "127.0.0.1\n"}, "remote_host must be an IP address"),
        ({"remote_port": None}, "needs remote_port"),
        ({"remote_block_ids": None}, "needs remote_block_ids"),
        ({"remote_block_ids": [1, 2]}, "remote_block_ids"),
        ({"remote_block_ids": [[-1]]}, "remote_block_ids"),
        ({"remote_block_ids": [[1], [2]]}, "remote_block_ids"),
        ({"remote_block_ids": [[0] * 65537]}, "remote_block_ids"),
        ({"remote_port": 0}, "remote_port"),
        ({"remote_port": "1"}, "remote_port"),
        ({"tp_size": 1 << 40}, "tp_size"),
        ({"tp_size": 2}, "tp_size"),
        ({"remote_bootstrap_addr": "x"}, "remote_bootstrap_addr"),
    ],
)
def test_parameters_that_are_not_whole_are_refused(change, text):
    """By the field's name, before an engine knows of the request."""
    assert read_params(FOUND) is not None
    with pytest.raises(BadRequest, match=text):
        read_params({**FOUND, **change})


def test_an_engine_refuses_what_is_not_its_role():
    """A prompt is not lent by one that only fetches, nor for several answers."""
    with LLM(MODEL, **options("kv_consumer")) as llm:
        for args, text in (
            (LEND, "not allowed on an engine with kv_role kv_consumer"),
            ({"x": 1}, "`x`"),
        ):
            with pytest.raises(BadRequest, match=text):
                llm.generate([5], with_args(SamplingParams(), args), use_tqdm=False)
    with LLM(MODEL, **options("kv_producer")) as llm:
        with pytest.raises(BadRequest, match="not allowed on an engine with kv_role kv_producer"):
            llm.generate([5], with_args(SamplingParams(), FOUND), use_tqdm=False)
        with pytest.raises(BadRequest, match="needs n=1, got 2"):
            llm.generate([5], with_args(SamplingParams(n=2), LEND), use_tqdm=False)


@pytest.mark.parametrize(("length", "num_found"), [(64, 0), (96, 16)])
def test_engines_exchange_what_was_turned_by_the_same_frequencies_alone(
    tmp_path, length, num_found
):
    """Of a model with two sets of them the length of the context decides, which need not be one for both engines."""
    longrope = {
        "type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 64,
    }
    model = str(write_checkpoint(tmp_path / "m", {**CONFIG, "rope_scaling": longrope}))
    prompts = [{"prompt_token_ids": [*range(5, 35)]}]
    params = [SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=30, logprobs=1)]
    with (
        LLM(model, **{**options("kv_producer"), "max_model_len": length}) as producer,
        LLM(model, **{**options("kv_consumer"), "max_model_len": 128}) as consumer,
    ):
        [output] = run_apart(producer, consumer, prompts, params)
        assert answers_of([output]) == answers_of(
            consumer.generate([{**prompts[0], "cache_salt": "s"}], params, use_tqdm=False)
        )
    assert output.num_cached_tokens == num_found
