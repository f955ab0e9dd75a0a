"""`session-affinity-scorer`: where it looks for the id of a session."""

import pytest

from tests.epp.pools import bench, pool_of, request
from weft.core.errors import ConfigError

BY_ATTRIBUTE = """\
plugins:
- {type: session-id-producer, parameters: {cookieName: sid}}
- type: session-affinity-scorer
  parameters:
    strategy: session_id
    sessionIdConfig: {sources: [{attribute: SessionIDDataKey}, {header: x-session-id}]}
"""


@pytest.mark.parametrize("headers", [{"cookie": "sid=a"}, {"x-session-id": "a"}])
def test_a_session_may_be_named_by_an_attribute_or_a_header(headers: dict[str, str]):
    """The attribute is the id that a `session-id-producer` has found; the first source that has an id counts."""
    made = bench(BY_ATTRIBUTE, pool_of(4))
    first = made.pick(request(1, headers=headers)).endpoints
    for number in range(2, 8):
        made.pick(request(number))
        assert made.pick(request(number, headers=headers)).endpoints == first


def test_the_producer_of_an_attribute_is_made_where_none_is_configured():
    """It has no default header, so the error names what it needs."""
    alone = BY_ATTRIBUTE.replace(
        "- {type: session-id-producer, parameters: {cookieName: sid}}\n", ""
    )
    with pytest.raises(ConfigError, match="headerName and cookieName"):
        bench(alone, pool_of(1))


@pytest.mark.parametrize(
    "source", ["{}", "{header: a, attribute: SessionIDDataKey}", "{attribute: x}"]
)
def test_a_source_is_a_header_or_the_attribute(source: str):
    """One of the two, and no other attribute holds an id."""
    text = BY_ATTRIBUTE.replace("{attribute: SessionIDDataKey}", source)
    with pytest.raises(ConfigError, match="sources"):
        bench(text, pool_of(1))
