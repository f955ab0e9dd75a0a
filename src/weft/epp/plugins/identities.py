"""`agent-identity`: the fairness id of a request, from session headers of coding agents."""

from collections.abc import Mapping
from typing import Final

from weft.epp.config.parameters import Kind, Name, Parameters
from weft.epp.decision.plugin import Surroundings, plugin

_SESSION_HEADERS: Final = (
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
)


class AgentIdentityParameters(Parameters, frozen=True, kw_only=True):
    """Names of additional headers, which are read after the known ones."""

    additional_session_headers: tuple[Name, ...] = ()


@plugin("agent-identity", Kind.IDENTITY, AgentIdentityParameters, is_alpha=True)
class AgentIdentity:
    """Uses a request's first session header as its fairness id. A fairness id that the client sends takes
    precedence.
    """

    def __init__(self, parameters: AgentIdentityParameters, _: Surroundings) -> None:
        added = (name.lower() for name in parameters.additional_session_headers)
        self._headers = (*_SESSION_HEADERS, *added)

    def fairness_id(self, headers: Mapping[str, str]) -> str:
        """Returns the session id in the headers; "" if no header has one."""
        for name in self._headers:
            if value := headers.get(name, "").strip():
                return value
        return ""
