"""A prompt that is lent again and again has one lease, which ends when all who were told of it have released it."""

import pytest

from tests.engine.test_kv_transfer import (
    LEND,
    ask,
    num_held,
    run_engine,
    tokens_of,
    wait_for_held,
)
from tests.engine.test_offloading import greedy
from weft.core.values.kv_transfer import KvConnector, KvRole
from weft.engine.scheduling.blocks import lent_blocks

PROMPT = [*range(5, 23)]


@pytest.fixture(params=list(KvConnector))
def connector(request) -> KvConnector:
    return request.param


def test_a_prompt_that_is_lent_again_has_one_lease(connector):
    """Each of three engines fetches it under what it was told, and the last of them ends it."""
    with (
        run_engine(KvRole.PRODUCER, connector=connector) as producer,
        run_engine(KvRole.CONSUMER, connector=connector) as consumer,
    ):
        lent = [ask(producer, f"p{n}", PROMPT, 1, LEND)[-1].kv_transfer_params for n in range(3)]
        assert num_held(producer) == 4
        for number, found in enumerate(lent):
            assert num_held(producer) == 4
            outputs = ask(consumer, f"d{number}", PROMPT, 3, found)
            assert tokens_of(outputs) == greedy(PROMPT, 3)
        wait_for_held(producer, 0)


def test_an_id_of_a_request_is_told_to_its_own_caller_alone():
    """Others fetch the lease under another name."""
    with run_engine(KvRole.PRODUCER) as producer:
        lent = [ask(producer, f"p{n}", PROMPT, 1, LEND)[-1].kv_transfer_params for n in range(3)]
    first, second, third = [found["remote_request_id"] for found in lent]
    assert first == "p0"
    assert second == third
    assert "p0" not in second
    assert len({str(found["remote_block_ids"]) for found in lent}) == 1


def test_a_producer_has_so_many_leases_and_no_more(monkeypatch):
    """The oldest ends for one more, and its prompt is computed by who wanted it."""
    monkeypatch.setattr(lent_blocks, "MAX_LEASES", 2)
    with run_engine(KvRole.PRODUCER) as producer, run_engine(KvRole.CONSUMER) as consumer:
        prompts = [[n, *PROMPT] for n in range(3)]
        lent = [
            ask(producer, f"p{n}", prompt, 1, LEND)[-1].kv_transfer_params
            for n, prompt in enumerate(prompts)
        ]
        assert num_held(producer) == 2 * 4
        outputs = ask(consumer, "d", prompts[0], 3, lent[0])
        assert tokens_of(outputs) == greedy(prompts[0], 3)
        assert outputs[-1].num_cached_tokens == 0
        assert ask(consumer, "e", prompts[2], 3, lent[2])[-1].num_cached_tokens == 16


def test_a_lease_that_is_shared_lasts_from_then_on():
    """As if it had been lent now; when its time is up it ends, whoever has not come."""
    with run_engine(KvRole.PRODUCER, lease_s=0.05) as producer:
        for number in range(3):
            ask(producer, f"p{number}", PROMPT, 1, LEND)
        wait_for_held(producer, 0)
        ask(producer, "p3", PROMPT, 1, LEND)
        wait_for_held(producer, 0)
