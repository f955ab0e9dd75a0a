"""`single-profile-handler`: runs the only scheduling profile for each request."""

from collections.abc import Mapping

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Plugin, Profile, plugin


@plugin("single-profile-handler", Kind.HANDLER)
class SingleProfileHandler(Plugin[NoParameters]):
    """Runs the only scheduling profile."""

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """Returns the endpoint that the profile picks."""
        ((name, profile),) = profiles.items()
        return Schedule(name, {name: profile.run(cycle, cycle.destinations).picked})
