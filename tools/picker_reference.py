"""Pages of docs/reference about the endpoint picker: its metric series, and its plugin types."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, get_args, get_origin

import msgspec

from tools.markdown import page, table
from weft.epp.config.parameters import Kind
from weft.epp.decision.plugin import PluginType, Surroundings, built_elsewhere
from weft.epp.flow.series import FlowSeries
from weft.epp.metrics.absent import ABSENT_SERIES
from weft.epp.metrics.older import OLDER_NAMES
from weft.epp.metrics.series import PREFIX, Declared, PickerMetrics
from weft.epp.plugins.detectors.max_saturation import MaxSaturationDetector, MaxSaturationParameters
from weft.epp.plugins.flow.program_aware import ProgramAware, ProgramParameters
from weft.epp.plugins.flow.program_score import ProgramScore, ProgramScoreParameters
from weft.epp.plugins.registry import REFUSED_TYPES, ROWS
from weft.epp.pool.pool import Pool
from weft.epp.request.parsers.table import DEFAULT_PARSERS, PARSERS


def picker_metrics() -> str:
    """Returns the page of all metric series of the endpoint picker."""
    metrics = PickerMetrics()
    common = _metric_table(metrics.declared)
    with_flow_control = (
        "With the gate `flowControl`, `program-aware-fairness`, `program-score-ordering-policy` and "
        "`max-saturation-detector`:"
    )
    added = []
    for make, where in (
        (metrics.make_stream_series, "With `--enable-grpc-stream-metrics`:"),
        (metrics.make_index_series, "With `enableMetrics` of a precise prefix index:"),
        (metrics.make_latency_series, "With `predicted-latency-producer`:"),
        (partial(make_flow_series, metrics), with_flow_control),
    ):
        num_before = len(metrics.declared)
        make()
        added += [where, _metric_table(metrics.declared[num_before:])]
    return page(
        "Metrics of the endpoint picker",
        (
            "`weft epp` exposes these series at `/metrics` of its metrics port. Response series (`request_duration`, "
            "`response_size`, `request_ttft`, `request_ntpot`, `request_streaming`, output and cached tokens, "
            "`request_running`) count only responses that the picker follows: all with `--track-responses`, otherwise "
            "none unless a plugin of the configuration needs them. At most 1000 model names and 1000 fairness ids "
            "have series of their own; all further ones share the label `other`. A series under its older name has the "
            "same values and labels as under its present name."
        ),
        common,
        *added,
        "Series of llm-d's picker that Weft's picker does not have:",
        table(("name", "why"), ((f"`{PREFIX}{name}`", why) for name, why in ABSENT_SERIES.items())),
    )


def make_flow_series(metrics: PickerMetrics) -> None:
    """Creates the series of flow control and of its policies."""
    FlowSeries(metrics, "")
    around = Surroundings("", Pool(), metrics, 0.0, {"": None})
    ProgramAware(ProgramParameters(), around)
    ProgramScore(ProgramScoreParameters(), around)
    MaxSaturationDetector(MaxSaturationParameters(detectors=("",)), around)


def _metric_table(declared: Sequence[Declared]) -> str:
    rows = []
    for series in declared:
        bare = series.name.removeprefix(PREFIX).removesuffix("_total")
        suffix = "_total" if series.kind == "counter" else ""
        earlier = OLDER_NAMES.get(bare)
        older = "" if earlier is None else f"`{earlier}{suffix}`"
        rows.append((f"`{series.name}`", series.kind, ", ".join(series.labels), series.text, older))
    return table(("name", "type", "labels", "meaning", "older name"), rows)


def plugins() -> str:
    """Returns the page of all plugin types that a picker's configuration may name, and of the refused ones."""
    parts: list[str] = []
    placed: set[str] = set()
    for kind in sorted(Kind, key=lambda kind: kind is not Kind.DETECTOR):  # which filter, too
        rows = [row for row in ROWS if kind in row.kinds and row.type_name not in placed]
        placed |= {row.type_name for row in rows}
        parts.append(f"## {str(kind).capitalize()}")
        for row in sorted(rows, key=lambda row: row.type_name):
            parts += _type_parts(row)
    parts.append("## Without effect")
    for row in ROWS:
        if not row.kinds:
            parts += _type_parts(row)
    refused = ((f"`{name}`", why) for name, why in sorted(REFUSED_TYPES.items()))
    return page(
        "Plugin types of the endpoint picker",
        (
            "Allowed values of `type` in `plugins` of the configuration, by kind of plugin. A type of several kinds is "
            "listed once. A parameter that is not listed is an error. Experimental types need "
            "`--allow-experimental-plugins`. Deprecated names and types work, with a warning."
        ),
        *parts,
        "## Refused",
        table(("type", "why"), refused),
    )


