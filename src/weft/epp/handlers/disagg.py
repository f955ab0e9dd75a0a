"""Disaggregated serving: decode here, and encode or prefill elsewhere when that pays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import (
    Decider,
    Kind,
    NoParameters,
    Parameters,
    Profile,
    Reference,
    Surroundings,
)
from weft.epp.decision.request import Refused
from weft.epp.pool.endpoint import Endpoint
from weft.epp.scorers.prefix import APPROXIMATE, prefix_reference

PREFILL_HEADER = "x-prefiller-host-port"
ENCODE_HEADER = "x-encoder-hosts-ports"
STAGES = ("decode", "encode", "prefill")

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the parameters' parts."""


class StageProfiles(_Part, frozen=True, kw_only=True):
    """The scheduling profile of each stage; a stage without a profile of its name is off."""

    decode: str = "decode"
    prefill: str | None = None
    encode: str | None = None


class StageDeciders(_Part, frozen=True, kw_only=True):
    """What says, per request, whether a stage runs apart; None: whenever it can."""

    prefill: str | None = None
    encode: str | None = None


class DisaggParameters(Parameters, frozen=True, kw_only=True):
    """Profiles and deciders by stage."""

    profiles_: StageProfiles = msgspec.field(default=StageProfiles(), name="profiles")
    deciders: StageDeciders = StageDeciders()
    stage_order: tuple[str, ...] = STAGES

    def __post_init__(self) -> None:
        unknown = [stage for stage in self.stage_order if stage not in STAGES]
        if unknown or len(set(self.stage_order)) != len(self.stage_order):
            raise ValueError(f"stageOrder: must list each of {', '.join(STAGES)} at most once")
        if self.stage_order[:1] != ("decode",):
            raise ValueError("stageOrder: must begin with decode: the others depend on its pick")

    def references(self) -> Iterable[Reference]:
        """The deciders."""
        for stage in ("prefill", "encode"):
            if name := getattr(self.deciders, stage):
                yield Reference(f"deciders.{stage}", name, Kind.DECIDER)

    def profiles(self) -> Iterable[tuple[str, str]]:
        """The profiles that were named, and decode's in any case."""
        for stage in STAGES:
            if name := getattr(self.profiles_, stage):
                yield f"profiles.{stage}", name


class PdParameters(Parameters, frozen=True, kw_only=True):
    """The older spelling, for decode and prefill only."""

    decode_profile: str = "decode"
    prefill_profile: str = "prefill"
    decider_plugin_name: str | None = None

    def references(self) -> Iterable[Reference]:
        """The decider."""
        if self.decider_plugin_name:
            yield Reference("deciderPluginName", self.decider_plugin_name, Kind.DECIDER)

    def profiles(self) -> Iterable[tuple[str, str]]:
        """Both profiles."""
        return (("decodeProfile", self.decode_profile), ("prefillProfile", self.prefill_profile))


class DisaggHandler:
    """Runs decode, then the stages that are wanted. The destination is decode's pick."""

    def __init__(self, parameters: DisaggParameters, around: Surroundings) -> None:
        named = parameters.profiles_
        self._profiles = {
            "decode": named.decode,
            "prefill": named.prefill or "prefill",
            "encode": named.encode or "encode",
        }
        self._deciders: dict[str, Decider] = {
            stage: around.plugin(name)
            for stage in ("prefill", "encode")
            if (name := getattr(parameters.deciders, stage))
        }
        self._later = [stage for stage in parameters.stage_order if stage != "decode"]
        self._decisions = around.metrics.disagg_decisions
        self._name, self._type = around.name, "disagg-profile-handler"
        self._model_names = around.metrics.model_names

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """The picks of every stage that ran, and the headers that tell the decoder of them."""
        decode = self._profiles["decode"]
        picks = {decode: profiles[decode].run(cycle, cycle.candidates).picked}
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
            # Nobody to do it apart: the decoder does all of it.
            return ()

    def _wants(self, stage: str, cycle: Cycle, decode: Endpoint) -> bool:
        decider = self._deciders.get(stage)
        if decider is not None:
            return decider.wants(cycle, decode)
        return stage == "prefill" or cycle.request.num_media > 0


def pd_handler(parameters: PdParameters, around: Surroundings) -> DisaggHandler:
    """The older plugin, in terms of the newer one."""
    profiles = StageProfiles(decode=parameters.decode_profile, prefill=parameters.prefill_profile)
    deciders = StageDeciders(prefill=parameters.decider_plugin_name)
    return DisaggHandler(DisaggParameters(profiles_=profiles, deciders=deciders), around)


class HeadersParameters(Parameters, frozen=True, kw_only=True):
    """The profiles whose picks become headers."""

    prefill_profile: str = "prefill"
    encode_profile: str = "encode"


class PrefixDeciderParameters(Parameters, frozen=True, kw_only=True):
    """How much must be left to compute; 0: never apart."""

    non_cached_tokens: _Count = 0
    prompt_tokens: _Count = 0  # and how long the prompt must be
    prefix_match_info_producer_name: str = APPROXIMATE

    def references(self) -> Iterable[Reference]:
        """Whose prefixes."""
        yield prefix_reference(self.prefix_match_info_producer_name)


class PrefixDecider:
    """Prefills apart when the decoder would have much to compute."""

    def __init__(self, parameters: PrefixDeciderParameters, _: Surroundings) -> None:
        self._parameters = parameters

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        """Whether enough of the prompt is not cached there."""
        parameters = self._parameters
        if not parameters.non_cached_tokens or cycle.num_prompt_tokens < parameters.prompt_tokens:
            return False
        producer = parameters.prefix_match_info_producer_name
        return cycle.num_uncached_tokens(decode, producer) >= parameters.non_cached_tokens


class AlwaysDecider:
    """Always apart."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        """Yes."""
        return True


class MediaDecider:
    """Apart when there is media to encode."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        """Whether the request has any."""
        return cycle.request.num_media > 0


def _header(stage: str, picked: Sequence[Endpoint], *, is_grpc: bool) -> dict[str, str]:
    """The decoder speaks to the others as the client speaks to it."""
    addresses = [endpoint.address(is_grpc=is_grpc) for endpoint in picked]
    if stage == "prefill":
        return {PREFILL_HEADER: addresses[0]}
    return {ENCODE_HEADER: ",".join(addresses)}
