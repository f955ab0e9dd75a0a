"""Change the code a little, one place at a time, and see whether the tests beside it notice.

A mutant takes a statement out, turns a condition round, moves a bound or swaps a constant. Each runs in
a process of its own, forked once what tests import is loaded; nothing on the disk is changed. Children
that a test starts run the code as it is. Prints every mutant that no test noticed; whoever reads the
list judges it in docs/mutants.md.
"""

import argparse
import ast
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from multiprocessing import get_context
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
# What is mutated, and the tests that are to notice: those that notice soonest first.
AREAS = {
    "core/checks/validate.py": ["tests/core/test_validate.py", "tests/text/test_prepare.py"],
    "core/checks/resolve_params.py": ["tests/core/test_validate.py", "tests/text/test_prepare.py"],
    "engine/scheduling": [
        "tests/engine/test_scheduler.py",
        "tests/engine/test_stopwatch.py",
        "tests/engine/test_repetition.py",
        "tests/engine/test_blocks.py",
        "tests/engine/test_structured_output.py",
        "tests/engine/test_pooling.py",
        "tests/engine/test_lora.py",
        "tests/engine/test_speculation.py",
        "tests/engine/test_loop.py",
        "tests/property",
    ],
    "engine/front": [
        "tests/engine/test_front.py",
        "tests/engine/test_outputs.py",
        "tests/engine/test_outputs_streaming.py",
        "tests/engine/test_pace.py",
        "tests/engine/test_session.py",
        "tests/engine/test_lora_table.py",
        "tests/engine/test_kv_feed.py",
        "tests/engine/test_stat_log.py",
        "tests/engine/test_observing.py",
        "tests/engine/test_child.py",
        "tests/engine/test_lora.py",
        "tests/faults/test_leaving.py",
        "tests/contract",
    ],
    "web/http": [
        "tests/web/http",
        "tests/web/admin/test_endpoints.py",
        "tests/faults/test_http_wire.py",
    ],
    "rpc": ["tests/rpc"],
    "text/outputs": [
        "tests/engine/test_outputs.py",
        "tests/engine/test_outputs_streaming.py",
    ],
    "epp/request": [
        "tests/epp/request",
        "tests/epp/server/test_buffered_bodies.py",
        "tests/epp/server/test_response_phase.py",
    ],
    "engine/step": [
        "tests/engine/test_step_size.py",
        "tests/engine/test_configure.py",
        "tests/engine/test_sampler.py",
        "tests/engine/test_pooling.py",
        "tests/engine/test_resumption.py",
        "tests/engine/test_step_budget.py",
        "tests/engine/test_steps_ahead.py",
        "tests/engine/test_not_numbers.py",
        "tests/engine/test_pictures.py",
        "tests/engine/test_structured_output.py",
        "tests/engine/speech",
    ],
    "engine/speech": ["tests/engine/speech"],
    "core/aio/failover.py": ["tests/engine/test_failover.py", "tests/engine/test_resumption.py"],
    "media/sounds": ["tests/media/sounds"],
    "web/model_pool": ["tests/web/model_pool"],
    "epp/decision/profile.py": ["tests/epp/decision"],
    "engine/transfer": [
        "tests/engine/test_circuit_breaker.py",
        "tests/engine/test_transfer_wire.py",
        "tests/engine/test_transfer_settings.py",
        "tests/engine/test_transfer_trust.py",
        "tests/engine/test_unproven.py",
        "tests/engine/test_slow_peers.py",
        "tests/engine/test_transfer_chunks.py",
        "tests/engine/test_shared_leases.py",
        "tests/engine/test_kv_transfer.py",
    ],
}
PRELOADED = ("grpc", "httpx2", "numpy", "prometheus_client", "pytest", "uvicorn")
PATIENCE = 10  # times what the tests take unchanged; a mutant may well wait for ever
FORK = get_context("fork")

