"""The runs that docs/scale.md keeps: tables between its markers, and plots beside it."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from benchmarks.scale.cpu import costs
from benchmarks.scale.load import SCENARIOS
from benchmarks.scale.plot import Axis, Points, line_chart
from benchmarks.scale.policies import POLICIES
from benchmarks.scale.simulate import Case, Figures, figures_of

_ROOT = Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs" / "scale.md"
_IMAGES = _ROOT / "docs" / "images"
Cells = Sequence[str | float | int]

_RATES = (6.0, 12.0, 16.0, 20.0)
_RATE_POLICIES = (
    "default",
    "llm-d default",
    "precise",
    "prefix + in flight",
    "least loaded",
    "round robin",
)
_WORKERS = (2, 8, 32, 128)
_WORKER_POLICIES = ("default", "prefix + in flight", "round robin")
_PICKERS = (1, 4, 16)
_PICKER_POLICIES = ("default", "precise", "prefix + in flight")
_CPU_POLICIES = ("default", "precise", "prefix + in flight")
_CPU_ENDPOINTS = (2, 10, 32, 100, 316, 1000)
_CPU_ROUNDS = 9
_TO_FIRST_TOKEN = Axis(label="p99 to first token, s", is_log=True)
_HITS = Axis(label="prompt tokens from cache", is_share=True)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs cases, some at once: what comes back does not depend on how many."""

    num_processes: int

    def figures(self, cases: Sequence[Case]) -> list[Figures]:
        """In the order of the cases."""
        if self.num_processes == 1:
            return [figures_of(case) for case in cases]
        with ProcessPoolExecutor(self.num_processes, mp_context=get_context("spawn")) as pool:
            return list(pool.map(figures_of, cases))


def table(head: Cells, rows: Sequence[Cells]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)


HEAD = (
    "requests/s", "from cache", "p50 to first token, ms", "p99, ms", "within target",
    "most at one worker", "failed",
)  # fmt: skip


def row(figures: Figures) -> Cells:
    """The cells under `HEAD`."""
    return (
        f"{figures.requests_per_s:.0f}",
        f"{figures.hit_rate:.0%}",
        f"{figures.first_token_p50_s * 1000:.0f}",
        f"{figures.first_token_p99_s * 1000:.0f}",
        f"{figures.objectives_met:.1%}",
        f"{figures.busiest:.2f}",
        figures.num_failed + figures.num_refused,
    )


def put(name: str, text: str) -> None:
    """Replace what stands between a marker of the page and the next one."""
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", "<!-- end -->"
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{PAGE}: no {begin.strip()} with a {end} after it")
    PAGE.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")


def _plot(name: str, title: str, across: Axis, up: Axis, series: Mapping[str, Points]) -> None:
    (_IMAGES / f"scale-{name}.svg").write_text(
        line_chart(title, across, up, series), encoding="utf-8"
    )


def _grid(
    runner: Runner,
    policies: Sequence[str],
    values: Sequence[float],
    make: Callable[[str, float], Case],
) -> dict[str, list[Figures]]:
    """Figures by policy, one for each value."""
    found = runner.figures([make(policy, value) for policy in policies for value in values])
    count = len(values)
    return {policy: found[i * count : (i + 1) * count] for i, policy in enumerate(policies)}


def _series(
    grid: Mapping[str, Sequence[Figures]], values: Sequence[float], read: Callable[[Figures], float]
) -> dict[str, Points]:
    return {
        policy: [(value, read(figures)) for value, figures in zip(values, found, strict=True)]
        for policy, found in grid.items()
    }


def scenarios(runner: Runner) -> None:
    """Every policy under every load."""
    names = list(SCENARIOS)
    policies = [
        name for name in POLICIES if name != "in flight only"
    ]  # of prefixes it knows nothing
    cases = [
        Case(scenario=name, policy=policy, num_workers=4, warm_up_s=8.0, measured_s=12.0)
        for name in names
        for policy in policies
    ]
    found = iter(runner.figures(cases))
    parts = []
    for name in names:
        rows = [(policy, *row(next(found))) for policy in policies]
        parts.append(f"**{name}**: {SCENARIOS[name].about}.\n\n{table(('policy', *HEAD), rows)}\n")
    put("scenarios", "\n".join(parts))


def engines(runner: Runner) -> None:
    """The engines on CPUs, whose figures are this repository's own."""
    policies = ("default", "precise", "prefix + in flight", "least loaded", "round robin")
    cases = [
        Case(service=service, policy=policy, rate=rate, measured_s=15.0, target_s=1.0)
        for service, rate in (("weft-cpu", 3.0), ("vllm-cpu", 3.0))
        for policy in policies
    ]
    found = runner.figures(cases)
    rows = [
        (case.service, case.policy, *row(each)) for case, each in zip(cases, found, strict=True)
    ]
    put("engines", table(("workers", "policy", *HEAD), rows))


