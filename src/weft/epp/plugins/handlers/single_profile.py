"""`single-profile-handler`: one profile decides."""

from collections.abc import Mapping
from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Profile, Surroundings, plugin_type


class SingleProfileHandler:
    """Runs the only profile there is."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """That profile's pick."""
        ((name, profile),) = profiles.items()
        return Schedule(name, {name: profile.run(cycle, cycle.candidates).picked})


ROWS: Final = (plugin_type("single-profile-handler", Kind.HANDLER, SingleProfileHandler),)
