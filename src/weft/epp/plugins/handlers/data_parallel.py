"""`data-parallel-profile-handler`: routes a request to a data-parallel rank of a host by a header."""

from collections.abc import Mapping

from weft.core.address import join_host_port
from weft.core.headers import DATA_PARALLEL
from weft.epp.config.parameters import Kind, Parameters, Port
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Plugin, Profile, plugin


class DataParallelParameters(Parameters, frozen=True, kw_only=True):
    """The port of a host that receives the requests for all its ranks."""

    primary_port: Port = 8000


@plugin(
    "data-parallel-profile-handler",
    Kind.HANDLER,
    DataParallelParameters,
    replacement="one endpoint per rank",
)
class DataParallelHandler(Plugin[DataParallelParameters]):
    """Sends the request to the host's primary port, and names the port of the chosen rank in a header."""

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """Returns the endpoint that the only profile picks, at the primary port of its host."""
        ((name, profile),) = profiles.items()
        picked = profile.run(cycle, cycle.destinations).picked
        return Schedule(
            name,
            {name: picked},
            {DATA_PARALLEL: picked[0].host_port},
            destination=join_host_port(picked[0].host, self._parameters.primary_port),
        )
