"""`header-profile-handler`: runs the scheduling profile that a request header names."""

from collections.abc import Iterable, Mapping

from weft.epp.config.parameters import Kind, Name, Parameters
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Profile, Surroundings, plugin
from weft.epp.request.values import Refused


class HeaderHandlerParameters(Parameters, frozen=True, kw_only=True):
    """The name of the header, and the profile for requests without the header."""

    header_name: Name = "EPP-Profile"
    default_profile: str = "decode"

    def profiles(self) -> Iterable[tuple[str, str]]:
        """Yields the default profile after its key."""
        return (("defaultProfile", self.default_profile),)


@plugin("header-profile-handler", Kind.HANDLER, HeaderHandlerParameters, is_alpha=True)
class HeaderHandler:
    """Runs the profile that a header names."""

    def __init__(self, parameters: HeaderHandlerParameters, _: Surroundings) -> None:
        self._header = parameters.header_name.lower()
        self._default = parameters.default_profile

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """Returns the endpoint that the named profile picks. Raises `Refused` if there is no such profile."""
        name = cycle.request.headers.get(self._header) or self._default
        profile = profiles.get(name)
        if profile is None:
            raise Refused(429, f"header {self._header}: no scheduling profile has this name")
        return Schedule(name, {name: profile.run(cycle, cycle.destinations).picked})