_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the `number`-th of those that `Mutator` finds in a module."""

    path: Path
    number: int
    line: int
    change: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.change}"


class Mutator(ast.NodeTransformer):
    """Makes the change of that number, or with None lists all."""

    def __init__(self, chosen: int | None = None) -> None:
        self._chosen = chosen
        self.found: list[tuple[int, str]] = []

    def _offer(self, node: ast.AST, changed: ast.AST) -> ast.AST | None:
        self.found.append((node.lineno, f"{_short(node)}  →  {_short(changed)}"))
        is_chosen = len(self.found) - 1 == self._chosen
        return ast.copy_location(changed, node) if is_chosen else None

    def visit(self, node: ast.AST) -> ast.AST:
        """See `NodeTransformer`. Annotations, asserts, log lines and docstrings are left alone."""
        if isinstance(node, ast.Assert) or _is_log(node):
            return node
        for changed in _changes(node):
            made = self._offer(node, changed)
            if made is not None:
                return made
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                setattr(node, name, self._visited(value))
        return node

    def _visited(self, value: object) -> object:
        if isinstance(value, list):
            return [self._visited(item) for item in value]
        return self.visit(value) if isinstance(value, ast.AST) else value


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.stmt):
        yield from _changed_statements(node)
    else:
        yield from _changed_expressions(node)


def _changed_statements(node: ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Delete() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.If(test=test) if not _is_type_checking(test):
            yield ast.If(_negated(test), node.body, node.orelse)
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield ast.While(_negated(test), node.body, node.orelse)
        case _:
            pass


def _changed_expressions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.IfExp(test=test):
            yield ast.IfExp(_negated(test), node.body, node.orelse)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.Compare(ops=[op], left=left, comparators=right):
            yield ast.Compare(left, [_NEGATED[type(op)]()], right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case _:
            pass


def _negated(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _is_log(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"))):
            return True
        case ast.Expr(value=value):
            return isinstance(value, ast.Constant) or _is_log(value)
        case _:
            return False


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _short(node: ast.AST) -> str:
    lines = ast.unparse(ast.fix_missing_locations(node)).splitlines()
    return lines[0][:90]


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a module."""
    mutator = Mutator()
    mutator.visit(ast.parse(path.read_text()))
    return [Mutant(path, number, *found) for number, found in enumerate(mutator.found)]


class MutantLoader(SourceFileLoader):
    """Loads a module with the change made; caches nothing."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(mutant.path))
        self._mutant = mutant

    def path_stats(self, path: str) -> dict[str, float]:  # type: ignore[override]
        """Say that there is no knowing whether cached code is current."""
        raise OSError(path)

    def source_to_code(self, data: bytes, path: str) -> CodeType:  # type: ignore[override]
        """The code of the mutant."""
        tree = Mutator(self._mutant.number).visit(ast.parse(data))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class MutantFinder:
    """Finds one module, and leaves the others to those behind it."""

    def __init__(self, mutant: Mutant) -> None:
        parts = mutant.path.relative_to(SOURCE).with_suffix("").parts
        self._name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self._mutant = mutant

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        loader = MutantLoader(name, self._mutant)
        return spec_from_file_location(name, self._mutant.path, loader=loader)


def _test(mutant: Mutant | None, tests: Sequence[str]) -> None:
    """In a process of its own: run the tests, and leave with pytest's status."""
    os.setsid()  # so that whatever the tests start can be ended with it
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    if mutant is not None:
        sys.meta_path.insert(0, MutantFinder(mutant))
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    os._exit(import_module("pytest").main([*options, "--hypothesis-seed=0", *tests]))


def _is_noticed(mutant: Mutant | None, tests: Sequence[str], limit_s: float | None) -> bool:
    """Whether a test fails, or none comes to an end."""
    process = FORK.Process(target=_test, args=(mutant, tests))
    process.start()
    process.join(limit_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return process.exitcode != 0


def _run(area: str, tests: Sequence[str], args: argparse.Namespace) -> None:
    path = SOURCE / "weft" / area
    modules = [path] if path.is_file() else sorted(path.rglob("*.py"))
    chosen = [m for m in modules if args.only is None or args.only in str(m)]
    mutants = [mutant for module in chosen for mutant in mutants_of(module)][:: args.every]
    if not mutants:
        return
    began = time.monotonic()
    if _is_noticed(None, tests, None):
        sys.exit(f"{area}: the tests fail as it is: {' '.join(tests)}")
    limit_s = PATIENCE * (time.monotonic() - began)
    with ThreadPoolExecutor(args.jobs) as pool:
        noticed = pool.map(lambda mutant: _is_noticed(mutant, tests, limit_s), mutants)
        survivors = 0
        for mutant, is_noticed in zip(mutants, noticed, strict=True):
            if not is_noticed:
                survivors += 1
                print(mutant, flush=True)
    print(f"{area}: {survivors} of {len(mutants)} mutants were not noticed", flush=True)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; all")
    parser.add_argument("--only", help="modules whose path holds this")
    parser.add_argument("--every", type=int, default=1, help="take every so many-th mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    args = parser.parse_args()
    if unknown := set(args.areas) - set(AREAS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(AREAS)}")
    os.chdir(ROOT)
    for name in PRELOADED:
        import_module(name)
    for area in args.areas or AREAS:
        _run(area, AREAS[area], args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
