"""`p2p-source-producer`: who has the blocks that the computing server lacks."""

import pytest

from tests.epp.pools import around, cycle, parameters, pool_of, with_loads
from weft.epp.decision.cycle import PrefixMatch, Schedule
from weft.epp.plugins.producers.cache_source import SourceParameters, SourceProducer
from weft.epp.pool.endpoint import Load


def named(held: tuple[int, int, int], least: int = 16, **picks: int) -> str | None:
    """The source in the header, where the endpoints hold so many blocks of 16 and the picks are these."""
    pool = pool_of(3)
    endpoints = with_loads(pool, Load(), Load(), Load())
    counts = dict(zip(endpoints, held, strict=True))
    made = cycle(endpoints, num_tokens=100, match=PrefixMatch(7, 16, counts, counts))
    plugin = SourceProducer(parameters(SourceParameters, minCachedTokenDelta=least), around(pool))
    chosen = {name: [endpoints[number - 1]] for name, number in picks.items()}
    plugin.picked(made, Schedule(next(iter(picks)), chosen))
    return made.request_headers.get("x-kv-cache-source-host-port")


@pytest.mark.parametrize(
    ("held", "least", "source"),
    [
        ((0, 6, 2), 16, "10.0.0.2:8000"),
        ((5, 6, 0), 17, None),  # one block more is 16 tokens
        ((0, 0, 0), 1, None),
        ((7, 6, 6), 1, None),  # nobody has more
        ((0, 0, 7), 101, None),  # 7 blocks are the 100 tokens that there are
        ((0, 0, 7), 100, "10.0.0.3:8000"),
    ],
)
def test_a_source_is_named_where_it_saves_enough(held, least: int, source: str | None):
    """More than the endpoint that computes the prompt, by so many tokens."""
    assert named(held, least, default=1) == source


def test_what_computes_the_prompt_is_the_prefills_pick():
    """Where prefill runs apart, the decoder's blocks are of no use to it."""
    assert named((0, 0, 6), decode=3, prefill=1) == "10.0.0.3:8000"
    assert named((0, 0, 6), decode=1, prefill=3) is None


def test_of_equal_sources_the_idle_one_is_likelier():
    """A queue of many slows the transfer too."""
    pool = pool_of(3)
    endpoints = with_loads(pool, Load(), Load(num_waiting=10**9), Load())
    counts = dict(zip(endpoints, (0, 6, 5), strict=True))
    made = cycle(endpoints, num_tokens=100, match=PrefixMatch(7, 16, counts, counts))
    plugin = SourceProducer(parameters(SourceParameters), around(pool))
    plugin.picked(made, Schedule("default", {"default": [endpoints[0]]}))
    assert made.request_headers["x-kv-cache-source-host-port"] == "10.0.0.3:8000"
