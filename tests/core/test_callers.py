"""By which names a server may be asked."""

import pytest

from weft.core.callers import HostRule, is_loopback
from weft.core.errors import ConfigError

PRIVATE = ["host.docker.internal:11434", "Llm.Corp.INTERNAL", "app.localhost", "a_b.internal"]
OWN = [
    *PRIVATE,
    "localhost",
    "LocalHost:8000",
    "127.0.0.1",
    "[::1]:8000",
    "10.0.0.7:80",
    "127.0.0.9",
]
STRANGE = [
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
    "127.0.0.1:80:80", "localhost:", "localhost:x", "a@localhost", "localhost/?", "", "[::1", "::1",
    "internal", ".internal", "a..internal", "internal.example", "a.internal.example", "xinternal:80",
    "a.internal.", "xlocalhost", "1.2.3.4.5", "[evil.example]",
]  # fmt: skip


@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "[::1]", "localhost", "127.0.0.2"])
def test_a_server_on_loopback_is_asked_by_an_address_or_a_private_name(bound: str):
    """Which cannot have been pointed here by somebody else, with any port."""
    rule = HostRule(bound)
    assert [host for host in OWN if not rule.allows(host)] == []
    assert [host for host in STRANGE if rule.allows(host)] == []


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "10.1.2.3"])
def test_a_server_for_other_machines_is_asked_by_any_name(bound: str):
    """It is known by names that nobody told it; control asks for one that is known all the same."""
    rule = HostRule(bound)
    assert rule.allows("llm.example")
    assert not rule.is_own("llm.example")


def test_names_are_added():
    """As they are, whatever their letters' case; where some are, all others are refused, on any address."""
    rule = HostRule("0.0.0.0", ["LLM.example", "host.docker.internal"])
    allowed = ["llm.example", "LLM.EXAMPLE:80", "host.docker.internal:8000", *OWN]
    assert [host for host in allowed if not rule.allows(host)] == []
    assert [host for host in (*STRANGE, "llmXexample", "a.llm.example") if rule.allows(host)] == []


def test_a_star_allows_any_name():
    """For who has a gateway that checks."""
    assert HostRule("127.0.0.1", ["*"]).allows("evil.example")


@pytest.mark.parametrize("name", ["", "a.example:80", "http://a", "*.a", "a b", "a|b", "é"])
def test_a_name_that_no_host_has_is_refused(name: str):
    """At the start, and with the flag's name."""
    with pytest.raises(ConfigError, match="--allowed-hosts"):
        HostRule("127.0.0.1", [name])


def test_what_is_loopback():
    """Addresses and names; one that is nowhere is left to whoever listens there."""
    assert [is_loopback(host) for host in ("127.8.8.8", "[::1]", "localhost")] == [True] * 3
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "a..b")] == [False] * 3
