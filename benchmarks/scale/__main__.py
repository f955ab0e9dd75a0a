"""`python -m benchmarks.scale`: run cases and print their figures, or make what docs/scale.md keeps."""

import argparse
from collections.abc import Sequence
from dataclasses import fields

from benchmarks.scale.load import SCENARIOS
from benchmarks.scale.policies import POLICIES
from benchmarks.scale.report import HEAD, PARTS, Runner, row, table
from benchmarks.scale.service import SERVICES
from benchmarks.scale.simulate import Case, ImpossibleCaseError


def _run(arguments: argparse.Namespace) -> None:
    shared = {
        field.name: getattr(arguments, field.name)
        for field in fields(Case)
        if field.name not in {"policy", "scenario"}
    }
    cases = [
        Case(policy=policy, scenario=scenario, **shared)
        for scenario in arguments.scenario
        for policy in arguments.policy
    ]
    found = Runner(arguments.jobs).figures(cases)
    rows = [
        (case.scenario, case.policy, *row(each)) for case, each in zip(cases, found, strict=True)
    ]
    print(table(("scenario", "policy", *HEAD), rows))


def _report(arguments: argparse.Namespace) -> None:
    for name in arguments.parts:
        PARTS[name](Runner(arguments.jobs))
        print(f"{name}: done", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(required=True)
    default = Case()
    run = kinds.add_parser("run", help="print the figures of cases")
    run.set_defaults(act=_run)
    run.add_argument("--policy", nargs="+", choices=POLICIES, default=[default.policy])
    run.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=[default.scenario])
    run.add_argument("--service", choices=SERVICES, default=default.service)
    run.add_argument("--workers", dest="num_workers", type=int, default=default.num_workers)
    run.add_argument("--pickers", dest="num_pickers", type=int, default=default.num_pickers)
    run.add_argument(
        "--sharded", dest="is_sharded", action="store_true",
        help="each picker has workers of its own",
    )  # fmt: skip
    run.add_argument(
        "--gossip-s", type=float, help="seconds until pickers hear of each other's requests"
    )
    run.add_argument("--rate", type=float, default=default.rate, help="a second and worker")
    for name, text in (
        ("warm_up_s", "seconds before anything counts"),
        ("measured_s", "seconds that count"),
        ("target_s", "objective: seconds to the first token"),
    ):
        flag = f"--{name.replace('_', '-')}"
        run.add_argument(flag, type=float, default=getattr(default, name), help=text)
    run.add_argument("--seed", type=int, default=default.seed)
    run.add_argument("--jobs", type=int, default=1, help="processes; figures do not depend on it")
    report = kinds.add_parser("report", help="write the tables and plots of docs/scale.md")
    report.set_defaults(act=_report)
    report.add_argument("--only", dest="parts", nargs="+", choices=PARTS, default=list(PARTS))
    report.add_argument("--jobs", type=int, default=1)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Read the arguments and do what they say."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        arguments.act(arguments)
    except ImpossibleCaseError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