def rates(runner: Runner) -> None:
    """Chat, with more and more requests a worker."""
    grid = _grid(runner, _RATE_POLICIES, _RATES, lambda p, v: Case(policy=p, rate=v))
    across = Axis(label="requests a second and worker")
    first_token = _series(grid, _RATES, lambda each: each.first_token_p99_s)
    _plot("rates", "Chat, 8 workers, one picker", across, _TO_FIRST_TOKEN, first_token)
    rows = [
        (
            policy,
            *(f"{each.first_token_p99_s * 1000:.0f} ({each.objectives_met:.0%})" for each in found),
        )
        for policy, found in grid.items()
    ]
    put("rates", table(("policy", *(f"{rate:g}" for rate in _RATES)), rows))


def workers(runner: Runner) -> None:
    """Chat on more and more workers with as much to do each."""
    grid = _grid(
        runner, _WORKER_POLICIES, _WORKERS,
        lambda p, v: Case(policy=p, num_workers=int(v), rate=10.0, warm_up_s=4.0, measured_s=4.0),
    )  # fmt: skip
    across = Axis(label="workers", is_log=True)
    hits = _series(grid, _WORKERS, lambda each: each.hit_rate)
    _plot("workers", "Chat, 10 requests a second and worker", across, _HITS, hits)
    rows = [
        (policy, count, *row(each))
        for policy, found in grid.items()
        for count, each in zip(_WORKERS, found, strict=True)
    ]
    put("workers", table(("policy", "workers", *HEAD), rows))


def pickers(runner: Runner) -> None:
    """Chat through more and more pickers: all with all of the workers, or each with its own."""
    case = Case(num_workers=16, rate=12.0, warm_up_s=6.0, measured_s=6.0)
    grid = _grid(
        runner, _PICKER_POLICIES, _PICKERS, lambda p, v: replace(case, policy=p, num_pickers=int(v))
    )
    apart = _grid(
        runner, ("default",), _PICKERS,
        lambda p, v: replace(case, policy=p, num_pickers=int(v), is_sharded=True),
    )  # fmt: skip
    grid["default, sharded"] = apart["default"]
    across = Axis(label="pickers", is_log=True)
    first_token = _series(grid, _PICKERS, lambda each: each.first_token_p99_s)
    _plot(
        "pickers", "Chat, 16 workers, 192 requests a second", across, _TO_FIRST_TOKEN, first_token
    )
    rows = [
        (policy, count, *row(each))
        for policy, found in grid.items()
        for count, each in zip(_PICKERS, found, strict=True)
    ]
    put("pickers", table(("policy", "pickers", *HEAD), rows))


def thousand(runner: Runner) -> None:
    """A thousand workers, ten thousand requests a second and sixteen pickers, briefly."""
    ways = (("default", True), ("round robin", False))
    cases = [
        Case(
            policy=policy,
            num_workers=1000,
            num_pickers=16,
            is_sharded=is_sharded,
            rate=10.0,
            warm_up_s=4.0,
            measured_s=4.0,
        )
        for policy, is_sharded in ways
    ]
    found = runner.figures(cases)
    rows = [
        (case.policy, "its share" if case.is_sharded else "all", *row(each))
        for case, each in zip(cases, found, strict=True)
    ]
    put("thousand", table(("policy", "workers of each picker", *HEAD), rows))


def cpu(_: Runner) -> None:
    """Processor time of real decisions; on a machine with other work it is less steady than the rest."""
    grid = {name: costs(POLICIES[name], _CPU_ENDPOINTS, _CPU_ROUNDS) for name in _CPU_POLICIES}
    series = {
        name: [
            (count, 1e6 / cost.median) for count, cost in zip(_CPU_ENDPOINTS, found, strict=True)
        ]
        for name, found in grid.items()
    }
    across, up = Axis(label="endpoints", is_log=True), Axis(label="decisions a second", is_log=True)
    _plot("cpu", "Decisions a second of one process, without the wire", across, up, series)
    rows = [
        (name, *(f"{each.median:.0f} ({each.least:.0f}–{each.most:.0f})" for each in found))
        for name, found in grid.items()
    ]
    put("cpu", table(("policy", *map(str, _CPU_ENDPOINTS)), rows))


PARTS: Mapping[str, Callable[[Runner], None]] = {
    part.__name__: part for part in (scenarios, engines, rates, workers, pickers, thousand, cpu)
}
