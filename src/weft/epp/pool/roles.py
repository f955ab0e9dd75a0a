"""Roles of endpoints (prefill, decode, encode), read from a label."""

from collections.abc import Sequence
from typing import Final

from weft.epp.pool.endpoint import Endpoint

ROLE_LABEL: Final = "llm-d.ai/role"
DECODE_ROLES: Final = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
PREFILL_ROLES: Final = frozenset(
    {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}
)
ENCODE_ROLES: Final = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})


def prefills(endpoint: Endpoint) -> bool:
    """True if the endpoint has a role that includes prefill."""
    return endpoint.labels.get(ROLE_LABEL) in PREFILL_ROLES


def decodes(endpoint: Endpoint) -> bool:
    """True if the endpoint has a role that includes decode, or no role."""
    return endpoint.labels.get(ROLE_LABEL, "decode") in DECODE_ROLES


def encodes(endpoint: Endpoint) -> bool:
    """True if the endpoint has a role that includes encoding of media."""
    return endpoint.labels.get(ROLE_LABEL) in ENCODE_ROLES


def by_stage(endpoints: Sequence[Endpoint]) -> dict[str, Sequence[Endpoint]]:
    """Returns the endpoints of each stage. An endpoint that serves both stages is in both lists."""
    stages = {
        "prefill": [each for each in endpoints if prefills(each)],
        "decode": [each for each in endpoints if decodes(each)],
    }
    return {stage: members for stage, members in stages.items() if members}
