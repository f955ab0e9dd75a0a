"""weft.core.config.ranks: which ranks a server has."""

import pytest

from weft.core.config.ranks import LinkConfig, RankOptions, RanksConfig, read_ranks
from weft.core.errors import ConfigError

HERE = LinkConfig("127.0.0.1", 29550, "/s")
KNOWN = {"data_parallel_secret_file": "/s"}


@pytest.mark.parametrize(
    ("size", "given", "expected"),
    [
        (1, {}, None),
        (4, {}, None),
        (4, {"data_parallel_size_local": 4}, None),
        (0, {}, None),
        (-1, {"data_parallel_rank": 0}, None),
        (1, {"data_parallel_rank": 0, "data_parallel_size_local": 1}, None),
        (4, {"data_parallel_rank": 3}, RanksConfig(start=3, num_local=1)),
        (4, {"data_parallel_rank": 0, "data_parallel_external_lb": True}, RanksConfig(start=0, num_local=1)),
        (4, {"data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}, RanksConfig(start=0, num_local=2)),
        (4, {"data_parallel_hybrid_lb": True, "data_parallel_start_rank": 2}, RanksConfig(start=2, num_local=2)),
        # As vLLM has it: a start that is not that of a node is one of a server.
        (4, {"data_parallel_start_rank": 2, "data_parallel_size_local": 1}, RanksConfig(start=2, num_local=1)),
        (4, {"data_parallel_size_local": 2, **KNOWN}, RanksConfig(start=0, num_local=2, link=HERE)),
        (4, {"data_parallel_size_local": 0, **KNOWN}, RanksConfig(start=0, num_local=0, link=HERE)),
        (4, {"headless": True, "data_parallel_start_rank": 2, **KNOWN},
         RanksConfig(start=2, num_local=2, link=HERE, is_headless=True)),
        (4, {"headless": True, "data_parallel_start_rank": 1, "data_parallel_size_local": 1, **KNOWN},
         RanksConfig(start=1, num_local=1, link=HERE, is_headless=True)),
        (4, {"headless": True, **KNOWN}, RanksConfig(start=0, num_local=4, link=HERE, is_headless=True)),
    ],
)  # fmt: skip
def test_the_ranks_of_a_server_are_what_its_flags_say(size, given, expected):
    """None where it has all of them."""
    assert read_ranks(RankOptions(**given), size) == expected


@pytest.mark.parametrize("address", [{}, {"data_parallel_address": "10.0.0.7"}])
@pytest.mark.parametrize("side", [{"data_parallel_size_local": 1}, {"headless": True}])
def test_a_head_and_its_nodes_need_a_secret(address, side):
    """On one machine too, where any process could join; where it is, and how to reach the head, is handed on."""
    given = {**address, **side, "data_parallel_rpc_port": 13345}
    with pytest.raises(
        ConfigError, match=r"without a secret .* port 13345 .* --data-parallel-secret-file"
    ):
        read_ranks(RankOptions(**given), 2)
    found = read_ranks(RankOptions(**given, data_parallel_secret_file="/s"), 2)
    assert found is not None
    assert found.link == LinkConfig(address.get("data_parallel_address", "127.0.0.1"), 13345, "/s")


@pytest.mark.parametrize(
    ("size", "given", "words"),
    [
        (2, {"data_parallel_external_lb": True}, "--data-parallel-external-lb needs --data-parallel-rank"),
        (2, {"data_parallel_rank": 2}, "--data-parallel-rank must be from 0 to 1 here, not 2"),
        (2, {"data_parallel_rank": -1}, "--data-parallel-rank must be from 0 to 1"),
        (2, {"data_parallel_rank": 0, "headless": True}, "--data-parallel-rank cannot be combined with --headless"),
        (4, {"data_parallel_rank": 0, "data_parallel_size_local": 2}, "leave --data-parallel-size-local out"),
        (4, {"data_parallel_size_local": 5}, "--data-parallel-size-local must be from 0 to 4 here, not 5"),
        (4, {"data_parallel_hybrid_lb": True, "data_parallel_size_local": 0}, "must be from 1 to 4"),
        (4, {"data_parallel_start_rank": 3, "data_parallel_size_local": 2}, "must be from 1 to 1"),
        (4, {"data_parallel_start_rank": 4}, "--data-parallel-start-rank must be from 0 to 3"),
        (4, {"headless": True, "data_parallel_hybrid_lb": True}, "--headless cannot be combined with"),
        (4, {"headless": True, "data_parallel_size_local": 0}, "must be from 1 to 4"),
        (4, {"data_parallel_rank": 0, "data_parallel_secret_file": "/s"}, "--data-parallel-secret-file is for a head"),
        (1, {"headless": True}, "--headless needs --data-parallel-size above 1"),
        (2, {"data_parallel_size_local": 1, "data_parallel_rpc_port": 0}, "--data-parallel-rpc-port must be"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(size, given, words):
    """Before anything is read."""
    with pytest.raises(ConfigError) as refused:
        read_ranks(RankOptions(**given), size)
    assert words in str(refused.value)
