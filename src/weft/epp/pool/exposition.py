"""Reads chosen series out of Prometheus text, without parsing the rest of it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.ASCII)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}
_SPEC = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^{}]*)\})?", re.ASCII)


class SeriesSpec(msgspec.Struct, frozen=True):
    """A series and the labels it must have."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


def parse_series_spec(text: str) -> SeriesSpec:
    """`name` or `name{label=value,...}`; raises `ValueError`."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be name or name{{label=value,...}}, got {text!r}")
    labels = []
    for pair in filter(None, (part.strip() for part in (match["labels"] or "").split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{pair!r} is not label=value in {text!r}")
        labels.append((key.strip(), value.strip().strip('"')))
    return SeriesSpec(match["name"], tuple(labels))


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    labels: Mapping[str, str]
    value: float


class SeriesReader:
    """Finds the lines of the series it was made for."""

    def __init__(self, names: Iterable[str]) -> None:
        wanted = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        self._line = re.compile(
            rf'^({wanted})(?:\{{((?:[^"}}\n]|"(?:[^"\\\n]|\\.)*")*)\}})?[ \t]+(\S+)', re.MULTILINE
        )

    def read(self, text: str) -> dict[str, list[Sample]]:
        """Samples by series name; a line with a broken number is as good as absent."""
        found: dict[str, list[Sample]] = {}
        for match in self._line.finditer(text):
            try:
                value = float(match[3])
            except ValueError:
                continue
            found.setdefault(match[1], []).append(Sample(_labels(match[2] or ""), value))
        return found


def select(found: Mapping[str, Sequence[Sample]], spec: SeriesSpec) -> list[Sample]:
    """The samples that a spec means."""
    samples = found.get(spec.name, ())
    if not spec.labels:
        return list(samples)
    return [
        each for each in samples if all(each.labels.get(key) == text for key, text in spec.labels)
    ]


def _labels(text: str) -> dict[str, str]:
    if "\\" not in text:
        return dict(_LABEL.findall(text))
    return {
        key: _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), value)
        for key, value in _LABEL.findall(text)
    }
