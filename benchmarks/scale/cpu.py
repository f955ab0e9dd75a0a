"""Where the picker's own processor time ends: real decisions, by number of endpoints."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.scale.policies import Policy
from weft.epp.build import Picker, load_config, make_picker
from weft.epp.config.options import PickerOptions
from weft.epp.plugins.producers.precise_prefix import PrecisePrefixProducer
from weft.epp.pool.endpoint import Endpoint, EndpointSpec, Load
from weft.epp.prefix.events import Stored
from weft.epp.request.values import InferenceRequest, Prompt

_NUM_PROMPTS = 64
_NUM_TOKENS = 2000
_BLOCK_SIZE = 16
_MODEL = "measured"


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of processor time a decision: the rounds' median, least and most."""

    median: float
    least: float
    most: float


class _Rounds:
    """A picker whose endpoints hold prompts, and requests for it."""

    def __init__(self, policy: Policy, num_endpoints: int) -> None:
        self._random = random.Random(f"{num_endpoints} endpoints")
        self._prompts = [self._random.randbytes(4 * _NUM_TOKENS) for _ in range(_NUM_PROMPTS)]
        self._num_requests = 0
        options = PickerOptions(config_text=policy.config)
        self.picker: Picker = make_picker(load_config(options), options)
        hosts = [f"10.1.{n // 250}.{n % 250 + 1}" for n in range(num_endpoints)]
        specs = [EndpointSpec(name=host, address=host, port=8000) for host in hosts]
        self.picker.pool.replace("measured", [(spec, spec.address) for spec in specs])
        for number, endpoint in enumerate(self.picker.pool):
            self._tell(number, endpoint)

    def _tell(self, number: int, endpoint: Endpoint) -> None:
        load = Load(
            num_waiting=number % 5, num_running=number % 7, kv_usage=number % 11 / 11,
            block_size=_BLOCK_SIZE, num_blocks=25_000,
        )  # fmt: skip
        endpoint.observe(load, polled_at=time.monotonic())
        # Each prompt is held by a quarter of the endpoints, to some length.
        held = self._random.sample(range(_NUM_PROMPTS), _NUM_PROMPTS // 4)
        for plugin in self.picker.assembly.plugins.values():
            if isinstance(plugin, PrecisePrefixProducer):
                plugin.index.base_models[endpoint] = _MODEL
                for each in held:
                    num_blocks = self._random.randrange(20, _NUM_TOKENS // _BLOCK_SIZE)
                    event = Stored(
                        hashes=[each * 1000 + block for block in range(num_blocks)], parent=None,
                        tokens=self._prompts[each][: 4 * _BLOCK_SIZE * num_blocks],
                        block_size=_BLOCK_SIZE,
                    )  # fmt: skip
                    plugin.index.apply(endpoint, event, model=_MODEL)

    def _request(self) -> InferenceRequest:
        self._num_requests += 1
        own = self._random.randbytes(4 * 200)
        return InferenceRequest(
            request_id=str(self._num_requests), path="/v1/completions", headers={},
            parser="openai-parser", model=_MODEL,
            prompts=(Prompt(packed=self._random.choice(self._prompts)[: -len(own)] + own),),
        )  # fmt: skip

    async def measure(self, num_decisions: int) -> float:
        """Microseconds of this process's time a decision."""
        requests = [self._request() for _ in range(num_decisions)]
        director = self.picker.director
        started = time.process_time()
        for request in requests:
            await director.pick(request, None)
        spent_s = time.process_time() - started
        for endpoint in self.picker.pool:  # as if all had been polled
            endpoint.observe(endpoint.load, polled_at=time.monotonic() + 1.0)
        return spent_s / num_decisions * 1e6


async def _cost(policy: Policy, num_endpoints: int, num_rounds: int) -> Cost:
    rounds = _Rounds(policy, num_endpoints)
    num_decisions = min(500, max(60, 20_000 // num_endpoints))
    await rounds.measure(num_decisions)  # caches, and prompts that nobody had seen
    spent = [await rounds.measure(num_decisions) for _ in range(num_rounds)]
    await rounds.picker.close()
    return Cost(median(spent), min(spent), max(spent))


def costs(policy: Policy, endpoint_counts: Sequence[int], num_rounds: int) -> list[Cost]:
    """What a decision costs with so many endpoints."""
    return [asyncio.run(_cost(policy, count, num_rounds)) for count in endpoint_counts]
