import struct

import cbor2
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from weft.epp.prefix.keys import FnvKeys, XxhKeys, cbor, chain_hashes, chain_keys, fnv64a


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"", 0xCBF29CE484222325), (b"a", 0xAF63DC4C8601EC8C), (b"foobar", 0x85944171F73967E8)],
)
def test_fnv_gives_its_published_values(data: bytes, value: int):
    """The vectors of its authors."""
    assert fnv64a(data) == value


ITEMS = st.recursive(
    st.none() | st.integers(-(2**64), 2**64 - 1) | st.text(max_size=30) | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=30),
    max_leaves=40,
)


@given(ITEMS)
def test_cbor_is_canonical(value: object):
    """As an independent encoder writes it in its canonical form."""
    assert cbor(value) == cbor2.dumps(value, canonical=True)


def pack(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**32 - 1), max_size=40),
    st.none() | st.lists(st.text(max_size=5) | st.integers(0, 99), min_size=1, max_size=3),
)
def test_fnv_key_hashes_parent_tokens_and_extra(parent: int, tokens: list[int], extra):
    """FNV-64a over the canonical CBOR of the three."""
    expected = fnv64a(cbor2.dumps([parent, tokens, extra], canonical=True))
    assert FnvKeys("").block(parent, pack(*tokens), extra) == expected


def test_fnv_root_is_one_step_from_the_seed():
    """Without tokens, and with the model as the extra."""
    seed = fnv64a(b"42")
    assert FnvKeys("42").root("m") == fnv64a(cbor2.dumps([seed, None, "m"], canonical=True))


def test_xxh_key_hashes_fixed_widths():
    """Parent and tokens, then each extra after its length."""
    data = struct.pack("<QIIQ", 7, 1, 2, 2) + b"ab"
    assert XxhKeys("").block(7, pack(1, 2), ("ab",)) == xxhash.xxh64_intdigest(data)
    root = struct.pack("<QQ", fnv64a(b""), 1) + b"m"
    assert XxhKeys("").root("m") == xxhash.xxh64_intdigest(root)


def test_precise_chain_has_full_blocks_only():
    """Each key's parent is the one before; only the first has the salt."""
    keys = XxhKeys("")
    first = keys.block(9, pack(1, 2), ("salt",))
    chain = chain_keys(keys, pack(1, 2, 3, 4, 5), block_size=2, parent=9, first_extra=("salt",))
    assert chain == [first, keys.block(first, pack(3, 4), None)]


def test_approximate_chain_hashes_the_partial_block_too():
    """h0 from model and salt; each block's own hash with its parent's."""
    digest = xxhash.xxh64_intdigest
    root = digest(b"model" + b"salt")
    first = digest(struct.pack("<QQ", digest(pack(1, 2)), root))
    second = digest(struct.pack("<QQ", digest(pack(3)), first))
    chain = chain_hashes(
        pack(1, 2, 3), block_size=2, max_blocks=9, model="model", cache_salt="salt"
    )
    assert chain == [first, second]


def test_approximate_chain_stops_at_its_limit():
    """What lies beyond is never matched."""
    chain = chain_hashes(pack(*range(9)), block_size=2, max_blocks=3, model="", cache_salt="")
    assert len(chain) == 3
