"""`burst-prefix-cache-producer`: one prompt that comes many times at once is computed once."""

import asyncio
from collections import Counter

import pytest

from tests.epp.pools import bench, pool_of, request
from weft.core.errors import ConfigError
from weft.epp.config.decode import decode
from weft.epp.plugins.producers.burst_prefix import BurstParameters, Prompts, place

CONFIG = """\
plugins:
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: %d, maxBatchSize: %d}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}
"""


async def hosts(text: str, *prompts: tuple[int, ...]) -> list[str]:
    """Where requests go that come at once."""
    made = bench(text, pool_of(4))
    picks = [
        made.director.pick(request(*prompt, request_id=str(number)), None)
        for number, prompt in enumerate(prompts)
    ]
    return [decision.endpoints[0] for decision in await asyncio.gather(*picks)]


def test_the_same_prompt_goes_to_one_endpoint():
    """Though no cache holds it yet; two prompts go to two."""
    one, other = tuple(range(200)), tuple(range(1000, 1200))
    found = asyncio.run(hosts(CONFIG % (10_000, 12), *[one, other] * 6))
    assert len(set(found[::2])) == len(set(found[1::2])) == 1
    assert found[0] != found[1]


def test_a_window_ends_by_itself():
    """Whoever is alone waits no longer than that."""
    assert len(asyncio.run(hosts(CONFIG % (1, 1000), (1, 2, 3)))) == 1


def test_windows_with_one_shared_prompt_each_have_no_favourite():
    """Nor do they go to who refuses connections."""
    pool = pool_of(4)
    refusing = next(iter(pool))
    refusing.is_refusing = True
    made = bench(CONFIG % (10_000, 2), pool)

    async def window(number: int) -> set[str]:
        wanted = [request(number, request_id=f"{number}-{each}") for each in "ab"]
        decisions = await asyncio.gather(*(made.director.pick(each, None) for each in wanted))
        return {each.endpoints[0] for each in decisions}

    found = [asyncio.run(window(number)) for number in range(3)]
    assert sorted(found, key=min) == [{each.host_port} for each in list(pool)[1:]]


def prompts(*groups: tuple[int, int | None, int]) -> dict[int, Prompts]:
    """Requests for prompts: which, how it begins, how long."""
    return {
        ticket: Prompts((whole,), beginning, num_blocks)
        for ticket, (whole, beginning, num_blocks) in enumerate(groups)
    }


@pytest.mark.parametrize(("most", "sizes"), [(-1, [6]), (2, [2, 2, 2]), (4, [4, 2])])
def test_an_endpoint_takes_so_many_of_a_group(most: int, sizes: list[int]):
    """Then comes the one with the fewest."""
    wanted = place(prompts(*[(1, None, 3)] * 6), list(pool_of(4)), most)
    assert sorted(Counter(wanted.values()).values(), reverse=True) == sizes


def test_who_is_alone_is_placed_by_load():
    """There is nothing to share."""
    assert place(prompts((1, None, 3), (2, None, 3), (3, 7, 3)), list(pool_of(2)), -1) == {}


def test_prompts_that_begin_alike_stay_together_up_to_a_fair_share():
    """Four of them over two endpoints: two each, the long ones first."""
    found = place(prompts((1, 9, 3), (2, 9, 8), (3, 9, 9), (4, 9, 4)), list(pool_of(2)), -1)
    assert (found[2], found[3]) == (found[1], found[0])
    assert found[1] is not found[0]


def test_endpoints_are_filled_by_requests_or_by_what_they_compute():
    """Pairs of one long prompt and three short ones: each endpoint has two pairs, or one has the long one alone."""
    wanted = prompts(
        *((name, None, blocks) for name, blocks in ((1, 30), (2, 5), (3, 4), (4, 3)) * 2)
    )

    def beside(by_tokens: bool) -> int:
        found = place(wanted, list(pool_of(2)), -1, by_tokens=by_tokens)
        return sum(found[ticket] is found[0] for ticket in found)

    assert (beside(False), beside(True)) == (4, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"windowDurationMs": 10_001}, "windowDurationMs"),
        ({"maxPerReplica": 0}, "maxPerReplica"),
        ({"maxBatchSize": -2}, "maxBatchSize"),
        ({"maxPrefixTokensToMatch": 63}, "maxPrefixTokensToMatch must be 0 or"),
    ],
)
def test_wrong_numbers_are_refused(given: dict[str, int], words: str):
    """With the key's name."""
    with pytest.raises(ConfigError, match=words):
        decode(given, BurstParameters, "p")
