"""Tenants of --api-key-file: what the file may say, and what their limits count."""

import json

import pytest

from weft.core.errors import ConfigError, RateLimited
from weft.core.tenants import ApiKeys, Tenant, TenantRules

A = {"name": "a", "keys": ["first", "second"]}


def write(path, *tenants, **others):
    path.write_text(json.dumps({"tenants": list(tenants), **others}))
    return path


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def tenant(**limits):
    clock = Clock()
    return Tenant(TenantRules(name="a", **limits), clock), clock


def test_a_key_is_its_tenants(tmp_path):
    """A tenant may have several; a key that is in no file is nobody's."""
    keys = ApiKeys(["plain"], write(tmp_path / "keys", A, {"name": "b", "keys": ["other"]}))
    assert keys.tenant_of(b"first") is keys.tenant_of(b"second")
    assert keys.tenant_of(b"other").rules.name == "b"
    assert [keys.tenant_of(key) for key in (b"plain", b"wrong")] == [None, None]
    assert [keys.is_valid(key) for key in (b"first", b"plain", b"wrong")] == [True, True, False]


def test_with_salts_each_key_is_a_tenant(tmp_path):
    """A key of --api-key too, or its prompts would share a cache with those of all others."""
    keys = ApiKeys(["plain", "other"], write(tmp_path / "keys", A), salts=True)
    found = [keys.tenant_of(key) for key in (b"plain", b"other", b"first")]
    assert len({one.salted(None) for one in found}) == 3
    assert keys.tenant_of(b"wrong") is None
    assert keys.tenant_of(b"plain").salted("x") == found[0].salted("x") != found[0].salted(None)
    with pytest.raises(ConfigError, match="--salt-by-key needs --api-key or --api-key-file"):
        ApiKeys(salts=True)


@pytest.mark.parametrize(
    ("tenants", "others", "words"),
    [
        ([], {}, "tenants must hold at least one"),
        ([A, A], {}, "duplicate name"),
        ([A, {"name": "b", "keys": ["first"]}], {}, "duplicate key"),
        ([{"name": "a"}], {}, "keys of a must be one or more texts"),
        ([{"name": "a", "keys": [" x"]}], {}, "keys of a must be one or more texts"),
        ([{"name": "a b", "keys": ["x"]}], {}, "name"),
        ([A | {"requests_per_minute": 0}], {}, r">= 1.*requests_per_minute"),
        ([A | {"tokens_per_minute": 1.5}], {}, r"int.*tokens_per_minute"),
        ([A | {"limit": 1}], {}, "unknown field `limit`"),
        ([A], {"keys": []}, "unknown field `keys`"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, tenants, others, words):
    """By the field; and no key is shown."""
    with pytest.raises(ConfigError, match=f"--api-key-file .*{words}") as refused:
        ApiKeys((), write(tmp_path / "keys", *tenants, **others))
    assert "first" not in str(refused.value)


def test_a_file_that_is_none_is_refused(tmp_path):
    """In one line each."""
    for path, data, words in (
        (tmp_path / "none", None, "does not exist"),
        (tmp_path, None, "does not exist"),
        (tmp_path / "text", b"sk-1\n", "malformed"),
        (tmp_path / "bytes", b"\xff", "malformed|invalid"),
        (tmp_path / "large", b" " * (2**20 + 1), "more than 1048576 bytes"),
    ):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(ConfigError, match=words):
            ApiKeys((), path)


def test_requests_are_counted_by_the_minute():
    """A refused one does not count, and the refusal says when there is room."""
    one, clock = tenant(requests_per_minute=2)
    one.admit()
    one.admit()
    with pytest.raises(RateLimited, match="2 requests a minute") as refused:
        one.admit()
    assert refused.value.retry_after_s == pytest.approx(30)
    clock.now += 30
    one.admit()
    clock.now += 3600  # what was not used is not saved up
    one.admit()
    one.admit()
    with pytest.raises(RateLimited):
        one.admit()


def test_tokens_may_be_overdrawn_by_one_answer():
    """Its length is not known before; the next request waits until that is made up for."""
    one, clock = tenant(tokens_per_minute=60)
    one.admit()
    one.spend(60 + 59)
    with pytest.raises(RateLimited, match="60 tokens a minute") as refused:
        one.admit()
    assert refused.value.retry_after_s == pytest.approx(60)
    clock.now += 60
    one.admit()
