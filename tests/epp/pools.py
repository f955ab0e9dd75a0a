"""Pools, requests and directors for tests: no sockets, and a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.busy import PATIENCE_S
from weft.epp.assembly import Assembly
from weft.epp.build import Picker, open_picker
from weft.epp.config.config import read_config
from weft.epp.config.options import PickerOptions
from weft.epp.config.parameters import Parameters
from weft.epp.decision.cycle import Cycle, PrefixMatch
from weft.epp.decision.director import Director
from weft.epp.decision.plugin import Surroundings
from weft.epp.decision.tickets import Decision
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint, EndpointSpec, Load
from weft.epp.pool.objects import ModelRewrite, Rule
from weft.epp.pool.pool import Pool
from weft.epp.request.values import InferenceRequest, Prompt
from weft.epp.resolve import resolve

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def spec(number: int, *, port: int = 8000, **labels: str) -> EndpointSpec:
    """Endpoint e1 at 10.0.0.1, and so on; `_` in a label stands for what labels need."""
    named = dict(labels.items())
    return EndpointSpec(name=f"e{number}", address=f"10.0.0.{number}", port=port, labels=named)


def make_pool(*specs: EndpointSpec) -> Pool:
    """A pool of these."""
    pool = Pool()
    pool.replace("test", [(each, each.address) for each in specs])
    return pool


def pool_of(count: int) -> Pool:
    """A pool of `count` endpoints."""
    return make_pool(*(spec(i + 1) for i in range(count)))


def with_loads(pool: Pool, *loads: Load) -> Sequence[Endpoint]:
    """Give each endpoint its load."""
    for endpoint, load in zip(pool, loads, strict=True):
        endpoint.observe(load, polled_at=1000.0)
    return list(pool)


def around(
    pool: Pool | None = None, name: str = "it", built: Mapping[str, Any] | None = None
) -> Surroundings:
    """What a plugin gets."""
    return Surroundings(name, pool or Pool(), PickerMetrics(), 3.0, built or {})


def parameters(type_: type[Parameters], **values: Any) -> Any:
    """Parameters as a file gives them."""
    return msgspec.convert(values, type_)


def rewrite(name: str, target: str, *models: str) -> ModelRewrite:
    """An InferenceModelRewrite that leads requests for these models, or for all, to one."""
    matches = [{"model": {"value": model}} for model in models]
    rule = {"matches": matches, "targets": [{"modelRewrite": target}]}
    return ModelRewrite(name, "", [msgspec.convert(rule, Rule)])


def request(
    *token_ids: int, text: str | None = None, request_id: str = "r", **fields: Any
) -> InferenceRequest:
    """A request for token ids, or for a text."""
    prompt = Prompt(text=text) if text is not None else Prompt(token_ids=token_ids)
    headers = fields.pop("headers", {})
    return InferenceRequest(
        request_id=request_id, path="/v1/completions", headers=headers, parser="openai-parser",
        prompts=(prompt,), **fields,
    )  # fmt: skip


def cycle(
    candidates: Sequence[Endpoint],
    *,
    num_tokens: int = 0,
    match: PrefixMatch | None = None,
    producer: str = "approx-prefix-cache-producer",
    **fields: Any,
) -> Cycle:
    """A request on its way."""
    model = fields.pop("model", "")
    made = Cycle(
        request=request(model=model, **fields), model=model, candidates=candidates, now=1000.0
    )
    made.num_prompt_tokens = num_tokens
    if match is not None:
        made.prefixes[producer] = match
    return made


@dataclass
class Bench:
    """A director over a pool, with a clock."""

    director: Director
    pool: Pool
    assembly: Assembly
    clock: Any

    def pick(self, wanted: InferenceRequest, subset: tuple[str, ...] | None = None) -> Decision:
        return asyncio.run(self.director.pick(wanted, subset))

    def host(self, *token_ids: int, **fields: Any) -> str:
        """Where a request goes."""
        return self.pick(request(*token_ids, **fields)).endpoints[0].rpartition(":")[0]


def bench(
    text: str, pool: Pool, clock: Callable[[], float] | None = None, **settings: Any
) -> Bench:
    """A director as `text` (without its first two lines) configures it, with a clock that stands still."""
    resolved = resolve(read_config(HEAD + text, "test"), allow_experimental=True)
    clock = clock or Clock()
    assembly = Assembly(resolved, pool, PickerMetrics(), 3.0, clock)
    director = Director(assembly.parts(), PickerOptions(**settings), clock)
    return Bench(director, pool, assembly, clock)


def sample(made: Bench, series: str, /, **labels: str) -> float | None:
    """What a series says."""
    made.assembly.metrics.refresh()
    return made.assembly.metrics.registry.get_sample_value(series, labels)


def profile(*plugins: str) -> str:
    """A configuration of one profile with these plugins, each by its type."""
    listed = "".join(f"- type: {plugin}\n" for plugin in plugins)
    return f"plugins:\n{listed}"


@asynccontextmanager
async def opened(options: PickerOptions) -> AsyncIterator[Picker]:
    """A picker that is open meanwhile."""
    picker = await open_picker(options)
    try:
        yield picker
    finally:
        await picker.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that another task does; ten seconds at most."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event to wait on
            await asyncio.sleep(0.01)
