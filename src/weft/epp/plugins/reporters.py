"""`request-attribute-reporter`: computes numbers from a response's token usage for the gateway's metadata."""

import logging
import math
import re
from typing import Annotated, Any

import msgspec

from weft.core.errors import ConfigError
from weft.core.extras import how_to_install
from weft.epp.config.parameters import Kind, Name, Parameters, Part
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.request.values import Usage

_log = logging.getLogger(__name__)

# Texts and names, which are skipped, or a whole number.
_WHOLE_NUMBER = re.compile(
    r""""(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[A-Za-z_]\w*|[\d.]+[eE][+-]?\d+|\d*\.\d+|\d+[a-zA-Z]\w*|(\d+)"""
)


class AttributeKey(Part, frozen=True, kw_only=True):
    """Namespace and key of a number in the dynamic metadata. Envoy accepts only the namespaces that it is configured to
    receive.
    """

    name: Name
    namespace: Name = "envoy.lb"


class Attribute(Part, frozen=True, kw_only=True):
    """A CEL expression over `usage` that computes a number, and a condition for sending the number."""

    key: AttributeKey
    expression: Name
    condition: str = ""  # empty: always true


class ReporterParameters(Parameters, frozen=True, kw_only=True):
    """The expression that is evaluated for each response, and the place of its result.

    `usage` has prompt_tokens, completion_tokens, total_tokens and prompt_tokens_details.cached_tokens, and also
    input_tokens and output_tokens for the first two, whatever the API; fields that the response does not report are
    absent. All numbers are doubles, so that a price of `usage.total_tokens / 1000` has a fraction; an expression that
    needs whole numbers, as `%` does, is evaluated with these.
    """

    attributes: Annotated[tuple[Attribute, ...], msgspec.Meta(min_length=1)]


@plugin("request-attribute-reporter", Kind.REPORTER, ReporterParameters)
class AttributeReporter:
    """Evaluates the expressions when a response has ended."""

    def __init__(self, parameters: ReporterParameters, around: Surroundings) -> None:
        self._name = around.name
        self._attributes = [
            (
                each.key,
                _Expression(each.expression, f"{around.name}: attributes[{i}].expression"),
                _Expression(each.condition or "true", f"{around.name}: attributes[{i}].condition"),
            )
            for i, each in enumerate(parameters.attributes)
        ]
        self._failed: set[str] = set()

    def report(self, usage: Usage) -> dict[str, dict[str, float]]:
        """Returns the numbers by namespace and key. A number that cannot be computed is left out."""
        counts = _counts(usage)
        found: dict[str, dict[str, float]] = {}
        for key, expression, condition in self._attributes:
            try:
                if condition.evaluate(counts) is not True:
                    continue
                value = expression.evaluate(counts)
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise TypeError(f"the expression gives {type(value).__name__}, not a number")
                if not math.isfinite(value):
                    raise ValueError(f"the expression gives {value}")
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
                # Logged once: later responses would repeat the failure.
                if key.name not in self._failed:
                    self._failed.add(key.name)
                    _log.warning("%s: %s is not reported: %r", self._name, key.name, error)
                continue
            found.setdefault(key.namespace, {})[key.name] = value
        return found


class _Expression:
    """A compiled expression over `usage`. CEL does not mix doubles and whole numbers, so there are two programs."""

    def __init__(self, text: str, path: str) -> None:
        self._in_whole_numbers = _compile(text, path)
        self._in_doubles = _compile(_WHOLE_NUMBER.sub(_to_double, text), path)

    def evaluate(self, counts: dict[str, Any]) -> Any:
        try:
            return self._in_doubles.execute({"usage": _in_doubles(counts)})
        except TypeError:
            return self._in_whole_numbers.execute({"usage": counts})


def _to_double(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else f"{found[0]}.0"


def _in_doubles(counts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _in_doubles(count) if isinstance(count, dict) else float(count)
        for name, count in counts.items()
    }


def _counts(usage: Usage) -> dict[str, Any]:
    prompt, completion = usage.num_prompt_tokens, usage.num_completion_tokens
    total = None if prompt is None or completion is None else prompt + completion
    counts: dict[str, int | None] = {
        "prompt_tokens": prompt, "input_tokens": prompt,
        "completion_tokens": completion, "output_tokens": completion, "total_tokens": total,
    }  # fmt: skip
    known: dict[str, Any] = {name: count for name, count in counts.items() if count is not None}
    if usage.num_cached_tokens is not None:
        known["prompt_tokens_details"] = {"cached_tokens": usage.num_cached_tokens}
    return known


def _compile(expression: str, path: str) -> Any:
    """Compiles an expression. Raises `ConfigError` if it is invalid or reads a variable other than `usage`."""
    try:
        # Imported late: the package is an extra, and takes 0.25 s to load.
        import cel  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"{path}: needs a package: {how_to_install('epp')}") from error
    try:
        program = cel.compile(expression.strip())
    except ValueError as error:
        raise ConfigError(
            f"{path}: not a valid CEL expression: {' '.join(str(error).split())}"
        ) from error
    if others := set(program.variables()) - {"usage"}:
        raise ConfigError(
            f"{path}: the expression may read only usage, not {', '.join(sorted(others))}"
        )
    return program
