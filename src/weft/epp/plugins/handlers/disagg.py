"""Disaggregated serving: a request decodes on one endpoint; encode and prefill may run on other endpoints."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from weft.core.headers import ENCODERS, PREFILLER
from weft.epp.config.parameters import Ignored, Kind, Parameters, Part, Reference, Refers
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Decider, Profile, Surroundings, plugin, plugin_type
from weft.epp.plugins.handlers.deciders import PREFIX_DECIDER
from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.values import Refused

STAGES = ("decode", "encode", "prefill")
# Parameters with which the reference finds cached prefixes.
_Ignored = Annotated[str | None, Ignored("the decider names the prefix producer that it uses")]


class StageProfiles(Part, frozen=True, kw_only=True):
    """The scheduling profile of each stage. A stage without a profile is off."""

    decode: str = "decode"
    prefill: str | None = None
    encode: str | None = None


class StageDeciders(Part, frozen=True, kw_only=True):
    """The decider of each stage, which chooses for each request whether the stage runs on a separate endpoint; None
    means never.
    """

    prefill: str | None = None
    encode: str | None = None


class DisaggParameters(Parameters, frozen=True, kw_only=True):
    """Profiles and deciders by stage; also accepts the older names of these parameters."""

    profiles_: StageProfiles = msgspec.field(default=StageProfiles(), name="profiles")
    deciders: StageDeciders = StageDeciders()
    stage_order: tuple[str, ...] | str = STAGES
    decode_profile: str | None = None
    prefill_profile: str | None = None
    encode_profile: str | None = None
    # For the prefill stage, once the only stage besides decode.
    decider_plugin_name: str | None = None
    prefill_decider_plugin_name: str | None = None
    encode_decider_plugin_name: str | None = None

    def __post_init__(self) -> None:
        if self.decider_plugin_name is not None and self.prefill_decider_plugin_name is not None:
            raise ValueError(
                "deciderPluginName and prefillDeciderPluginName mean the same; give one"
            )
        if isinstance(self.stage_order, str):
            if self.stage_order != "decode-first":
                raise ValueError(
                    "stageOrder: must be decode-first: the other stages depend on decode's pick"
                )
            return
        unknown = [stage for stage in self.stage_order if stage not in STAGES]
        if unknown or len(set(self.stage_order)) != len(self.stage_order):
            raise ValueError(f"stageOrder: must list each of {', '.join(STAGES)} at most once")
        if self.stage_order[:1] != ("decode",):
            raise ValueError("stageOrder: must begin with decode: the others depend on its pick")

    def references(self) -> Iterable[Reference]:
        """Yields references to the deciders."""
        for stage in ("prefill", "encode"):
            key, name = self.decider(stage)
            if name:
                yield Reference(key, name, Kind.DECIDER)

    def profiles(self) -> Iterable[tuple[str, str]]:
        """Yields the scheduling profiles that are named, each after the key that names it."""
        for stage in STAGES:
            key, name = self.profile(stage)
            if name:
                yield key, name

    def decider(self, stage: str) -> tuple[str, str | None]:
        """Returns the key that names the decider of a stage, and the decider's name."""
        if stage == "prefill" and self.decider_plugin_name:
            return "deciderPluginName", self.decider_plugin_name
        flat: str | None = getattr(self, f"{stage}_decider_plugin_name")
        if flat:
            return f"{stage}DeciderPluginName", flat
        return f"deciders.{stage}", getattr(self.deciders, stage)

    def profile(self, stage: str) -> tuple[str, str | None]:
        """Returns the key that names the scheduling profile of a stage, and the profile's name."""
        flat: str | None = getattr(self, f"{stage}_profile")
        if flat:
            return f"{stage}Profile", flat
        return f"profiles.{stage}", getattr(self.profiles_, stage)


class PdParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of the older plugin type, which knows only decode and prefill."""

    decode_profile: str = "decode"
    prefill_profile: str = "prefill"
    decider_plugin_name: Annotated[str, Refers(Kind.DECIDER, PREFIX_DECIDER)] = PREFIX_DECIDER
    prefix_plugin_type: _Ignored = None
    prefix_plugin_name: _Ignored = None
    prefix_match_info_producer_name: _Ignored = None
    primary_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0

    def __post_init__(self) -> None:
        if self.primary_port:
            raise ValueError("primaryPort is refused: it belongs to data-parallel-profile-handler")

    def profiles(self) -> Iterable[tuple[str, str]]:
        """Yields the names of the decode profile and the prefill profile, each after its key."""
        return (("decodeProfile", self.decode_profile), ("prefillProfile", self.prefill_profile))


@plugin("disagg-profile-handler", Kind.HANDLER, DisaggParameters)
class DisaggHandler:
    """Picks the decode endpoint, then endpoints for the stages that run separately. The request is sent to the decode
    endpoint.
    """

    def __init__(self, parameters: DisaggParameters, around: Surroundings) -> None:
        self._profiles = {stage: parameters.profile(stage)[1] or stage for stage in STAGES}
        self._deciders: dict[str, Decider] = {
            stage: around.plugin(name)
            for stage in ("prefill", "encode")
            if (name := parameters.decider(stage)[1])
        }
        order = parameters.stage_order
        stages = STAGES if isinstance(order, str) else order
        self._later = [stage for stage in stages if stage != "decode"]
        self._decisions = around.metrics.disagg_decisions
        self._name, self._type = around.name, "disagg-profile-handler"
        self._model_names = around.metrics.model_names

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """Returns the endpoint of every stage that runs separately, and headers that name these endpoints to the decode
        endpoint.
        """
        decode = self._profiles["decode"]
        picks = {decode: profiles[decode].run(cycle, cycle.destinations).picked}
        headers: dict[str, str] = {}
        ran = []
        for stage in self._later:
            found = self._run(stage, cycle, profiles, picks[decode][0])
            if found:
                picks[self._profiles[stage]] = found
                headers |= _header(stage, found, is_grpc=cycle.request.is_grpc)
                ran.append(stage)
        kind = "-".join([stage for stage in ("encode", "prefill") if stage in ran] + ["decode"])
        model = self._model_names(cycle.model) or "unknown"
        self._decisions.labels(self._name, self._type, model, kind if ran else "decode-only").inc()
        return Schedule(decode, picks, headers)

    def _run(
        self, stage: str, cycle: Cycle, profiles: Mapping[str, Profile], decode: Endpoint
    ) -> Sequence[Endpoint]:
        profile = profiles.get(self._profiles[stage])
        if profile is None or not self._wants(stage, cycle, decode):
            return ()
        try:
            return profile.run(cycle, cycle.candidates).picked
        except Refused:
            # no endpoint for this stage: the decoder does its work
            return ()

    def _wants(self, stage: str, cycle: Cycle, decode: Endpoint) -> bool:
        decider = self._deciders.get(stage)
        return decider is not None and decider.wants(cycle, decode)


@plugin("pd-profile-handler", Kind.HANDLER, PdParameters, replacement="disagg-profile-handler")
def pd_handler(parameters: PdParameters, around: Surroundings) -> DisaggHandler:
    """Disaggregated serving as in `disagg-profile-handler`, with parameters of older names."""
    profiles = StageProfiles(decode=parameters.decode_profile, prefill=parameters.prefill_profile)
    deciders = StageDeciders(prefill=parameters.decider_plugin_name)
    return DisaggHandler(DisaggParameters(profiles_=profiles, deciders=deciders), around)


class HeadersParameters(Parameters, frozen=True, kw_only=True):
    """The profiles whose picked endpoints are named in headers."""

    prefill_profile: str = "prefill"
    encode_profile: str = "encode"


def _header(stage: str, picked: Sequence[Endpoint], *, is_grpc: bool) -> dict[str, str]:
    """Returns the header that names the endpoint of a stage. The decode endpoint connects to it with the client's
    protocol, gRPC or HTTP.
    """
    addresses = [endpoint.address(is_grpc=is_grpc) for endpoint in picked]
    if stage == "prefill":
        return {PREFILLER: addresses[0]}
    return {ENCODERS: ",".join(addresses)}


ROWS: Final = (
    plugin_type(
        "disagg-headers-handler",
        (),
        parameters=HeadersParameters,
        aliases=("prefill-header-handler",),
        replacement="no other plugin: the profile handler sets the headers",
    ),
)
