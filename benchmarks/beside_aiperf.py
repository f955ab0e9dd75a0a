"""`weft bench serve` and aiperf in turns: one server, the same prompts, the same number of open requests.

    python benchmarks/beside_aiperf.py

The server answers at a pace (embedded:echo), so that what the two say can differ by what they count and by
what they cost alone. docs/bench.md has a result.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.peers.environments import Environment
from benchmarks.serve import server
from weft.model.open import open_model

AIPERF = Environment("aiperf", (("aiperf==0.13.0",),))
# Of a row: its key in our result, and its name and statistic in aiperf's.
FIGURES = {
    "TTFT, median, ms": ("median_ttft_ms", "time_to_first_token", "p50"),
    "ITL, median, ms": ("median_itl_ms", "inter_chunk_latency", "p50"),
    "TPOT, median, ms": ("median_tpot_ms", "inter_token_latency", "p50"),
    "E2EL, median, ms": ("median_e2el_ms", "request_latency", "p50"),
    "output tokens a second": ("output_throughput", "output_token_throughput", "avg"),
    "requests a second": ("request_throughput", "request_throughput", "avg"),
}


def main() -> None:
    """Print a row for each figure and round, and one with the medians of the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--aiperf", type=Path, help="the command; installed in build/peers if unset"
    )
    parser.add_argument("--model", default="embedded:echo?ttft_ms=1000&itl_ms=200")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--output-len", type=int, default=16)
    args = parser.parse_args()
    if args.aiperf is None:
        AIPERF.make()
        args.aiperf = AIPERF.python.with_name("aiperf")
    rounds: list[tuple[dict[str, float], dict[str, float]]] = []
    with server(args.model, "--stream-interval-ms=0", "--max-num-seqs=64") as running:
        url = f"http://127.0.0.1:{running.http_port}"
        for number in range(args.rounds):
            with tempfile.TemporaryDirectory() as name:
                both = ours(url, args, Path(name)), theirs(url, args, Path(name))
            rounds.append(both)
            show(f"round {number + 1}", *both)
    medians = [
        {figure: statistics.median(both[side][figure] for both in rounds) for figure in FIGURES}
        for side in (0, 1)
    ]
    show("medians", *medians)


def show(title: str, weft: Mapping[str, float], aiperf: Mapping[str, float]) -> None:
    """Print a table."""
    print(f"\n| {title} | weft | aiperf | weft / aiperf |\n| --- | --- | --- | --- |")
    for figure in FIGURES:
        ratio = weft[figure] / aiperf[figure] - 1
        print(
            f"| {figure} | {weft[figure]:.2f} | {aiperf[figure]:.2f} | {ratio:+.1%} |", flush=True
        )


def texts(args: argparse.Namespace) -> list[str]:
    """What is echoed: longer than an answer, and no two begin alike."""
    return [
        " ".join(f"{number}.{i}" for i in range(args.output_len)) for number in range(args.requests)
    ]


def ours(url: str, args: argparse.Namespace, directory: Path) -> dict[str, float]:
    """What `weft bench serve` says."""
    prompts, result = directory / "ours.jsonl", directory / "ours.json"
    prompts.write_text("".join(json.dumps({"prompt": t}) + "\n" for t in texts(args)))
    command = [
        sys.executable, "-m", "weft.cli.main", "bench", "serve", "--base-url", url, "--dataset-name", "custom",
        "--dataset-path", str(prompts), "--num-prompts", str(args.requests), "--output-len", str(args.output_len),
        "--max-concurrency", str(args.concurrency), "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--save-result", "--result-dir", str(directory), "--result-filename", result.name,
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads(result.read_text())
    return {figure: float(found[key]) for figure, (key, _, _) in FIGURES.items()}


def theirs(url: str, args: argparse.Namespace, directory: Path) -> dict[str, float]:
    """What aiperf says."""
    (directory / "tokenizer").mkdir()
    for name, data in open_model(args.model).tokenizer_files.items():
        (directory / "tokenizer" / name).write_bytes(data)
    prompts = directory / "theirs.jsonl"
    prompts.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts(args)))
    command = [
        str(args.aiperf), "profile", "--model", "m", "--url", url, "--endpoint-type", "completions", "--streaming",
        "--input-file", str(prompts), "--custom-dataset-type", "single_turn",
        "--request-count", str(args.requests), "--concurrency", str(args.concurrency),
        "--extra-inputs", f"max_tokens:{args.output_len}", "--extra-inputs", "ignore_eos:true",
        "--use-server-token-count", "--tokenizer", str(directory / "tokenizer"),
        "--artifact-dir", str(directory / "artifacts"), "--ui", "none",
    ]  # fmt: skip
    run = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
    )
    exports = list(directory.glob("artifacts/**/profile_export_aiperf.json"))
    if run.returncode or not exports:
        raise SystemExit(
            f"aiperf ended with {run.returncode}:\n{run.stdout[-3000:]}{run.stderr[-3000:]}"
        )
    found = json.loads(exports[0].read_text())
    return {figure: float(found[name][kind]) for figure, (_, name, kind) in FIGURES.items()}


if __name__ == "__main__":
    main()
