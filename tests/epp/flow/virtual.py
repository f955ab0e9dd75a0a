"""Time that passes only when everybody waits for it, and servers that take that much of it."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from benchmarks.scale.virtual_time import run_virtually
from tests.epp.pools import Bench, bench, pool_of, request
from weft.epp.decision.tickets import Decision, Ending
from weft.epp.pool.endpoint import Load
from weft.epp.pool.objects import Objects
from weft.epp.pool.pool import Pool
from weft.epp.request.values import Refused, Usage

_T = TypeVar("_T")
HEAD = "featureGates: [flowControl]\n"
# One endpoint takes `maxConcurrency`; nothing is to be polled.
CONCURRENCY = """\
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: %d}}
- {type: active-request-scorer}
- {type: round-robin-fairness-policy}
- {type: program-aware-fairness}
- {type: edf-ordering-policy}
- {type: slo-deadline-ordering-policy}
- {type: soft-reflective-ceiling-policy}
- {type: priority-holdback-policy, parameters: {minCeiling: 0.5}}
"""
ROUND_ROBIN = "defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy}"


def concurrency(limit: int, flow: str = "") -> str:
    """A configuration whose endpoints take `limit` requests each."""
    flow = f", {flow}" if flow else ""
    return (
        f"{HEAD}{CONCURRENCY % limit}"
        f"flowControl: {{saturationDetector: {{pluginRef: concurrency-detector}}{flow}}}\n"
    )


def run(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run it in virtual time."""
    return run_virtually(main())


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Has a test pass in virtual time."""

    @wraps(test)
    def passed(*args: Any, **fields: Any) -> None:
        run_virtually(test(*args, **fields))

    return passed


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Result:
    """What became of one request."""

    name: str
    seconds: float
    endpoint: str = ""
    refused: Refused | None = None


@dataclass
class Scene:
    """A director in virtual time, its requests, and what became of them, in the order of the ends."""

    made: Bench
    results: list[Result] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)  # in the order of the decisions
    decisions: dict[str, Decision] = field(default_factory=dict)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def send(
        self,
        name: str,
        service_s: float = 1.0,
        *,
        objective: str = "",
        flow: str = "",
        **fields: Any,
    ) -> "asyncio.Task[None]":
        """A request that then is served for so long."""
        headers = fields.pop("headers", {}) | {
            "x-llm-d-inference-objective": objective,
            "x-llm-d-inference-fairness-id": flow,
        }
        task = asyncio.create_task(self._one(name, service_s, headers, fields))
        self.tasks.append(task)
        return task

    async def _one(
        self, name: str, service_s: float, headers: dict[str, str], fields: dict[str, Any]
    ) -> None:
        began = now()
        tokens = range(fields.pop("num_tokens", 3))
        wanted = request(*tokens, request_id=name, headers=headers, **fields)
        try:
            decision = await self.made.director.pick(wanted, None)
        except Refused as refused:
            self.results.append(Result(name, now() - began, refused=refused))
            return
        self.placed.append(name)
        self.decisions[name] = decision
        await asyncio.sleep(service_s)
        ticket = decision.ticket
        assert ticket is not None
        self.made.director.on_usage(ticket, Usage(num_prompt_tokens=10, num_completion_tokens=20))
        self.made.director.on_end(ticket, Ending.NATURAL)
        self.results.append(Result(name, now() - began, endpoint=decision.endpoints[0]))

    async def finish(self) -> list[Result]:
        """Wait for all of them."""
        await asyncio.gather(*self.tasks)
        return self.results

    def of(self, prefix: str) -> list[Result]:
        """Results of requests whose names begin so."""
        return [each for each in self.results if each.name.startswith(prefix)]

    def rows(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of a series, as a scraper gets them."""
        self.made.assembly.metrics.refresh()
        return [
            (each.labels, each.value)
            for family in self.made.assembly.metrics.registry.collect()
            if family.name == name
            for each in family.samples
        ]

    def outcomes(self) -> dict[str, float]:
        """How many waits ended how."""
        counts: dict[str, float] = {}
        for family in self.made.assembly.metrics.registry.collect():
            if family.name == "llm_d_epp_flow_control_requests":
                for each in family.samples:
                    if each.name.endswith("_total"):
                        name = each.labels["outcome"]
                        counts[name] = counts.get(name, 0) + each.value
        return counts


def scene(
    text: str, pool: Pool | None = None, priorities: dict[str, int] | None = None, **settings: Any
) -> Scene:
    """One, as `text` configures it."""
    loop = asyncio.get_running_loop()
    made = bench(text, pool_of(1) if pool is None else pool, loop.time, **settings)
    made.director.objects = Objects(priorities or {})
    return Scene(made)


async def arrivals(
    made: Scene, prefix: str, *, per_second: float, seconds: float, service_s: float, **how: Any
) -> None:
    """Requests at random times, at this rate, served for times around `service_s`."""
    drawn = random.Random(prefix)
    end, number = now() + seconds, 0
    while now() < end:
        made.send(f"{prefix}{number}", service_s * drawn.uniform(0.5, 1.5), **how)
        number += 1
        await asyncio.sleep(drawn.expovariate(per_second))


def report(pool: Pool, **load: Any) -> None:
    """Every endpoint reports this load, as of now."""
    for endpoint in pool:
        endpoint.observe(Load(**load), polled_at=now())
