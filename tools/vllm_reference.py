"""The reference page of vLLM's flags, generated from the table that the command line reads."""

from collections.abc import Iterator

from tools.markdown import page, table
from weft.compat.vllm import Use, VllmFlag, vllm_flags

_ABOUT = (
    "`weft serve` knows every flag of `vllm serve` 0.33, and some flags of older releases. A flag may be given by its "
    "full name or a short form, with `-` or `_`, as `--x` or `--no-x`, with a dot for a key of a JSON value "
    "(`--structured-outputs-config.backend xgrammar`), or in the file of `--config`. Abbreviated names are errors. "
    "`weft.LLM(...)` knows the same names with `_`. Two defaults differ: Weft listens on 127.0.0.1 unless `--host` is "
    "given, and it serves gRPC in addition to HTTP."
)
_TITLES = {
    Use.SAME: (
        "Supported",
        "Weft has these flags too; [the command line](command-line.md) describes them.",
    ),
    Use.TWIN: (
        "Supported under another name",
        "Weft translates these flags to its own; the log names the flag to use.",
    ),
    Use.NEUTRAL: (
        "Accepted without effect",
        "vLLM's default and the listed values are accepted and change nothing. Other values are errors.",
    ),
    Use.REFUSED: (
        "Refused",
        "These flags are errors; the message has the reason, and what to do instead.",
    ),
}
_COLUMNS = {
    Use.SAME: ("flag", "values", "remark"),
    Use.TWIN: ("flag", "Weft's flag", "remark"),
    Use.NEUTRAL: ("flag", "accepted values", "reason"),
    Use.REFUSED: ("flag", "", "reason"),
}


def vllm_flags_page() -> str:
    """Returns the page of all flags, grouped by their treatment."""
    parts: list[str] = []
    flags = list(dict.fromkeys(vllm_flags().values()))
    for use, (title, about) in _TITLES.items():
        chosen = [flag for flag in flags if flag.use is use]
        plain = [flag for flag in chosen if use is Use.SAME and not (_values(flag) or flag.why)]
        parts += [f"## {title}", about]
        parts += [", ".join(map(_name, plain)) + "."] if plain else []
        parts.append(table(_COLUMNS[use], (_row(flag) for flag in chosen if flag not in plain)))
    return page("Flags of vLLM", _ABOUT, *parts)


def _row(flag: VllmFlag) -> list[str]:
    cells = (_name(flag), _values(flag), flag.why)
    return [cell.replace("|", "\\|") for cell in cells]


def _name(flag: VllmFlag) -> str:
    names = [name for name in flag.spellings if not name.startswith("--no-")]
    older = " (older releases)" if flag.release == "older" else ""
    return ", ".join(f"`{name}`" for name in names) + older


def _values(flag: VllmFlag) -> str:
    if flag.use is Use.TWIN:
        return f"`--{flag.detail[0]}`"
    if flag.use is Use.SAME:
        return ", ".join(_pairs(flag))
    if "*" in flag.detail:
        return "any"
    others = [value for value in (flag.default, *flag.detail) if value and "=--" not in value]
    values = {value.lower(): f"`{value}`" for value in others}
    moved = [pair for pair in _pairs(flag) if "--" in pair]
    return ", ".join([*values.values(), *moved])


def _pairs(flag: VllmFlag) -> Iterator[str]:
    for a, b in flag.pairs.items():
        yield f"`{a}` is `{b}`" if b else f"`{a}` is left out"
