"""Admitters: plugins that decide whether a request is admitted, after the producers have run."""

import random
from typing import Annotated, Final

import msgspec

from weft.epp.config.parameters import AtLeastOne, Kind, Parameters, Positive
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import LATENCY, LatencyProducer, Plugin, Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.values import Drop, Refused

_COLD_KV_USAGE: Final = 0.02  # the reference's value


class ProbabilisticParameters(Parameters, frozen=True, kw_only=True):
    """Load at which an endpoint counts as full, and how steeply the probability of refusal rises below that load."""

    queue_depth_threshold: AtLeastOne = 5
    kv_cache_util_threshold: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    power: Positive = 5.0
    k: Positive = 300.0


@plugin("probabilistic-admitter", Kind.ADMITTER, ProbabilisticParameters)
class ProbabilisticAdmitter:
    """Refuses requests of negative priority with a probability that grows with the saturation of the candidates."""

    def __init__(self, parameters: ProbabilisticParameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._max_age_s = around.max_load_age_s

    def admit(self, cycle: Cycle) -> None:
        """Raises `Refused` if the request is refused to reduce the load."""
        if cycle.priority >= 0 or not cycle.candidates:
            return
        ratios = [self._ratio(each, cycle.now) for each in cycle.candidates]
        saturation = sum(ratios) / len(ratios)
        # The base is bounded first: a large power of a long queue overflows a float.
        chance = min(
            1.0, self._parameters.k * min(saturation, 1e3) ** min(self._parameters.power, 1e2)
        )
        if random.random() < chance:
            raise Refused(
                429,
                f"refused with probability {chance:.2f}: saturation is {saturation:.2f}, priority is "
                f"{cycle.priority}",
                Drop.SATURATED,
            )

    def _ratio(self, endpoint: Endpoint, now: float) -> float:
        if endpoint.is_stale(now, self._max_age_s):
            return 1.0  # as in the reference, an endpoint without load data counts as full
        return max(
            endpoint.load.num_waiting / self._parameters.queue_depth_threshold,
            endpoint.load.kv_usage / self._parameters.kv_cache_util_threshold,
        )


class LatencySloParameters(Parameters, frozen=True, kw_only=True):
    """Name of the producer of the latency predictions."""

    latency_prediction_info_producer_name: LatencyProducer = LATENCY


@plugin("latency-slo-admitter", Kind.ADMITTER, LatencySloParameters)
class LatencySloAdmitter(Plugin[LatencySloParameters]):
    """Refuses requests of negative priority if every candidate is predicted to miss their SLO."""

    def admit(self, cycle: Cycle) -> None:
        """Raises `Refused` if every candidate is predicted to miss the SLO. A candidate that is idle or nearly empty
        prevents this: it may be faster than predicted.
        """
        known = cycle.predictions.get(self._parameters.latency_prediction_info_producer_name)
        if cycle.priority >= 0 or known is None or not known.slo:
            return
        predictions = [known.of.get(each) for each in cycle.candidates]
        if not any(predictions) or any(each is not None and each.meets for each in predictions):
            return
        if any(map(_may_do_better, cycle.candidates)):
            return
        raise Refused(
            429,
            f"no endpoint is predicted to meet the request's SLO, and priority {cycle.priority} is sheddable",
            Drop.SATURATED,
        )


def _may_do_better(endpoint: Endpoint) -> bool:
    return not endpoint.expected_running or endpoint.load.kv_usage < _COLD_KV_USAGE
