"""Streams outlast the ends of their servers: a short run of `tests.soak.resuming` for each place."""

import pytest

from tests.soak.kills import Plan
from tests.soak.resuming import PLACES, soak


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", PLACES)
async def test_mixed_streams_are_whole_whatever_server_is_killed(place):
    """Their clients continue them at the next server: each answer is that of an undisturbed run."""
    print(await soak(place, Plan(streams=60, ends=2, ways=(place,))))
