"""The page on vLLM's flags, from the table that the command line reads."""

from collections.abc import Iterator

from tools.markdown import page, table
from weft.compat.vllm import Use, VllmFlag, vllm_flags

_ABOUT = (
    "`weft serve` knows every flag of `vllm serve` 0.32 and some of older releases by name, in its short "
    "forms, with `-` or `_`, as `--x` and `--no-x`, with a dot for a key of a JSON value "
    "(`--structured-outputs-config.backend xgrammar`), and in a file that `--config` names. `weft.LLM(...)` knows "
    "the same names with `_`. Nothing is guessed: a flag is written in full. What differs by default: Weft "
    "listens on 127.0.0.1 until `--host` says otherwise, and serves gRPC beside HTTP."
)
_TITLES = {
    Use.SAME: (
        "Followed",
        "These are flags of `weft serve`; [its page](command-line.md) has them.",
    ),
    Use.TWIN: ("Followed under another name", "A line of the log says so at the start."),
    Use.NEUTRAL: (
        "Taken where they change nothing",
        "vLLM's default and the values listed are taken without a word; others are refused as below.",
    ),
    Use.REFUSED: ("Refused", "With the reason, and what to do instead."),
}
_COLUMNS = {
    Use.SAME: ("flag", "values", ""),
    Use.TWIN: ("flag", "here", "why"),
    Use.NEUTRAL: ("flag", "values taken", "why"),
    Use.REFUSED: ("flag", "", "why"),
}


def vllm_flags_page() -> str:
    """Every flag by what is done with it."""
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
