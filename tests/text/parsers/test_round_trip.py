"""Calls written as each family's chat template writes them come back as they were."""

import json
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.text.parsers.taking_apart import feed_all, join
from weft.text.parsers.table import TOOL_PARSERS, make_output_parser
from weft.text.parsers.tool_families import ALIASES

Call = tuple[str, dict]


def _object(name: str, arguments: dict, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def _parameters(name: str, arguments: dict) -> str:
    return _object(name, arguments, "parameters")


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else _dump(value)


def _python(name: str, arguments: dict) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _joined(start: str, each: Callable[[str, dict], str], between: str, end: str):
    return lambda calls: start + between.join(each(*call) for call in calls) + end


def _each(write: Callable[[str, dict], str]):
    return lambda calls: "\n".join(write(*call) for call in calls)


def _tags(start: str, parameter: str, end: str):
    """Tags with {name} in the start, {key} and {value} in the parameter."""
    return lambda name, arguments: (
        start.format(name=name)
        + "".join(parameter.format(key=k, value=_plain(v)) for k, v in arguments.items())
        + end
    )


_XML = _tags("<function={name}>\n", "<parameter={key}>\n{value}\n</parameter>\n", "</function>")
_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
WRITERS = {
    "hermes": _each(lambda n, a: f"<tool_call>\n{_object(n, a)}\n</tool_call>"),
    "mistral": _joined("[TOOL_CALLS]", lambda n, a: f"{n}[ARGS]{_dump(a)}", "[TOOL_CALLS]", ""),
    "granite": _joined("<|tool_call|>[", _object, ", ", "]"),
    "granite-20b-fc": _each(lambda n, a: f"<function_call> {_object(n, a)}"),
    "longcat": _each(lambda n, a: f"<longcat_tool_call>{_object(n, a)}</longcat_tool_call>"),
    "jamba": _joined("<tool_calls>[\n  ", _object, ",\n  ", "\n]</tool_calls>"),
    "hunyuan_a13b": _joined("<tool_calls>[", _object, ", ", "]</tool_calls>"),
    "minimax": _joined("<tool_calls>\n", _object, "\n", "\n</tool_calls>"),
    "phi4_mini_json": _joined("functools[", _object, ", ", "]"),
    "xlam": _joined("[", _object, ", ", "]"),
    "llama3_json": _joined("", _parameters, "; ", ""),
    "llama4_json": _joined("", _parameters, "; ", ""),
    "internlm": _each(lambda n, a: f"<|action_start|><|plugin|>\n{_parameters(n, a)}<|action_end|>"),
    "deepseek_v3": _joined(
        _SECTION[0],
        lambda n, a: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{_dump(a)}\n```"
        "<｜tool▁call▁end｜>",
        "\n",
        _SECTION[1],
    ),
    "deepseek_v31": _joined(
        _SECTION[0],
        lambda n, a: f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{_dump(a)}<｜tool▁call▁end｜>",
        "",
        _SECTION[1],
    ),
    "kimi_k2": _joined(
        "<|tool_calls_section_begin|>",
        lambda n, a: f"<|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>{_dump(a)}"
        "<|tool_call_end|>",
        "",
        "<|tool_calls_section_end|>",
    ),
    "openai": _joined(
        "",
        lambda n, a: f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{_dump(a)}"
        "<|call|>",
        "<|start|>assistant",
        "",
    ),
    "pythonic": _joined("[", _python, ", ", "]"),
    "llama4_pythonic": _joined("<|python_start|>[", _python, ", ", "]<|python_end|>"),
    "lfm2": _joined("<|tool_call_start|>[", _python, ", ", "]<|tool_call_end|>"),
    "olmo3": _joined("<function_calls>\n", _python, "\n", "\n</function_calls>"),
    "qwen3_coder": _each(lambda n, a: f"<tool_call>\n{_XML(n, a)}\n</tool_call>"),
    "seed_oss": _each(lambda n, a: f"<seed:tool_call>\n{_XML(n, a)}\n</seed:tool_call>"),
    "glm45": _each(
        _tags(
            "<tool_call>{name}\n",
            "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
            "</tool_call>",
        )
    ),
    "minimax_m2": _joined(
        "<minimax:tool_call>\n",
        _tags('<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>"),
        "\n",
        "\n</minimax:tool_call>",
    ),
    "step3": _joined(
        "<｜tool_calls_begin｜>",
        _tags(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">',
            '<steptml:parameter name="{key}">{value}</steptml:parameter>',
            "</steptml:invoke><｜tool_call_end｜>",
        ),
        "",
        "<｜tool_calls_end｜>",
    ),
    "deepseek_v32": _joined(
        "<｜DSML｜function_calls>\n",
        lambda name, arguments: f'<｜DSML｜invoke name="{name}">\n'
        + "".join(
            f'<｜DSML｜parameter name="{k}" string="{str(isinstance(v, str)).lower()}">{_plain(v)}'
            "</｜DSML｜parameter>\n"
            for k, v in arguments.items()
        )
        + "</｜DSML｜invoke>",
        "\n",
        "\n</｜DSML｜function_calls>",
    ),
}  # fmt: skip

_NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        '"',
        "\\",
        "\\n",
        "'",
        "\n",
        "</tool_call",
        "}]",
        "\\u00e9",
        "''' \"\"\"",
        "None",
        "7",
        "{",
        "[]",
    ]
)
_SCALARS = _TEXTS | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    _SCALARS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_CALLS = st.lists(
    st.tuples(_NAMES, st.dictionaries(_NAMES, _VALUES, max_size=3)), min_size=1, max_size=3
)

_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}


def _declare(calls: list[Call]) -> list[dict]:
    """Tools whose schemas type exactly these arguments."""
    properties: dict[str, dict] = {}
    for name, arguments in calls:
        types = {key: {"type": _KINDS.get(type(value), "null")} for key, value in arguments.items()}
        properties.setdefault(name, {}).update(types)
    return [
        {"name": name, "parameters": {"type": "object", "properties": types}}
        for name, types in properties.items()
    ]


def test_every_family_is_written_here():
    """A family without a round trip is one that nobody has seen work."""
    assert WRITERS.keys() == TOOL_PARSERS.keys() - ALIASES.keys()


@pytest.mark.parametrize("family", WRITERS)
@settings(max_examples=20, deadline=None)
@given(calls=_CALLS.filter(lambda calls: len({name for name, _ in calls}) == len(calls)))
def test_what_a_template_writes_is_read_back(family, calls):
    """Names, keys and values of every JSON type, with quotes, escapes and all of Unicode in texts."""
    # Harmony's marks are tokens of their own: no text holds one.
    assume(family != "openai" or "<|" not in _dump(calls))
    parser = make_output_parser(reasoning=None, tool=family, tools=_declare(calls))
    parts = join(feed_all(parser, WRITERS[family](calls)))
    assert [(name, json.loads(arguments)) for _, name, arguments, *_ in parts] == calls
