"""Roles of endpoints, from a label."""

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
    """True if the endpoint decodes; an endpoint without a role does."""
    return endpoint.labels.get(ROLE_LABEL, "decode") in DECODE_ROLES


def encodes(endpoint: Endpoint) -> bool:
    """True if the endpoint has a role that includes encoding of media."""
    return endpoint.labels.get(ROLE_LABEL) in ENCODE_ROLES


def by_stage(endpoints: Sequence[Endpoint]) -> dict[str, Sequence[Endpoint]]:
    """The endpoints of each stage; an endpoint for both stages is in both."""
    stages = {
        "prefill": [each for each in endpoints if prefills(each)],
        "decode": [each for each in endpoints if decodes(each)],
    }
    return {stage: members for stage, members in stages.items() if members}
