"""Hashes of prompt prefixes: equal exactly when the K/V are."""

import pytest

from weft.engine.scheduling.block_hashes import block_hash, chain_root

PLAIN = {"block_size": 4, "weights_epoch": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 5},
        {"weights_epoch": 1},
        {"lora_name": "a"},
        {"lora_name": ""},
        {"lora_generation": 1},
        {"cache_salt": "a"},
        {"cache_salt": ""},
    ],
)
def test_every_field_that_changes_the_kv_changes_the_root(change):
    """No two cache users with different K/V share a chain; empty is not the same as absent."""
    assert chain_root(**PLAIN) != chain_root(**{**PLAIN, **change})


def test_a_salt_is_not_an_adapter_of_the_same_name():
    """Fields are tagged and length-prefixed: moving text from one to the other changes the hash."""
    assert chain_root(**PLAIN, lora_name="ab") != chain_root(**PLAIN, cache_salt="ab")
    one = chain_root(**PLAIN, lora_name="a", cache_salt="bc")
    assert one != chain_root(**PLAIN, lora_name="ab", cache_salt="c")


def test_a_block_is_its_parent_and_its_tokens():
    """Another parent, another token or another order is another block."""
    root = chain_root(**PLAIN)
    first = block_hash(root, [1, 2, 3, 4])
    others = [
        block_hash(first, [1, 2, 3, 4]),
        block_hash(root, [1, 2, 4, 3]),
        block_hash(root, [1, 2, 3, 2**31 + 4]),
    ]
    assert len({first, *others}) == 4
    assert block_hash(root, [1, 2, 3, 4]) == first


def test_hashes_are_the_same_in_every_process():
    """Routers compare hashes of several workers, so the value itself is fixed."""
    digest = block_hash(chain_root(**PLAIN), [1, 2, 3, 4])
    assert digest.hex() == "153001421c1f156e4023eddfd0432f3a8203ca046b96d28c3e8de956c724761a"
