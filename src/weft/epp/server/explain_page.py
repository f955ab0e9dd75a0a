"""A short explanation of a routing decision: for a header, for dynamic metadata, for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from weft.epp.decision.cycle import ProfileRun
from weft.epp.decision.explain import PastDecision, predicted, runner_up, slo_ms, weighted
from weft.epp.pool.endpoint import Endpoint


def summary(entry: PastDecision) -> Mapping[str, Any]:
    """Returns the picked endpoint, the runner-up, and each scorer's contribution to both. Contains no prompt text and
    no other endpoints, because this runs on the event loop for each request.
    """
    schedule = entry.schedule
    picked = schedule.picks[schedule.primary] if schedule else ()
    shown = {run.profile: _shown(run) for run in entry.runs}
    named = dict.fromkeys(chain(picked[:1], *shown.values()))
    total = entry.num_prompt_tokens
    return {
        "picked": [each.host_port for each in picked],
        "cached_tokens": {
            name: {
                each.host_port: match.num_tokens(each, total)
                for each in named
                if each in match.held
            }
            for name, match in entry.prefixes.items()
        },
        "prompt_tokens": total,
        **_latency(entry, picked[:1]),
        "profiles": {run.profile: _profile(run, shown[run.profile]) for run in entry.runs},
    }


def _shown(run: ProfileRun) -> list[Endpoint]:
    second = runner_up(run)
    return [*run.picked[:1], *([] if second is None else [second])]


def _latency(entry: PastDecision, picked: Sequence[Endpoint]) -> Mapping[str, Any]:
    """Returns the SLO and the headroom at the picked endpoint; empty if latencies are not predicted."""
    known = {
        producer: {
            each.host_port: msgspec.to_builtins(predicted(of, of.endpoints.index(each)))
            for each in picked
            if each in of.endpoints
        }
        for producer, of in entry.latency.items()
    }
    return {"slo_ms": slo_ms(entry), "latency": known} if known else {}


def _profile(run: ProfileRun, shown: Sequence[Endpoint]) -> Mapping[str, Any]:
    second = next((each for each in shown if each not in run.picked[:1]), None)
    places = {each.host_port: run.scored.index(each) for each in shown if each in run.scored}
    return {
        "candidates": len(run.candidates),
        "runner_up": None if second is None else second.host_port,
        "totals": {name: round(run.totals[i], 4) for name, i in places.items()},
        "scores": {
            scorer: {name: round(weighted(scores[i], weight), 4) for name, i in places.items()}
            for scorer, weight, scores in run.scores
        },
    }


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a decision record from `/debug/decisions` as readable text."""
    status, message = record["status"], record["message"]
    outcome = ", ".join(record["endpoints"]) if status == 200 else f"refused, {status}: {message}"
    yield f"request {record['request_id']}: {outcome}"
    yield f"  path     {record['path']} {record['model']}".rstrip()
    if record["target_model"] != record["model"]:
        yield f"  served   as {record['target_model']}"
    yield f"  took     {record['duration_ms']:.2f} ms"
    if record["stale"]:
        yield f"  stale    load of {', '.join(record['stale'])}"
    for producer, tokens in record["cached_tokens"].items():
        held = ", ".join(f"{name} {count}" for name, count in tokens.items()) or "nobody"
        yield f"  cached   {held} of {record['num_prompt_tokens']} tokens ({producer})"
    yield from _latency_lines(record)
    for name, value in record["set_headers"].items():
        yield f"  header   {name}: {value}"
    for profile in record["profiles"]:
        yield from _profile_lines(profile)


def _latency_lines(record: Mapping[str, Any]) -> Iterator[str]:
    wanted = record["slo_ms"]
    if wanted:
        yield "  SLO      " + ", ".join(f"{name} {value:g} ms" for name, value in wanted.items())
    for producer, of in record["latency"].items():
        yield f"  latency  as {producer} predicts it{'' if of else ': too little is known yet'}"
        for name, known in of.items():
            parts = [_with_headroom("ttft", known), _with_headroom("tpot", known)]
            yield f"    {name}  {', '.join(filter(None, parts))}"


def _with_headroom(name: str, known: Mapping[str, Any]) -> str:
    milliseconds, headroom = known[f"{name}_ms"], known[f"{name}_headroom_ms"]
    if milliseconds is None:
        return ""
    return f"{name} {milliseconds:.1f} ms" + (
        "" if headroom is None else f" (headroom {headroom:+.1f} ms)"
    )


def _profile_lines(profile: Mapping[str, Any]) -> Iterator[str]:
    yield f"  profile  {profile['name']}: {len(profile['candidates'])} candidates"
    for record in profile["filters"]:
        removed = ", ".join(record["removed"]) or "nobody"
        yield f"    filter {record['name']} removed {removed}"
    names = sorted(profile["totals"], key=lambda name: -profile["totals"][name])
    for name in names:
        mark = "picked" if name in profile["picked"] else ""
        mark = mark or ("second" if name == profile["runner_up"] else "")
        parts = " ".join(
            f"{scorer['name']} {scorer['scores'][name]['raw']:.3f}x{scorer['weight']:g}"
            for scorer in profile["scorers"]
            if name in scorer["scores"]
        )
        yield f"    {mark:<7}{name}  {profile['totals'][name]:.3f}  {parts}".rstrip()
