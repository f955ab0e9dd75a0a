"""`data-parallel-profile-handler`: the port by data-parallel rank."""

from collections.abc import Mapping

from weft.core.address import join_host_port
from weft.core.headers import DATA_PARALLEL
from weft.epp.config.parameters import Kind, Parameters, Port
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Plugin, Profile, plugin


class DataParallelParameters(Parameters, frozen=True, kw_only=True):
    """The port at which requests for every rank of a host arrive."""

    primary_port: Port = 8000


@plugin(
    "data-parallel-profile-handler",
    Kind.HANDLER,
    DataParallelParameters,
    replacement="one endpoint per rank",
)
class DataParallelHandler(Plugin[DataParallelParameters]):
    """Sends the request to the host's primary port and names the chosen rank's port in a header."""

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """The only profile's pick, at the primary port."""
        ((name, profile),) = profiles.items()
        picked = profile.run(cycle, cycle.candidates).picked
        return Schedule(
            name,
            {name: picked},
            {DATA_PARALLEL: picked[0].host_port},
            destination=join_host_port(picked[0].host, self._parameters.primary_port),
        )