def _type_parts(row: PluginType) -> Iterator[str]:
    yield f"### {row.type_name}"
    yield " ".join(_sentences(row))
    if rows := list(_parameter_rows(row.parameters, "")):
        yield table(("parameter", "value", "default"), rows)


def _sentences(row: PluginType) -> Iterator[str]:
    parser = PARSERS.get(row.type_name)
    described = parser or (row.parameters if row.build is built_elsewhere else row.build)
    yield " ".join((described.__doc__ or "").strip().split("\n\n")[0].split())
    if row.type_name in DEFAULT_PARSERS:
        yield "On by default."
    if len(row.kinds) > 1:
        yield f"Usable as {' and '.join(sorted(row.kinds))}."
    if row.aliases:
        yield f"Deprecated names: {', '.join(f'`{name}`' for name in row.aliases)}."
    if row.is_alpha:
        yield "Experimental."
    if row.replacement:
        yield f"Deprecated; use {row.replacement}."


def _parameter_rows(struct: type[msgspec.Struct], prefix: str) -> Iterator[Sequence[str]]:
    for field in msgspec.structs.fields(struct):
        name = prefix + field.encode_name
        inner, is_list = _inner(field.type)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            if is_list:
                yield f"`{name}`", "list", _default(field)
            yield from _parameter_rows(inner, f"{name}[]." if is_list else f"{name}.")
        else:
            refusal = _refusal(struct, field.encode_name)
            yield f"`{name}`", refusal or _value(field.type), _default(field)


def _refusal(struct: type[msgspec.Struct], name: str) -> str:
    """Returns the reason why a known parameter is always refused; "" for other parameters."""
    hint = next(each.type for each in msgspec.structs.fields(struct) if each.encode_name == name)
    if hint != dict[str, object] | None:
        return ""
    try:
        msgspec.convert({name: {}}, struct)
    except msgspec.ValidationError as error:
        return f"refused: {str(error).removeprefix(f'{name} is refused: ')}"
    return ""


def _inner(hint: Any) -> tuple[Any, bool]:
    """Returns a parameter's type without `None` and lists around it, and True if there is a list."""
    if get_origin(hint) is Annotated:
        return _inner(get_args(hint)[0])
    options = [option for option in get_args(hint) if option not in {type(None), Ellipsis}]
    if get_origin(hint) in {list, tuple} and options:
        return _inner(options[0])[0], True
    if get_origin(hint) is not None and type(None) in get_args(hint) and len(options) == 1:
        return _inner(options[0])
    is_union = get_origin(hint) is None and hasattr(hint, "__args__")
    return _inner(options[0]) if is_union and len(options) == 1 else (hint, False)


def _value(hint: Any) -> str:
    schema = msgspec.json.schema(hint, schema_hook=lambda _: {})
    options = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    return " or ".join(map(_described, options))


def _described(schema: dict[str, Any]) -> str:
    if not schema:
        return "anything"
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_described(schema['items'])}"
    if schema["type"] == "object":
        values = schema.get("additionalProperties")
        return f"map of {_described(values)}" if values else "map"
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "more than"),
            ("maximum", "at most"),
        )
        if key in schema
    ]
    return ", ".join([schema["type"], *bounds])


def _default(field: msgspec.structs.FieldInfo) -> str:
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is msgspec.NODEFAULT:
        return "required"
    return "" if default is None else f"`{msgspec.json.encode(default).decode()}`"
