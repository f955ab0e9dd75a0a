"""`single-profile-handler`: one profile decides."""

from collections.abc import Mapping

from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import NoParameters, Profile, Surroundings


class SingleProfileHandler:
    """Runs the only profile there is."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """That profile's pick."""
        ((name, profile),) = profiles.items()
        return Schedule(name, {name: profile.run(cycle, cycle.candidates).picked})
