"""Handlers that choose the profile by header, or the port by data-parallel rank."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Parameters, Profile, Surroundings
from weft.epp.decision.request import Refused
from weft.epp.pool.endpoint import join_host_port

DATA_PARALLEL_HEADER = "x-data-parallel-host-port"


class HeaderHandlerParameters(Parameters, frozen=True, kw_only=True):
    """The header, and the profile of requests without it."""

    header_name: Annotated[str, msgspec.Meta(min_length=1)] = "EPP-Profile"
    default_profile: str = "decode"

    def profiles(self) -> Iterable[tuple[str, str]]:
        """The default."""
        return (("defaultProfile", self.default_profile),)


class HeaderHandler:
    """Runs the profile that a header names."""

    def __init__(self, parameters: HeaderHandlerParameters, _: Surroundings) -> None:
        self._header = parameters.header_name.lower()
        self._default = parameters.default_profile

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """That profile's pick; raises `Refused` if there is no such profile."""
        name = cycle.request.headers.get(self._header) or self._default
        profile = profiles.get(name)
        if profile is None:
            raise Refused(429, f"header {self._header}: no scheduling profile has this name")
        return Schedule(name, {name: profile.run(cycle, cycle.candidates).picked})


class DataParallelParameters(Parameters, frozen=True, kw_only=True):
    """Where requests to every rank of a host go in."""

    primary_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8000


class DataParallelHandler:
    """Sends the request to the host's primary port and names the chosen rank's port in a header."""

    def __init__(self, parameters: DataParallelParameters, _: Surroundings) -> None:
        self._port = parameters.primary_port

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """The only profile's pick, at the primary port."""
        ((name, profile),) = profiles.items()
        picked = profile.run(cycle, cycle.candidates).picked
        return Schedule(
            name,
            {name: picked},
            {DATA_PARALLEL_HEADER: picked[0].host_port},
            destination=join_host_port(picked[0].host, self._port),
        )
