"""What prediction is worth: `python -m benchmarks.latency`.

Two tables, both of virtual time, which always say the same: how far several models are from what then came, and how
many SLOs are met by which configuration.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import mul
from typing import Final, Protocol

from benchmarks.latency_workers import KINDS, Request, Simulation, make_requests, share_met
from weft.epp.latency.predictor import MIN_SAMPLES, LatencyModel, Predictor
from weft.epp.latency.regression import LeastSquares

HEAD: Final = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
BALANCED: Final = f"""{HEAD}
plugins:
- {{type: queue-scorer}}
- {{type: kv-cache-utilization-scorer}}
- {{type: prefix-cache-scorer}}
- {{type: max-score-picker}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
  - {{pluginRef: max-score-picker}}
"""


LEARNING: Final = f"""{HEAD}
plugins:
- {{type: predicted-latency-producer, parameters: {{streamingMode: true}}}}
- {{type: random-picker}}
"""


def predicting(picker: str = "weighted-random-picker", strategy: str = "least") -> str:
    """The configuration for SLOs that llm-d's guide has."""
    affine = "{type: prefix-cache-affinity-filter, name: %s-affinity-filter, parameters: {affinityThreshold: %s, "
    affine += "ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}}"
    return f"""{HEAD}
plugins:
- {{type: predicted-latency-producer, parameters: {{streamingMode: true}}}}
- {affine % ("strict", 0.99)}
- {affine % ("loose", 0.8)}
- {{type: latency-scorer, parameters: {{headroomSelectionStrategy: {strategy}}}}}
- {{type: {picker}}}
- {{type: slo-headroom-tier-filter}}
- {{type: latency-slo-admitter}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: strict-affinity-filter}}
  - {{pluginRef: slo-headroom-tier-filter}}
  - {{pluginRef: loose-affinity-filter}}
  - {{pluginRef: latency-scorer}}
  - {{pluginRef: {picker}}}
"""


class Model(Protocol):
    """What learns from one sample at a time."""

    def expected(self, features: Sequence[float]) -> float:
        """Seconds."""

    def learn(self, features: Sequence[float], seconds: float) -> None:
        """One more."""


class Mean:
    """What the last twenty took, whatever is asked."""

    def __init__(self, _: int) -> None:
        self._mean = 0.0

    def expected(self, _: Sequence[float]) -> float:
        return self._mean

    def learn(self, _: Sequence[float], seconds: float) -> None:
        self._mean += (seconds - self._mean) * (0.05 if self._mean else 1.0)


class Linear:
    """Seconds themselves by least squares, over amounts instead of their logarithms."""

    def __init__(self, num_features: int) -> None:
        self._line = LeastSquares(num_features)

    def expected(self, features: Sequence[float]) -> float:
        return max(0.0, self._line.predict(_amounts(features)))

    def learn(self, features: Sequence[float], seconds: float) -> None:
        self._line.learn(_amounts(features), seconds)


class NormalizedLms:
    """A step down the gradient for each sample."""

    def __init__(self, num_features: int) -> None:
        self._weights = [0.0] * num_features

    def expected(self, features: Sequence[float]) -> float:
        return max(0.0, float(sum(map(mul, self._weights, _amounts(features)))))

    def learn(self, features: Sequence[float], seconds: float) -> None:
        amounts = _amounts(features)
        error = seconds - sum(map(mul, self._weights, amounts))
        step = 0.2 * error / (1e-3 + sum(each * each for each in amounts))
        self._weights = [w + step * x for w, x in zip(self._weights, amounts, strict=True)]


def _amounts(features: Sequence[float]) -> list[float]:
    return [features[0], *(math.expm1(each) / 10 for each in features[1:])]


class Recorder(Predictor):
    """A predictor that keeps what it learns from."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.samples: list[tuple[Hashable, Sequence[float], float]] = []

    def learn(
        self, endpoint: Hashable, role: str, features: Sequence[float], seconds: float
    ) -> None:
        self.samples.append((endpoint, features, seconds))
        super().learn(endpoint, role, features, seconds)


def record(config: str, rate: float, seconds: float, seed: int) -> tuple[Recorder, Recorder]:
    """All that there was to learn, of first tokens and of those after them."""
    random.seed(seed)
    simulation = Simulation(config)
    producer = simulation.assembly.plugins["predicted-latency-producer"]
    producer.ttft, producer.tpot = Recorder(6), Recorder(4)
    simulation.run(make_requests(rate, seconds, seed))
    return producer.ttft, producer.tpot


def errors(recorded: Recorder, make: Callable[[int], Model]) -> tuple[float, float]:
    """The median and the 90th percentile of relative errors, each sample predicted before it is learnt."""
    models: dict[Hashable, Model] = {}
    seen: Counter[Hashable] = Counter()
    found = []
    for endpoint, features, seconds in recorded.samples:
        model = models.setdefault(endpoint, make(len(features)))
        if seen[endpoint] >= MIN_SAMPLES:
            found.append(abs(model.expected(features) - seconds) / seconds)
        seen[endpoint] += 1
        model.learn(features, seconds)
    found.sort()
    return found[len(found) // 2], found[len(found) * 9 // 10]


def compare_models(rate: float, seconds: float, seed: int) -> None:
    """How far each is from what came, where requests go anywhere and where they go by prediction."""
    print("| model | latency | random: median | p90 | by prediction: median | p90 |")
    print("| --- | --- | --- | --- | --- | --- |")
    traces = [record(config, rate, seconds, seed) for config in (LEARNING, predicting())]
    models: dict[str, Callable[[int], Model]] = {
        "mean of the last twenty": Mean,
        "normalised LMS": NormalizedLms,
        "least squares": Linear,
        "least squares of logarithms": LatencyModel,
    }
    for name, make in models.items():
        for i, latency in enumerate(("TTFT", "TPOT")):
            cells = [f"{each:.0%}" for trace in traces for each in errors(trace[i], make)]
            print(f"| {name} | {latency} | {' | '.join(cells)} |")


def compare_configurations(rate: float, seconds: float, seeds: Sequence[int]) -> None:
    """SLOs met, of all and by kind."""
    print("| configuration | SLOs met | interactive | documents | without: mean seconds |")
    print("| --- | --- | --- | --- | --- |")
    for name, config in CONFIGURATIONS.items():
        requests = [each for seed in seeds for each in run(config, rate, seconds, seed)]
        kinds = " | ".join(f"{share_met(requests, [kind]):.1%}" for kind in KINDS[:2])
        others = [
            each.ended - each.arrived
            for each in requests
            if not each.kind.ttft_ms and each.ended is not None
        ]
        mean_s = sum(others) / len(others)
        print(f"| {name} | {share_met(requests):.1%} | {kinds} | {mean_s:.1f} |", flush=True)


def run(config: str, rate: float, seconds: float, seed: int) -> list[Request]:
    """The requests of a seed, and what became of them."""
    random.seed(seed)
    requests = make_requests(rate, seconds, seed)
    Simulation(config).run(requests)
    return requests


CONFIGURATIONS: Final = {
    "random": LEARNING,
    "queue + KV + prefix": BALANCED,
    "predicted (`least`, weighted random)": predicting(),
    "predicted (`least`, best score)": predicting("max-score-picker"),
    "predicted (`most`, weighted random)": predicting(strategy="most"),
    "predicted (`most`, best score)": predicting("max-score-picker", "most"),
}


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    arguments = parser.parse_args()
    compare_models(arguments.rate, arguments.seconds, 1)
    print()
    seeds = range(1, arguments.seeds + 1)
    compare_configurations(arguments.rate, arguments.seconds, seeds)


if __name__ == "__main__":
    main()
