"""One decision in a few words: for a header, for dynamic metadata, for a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from weft.epp.decision.explain import DecisionRecord, ProfileRecord


def summary(record: DecisionRecord) -> Mapping[str, Any]:
    """Who was picked, who came second, and each scorer's share of both. Holds none of the prompt."""
    return {
        "picked": record.endpoints,
        "cached_tokens": record.cached_tokens,
        "prompt_tokens": record.num_prompt_tokens,
        **_latency(record),
        "profiles": {profile.name: _profile(profile) for profile in record.profiles},
    }


def _latency(record: DecisionRecord) -> Mapping[str, Any]:
    """The objectives and what the picked endpoint leaves of them, where latency is predicted."""
    picked = record.endpoints[:1]
    known = {
        producer: {name: msgspec.to_builtins(of[name]) for name in picked if name in of}
        for producer, of in record.latency.items()
    }
    return {"objectives_ms": record.objectives_ms, "latency": known} if known else {}


def _profile(profile: ProfileRecord) -> Mapping[str, Any]:
    shown = [name for name in (*profile.picked[:1], profile.runner_up) if name is not None]
    return {
        "candidates": len(profile.candidates),
        "runner_up": profile.runner_up,
        "totals": {name: round(profile.totals.get(name, 0.0), 4) for name in shown},
        "scores": {
            scorer.name: {
                name: round(scorer.scores[name].weighted, 4)
                for name in shown
                if name in scorer.scores
            }
            for scorer in profile.scorers
        },
    }


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """A decision as `/debug/decisions` has it, for a person to read."""
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
    wanted = record["objectives_ms"]
    if wanted:
        yield "  wanted   " + ", ".join(f"{name} {value:g} ms" for name, value in wanted.items())
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
