"""Whole answers of each family of tool calls, and what they consist of."""

import pytest

from tests.text.parsers.taking_apart import cuts, take_apart
from weft.text.parsers.table import TOOL_PARSERS

PARIS = '{"city": "Paris"}'
COMPACT = '{"city":"Paris"}'
CALL = ("call", "get_weather", PARIS)
MADE = ("call", "get_weather", COMPACT)
DSV = "<｜tool▁calls▁begin｜>"
DSV_END = "<｜tool▁calls▁end｜>"

ANSWERS = {
    "hermes: text before, between and after": (
        "hermes",
        ('Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>\nDone.'),
        [("c", "Let me see.\n"), CALL, ("call", "get_weather", "{}"), ("c", "\nDone.")],
    ),
    "hermes: arguments first": (
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        [CALL],
    ),
    "hermes: arguments as a string": (
        "hermes",
        r'<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>',
        [CALL],
    ),
    "hermes: no arguments": (
        "hermes",
        '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b", "arguments": null}</tool_call>',
        [("call", "a", "{}"), ("call", "b", "{}")],
    ),
    "hermes: a brace too few, one too many": (
        "hermes",
        ('<tool_call>{"name": "a", "arguments": {}\n</tool_call>\n'
        '<tool_call>{"name": "b", "arguments": {}}}</tool_call>ok'),
        [("call", "a", "{}"), ("call", "b", "{}"), ("c", "ok")],
    ),
    "hermes: not JSON": (
        "hermes",
        "x <tool_call>\nget_weather(Paris)</tool_call> y",
        [("c", "x <tool_call>\nget_weather(Paris)</tool_call> y")],
    ),
    "hermes: JSON that is no call": (
        "hermes",
        '<tool_call>{"city": [1, {"a": "}"}]}</tool_call>',
        [("c", '<tool_call>{"city": [1, {"a": "}"}]}</tool_call>')],
    ),
    "hermes: arguments that are no object": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        [("c", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>')],
    ),
    "hermes: brackets of another kind, after the call was announced": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": [1}, "b": 2}}</tool_call>!',
        [("call", "f", '{"a": [1'), ("c", '}, "b": 2}}!')],
    ),
    "hermes: a list with something else in it": (
        "hermes",
        '<tool_call>[{"name": "f", "arguments": {}}, {"a": [1]}]</tool_call>',
        [("call", "f", "{}"), ("c", '{"a": [1]}]')],
    ),
    "hermes: cut off before the name": ("hermes", '<tool_call>\n{"na', [("c", '<tool_call>\n{"na')]),
    "hermes: cut off in the arguments": (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
        [("call", "get_weather", '{"city": "Par')],
    ),
    "hermes: cut off behind the arguments": (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}',
        [CALL],
    ),
    "hermes: marks in strings are text": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>{\\"\\\\"}}</tool_call>',
        [("call", "f", '{"a": "</tool_call>{\\"\\\\"}')],
    ),
    "hermes: the start of a mark alone": ("hermes", "1 <tool_ 2 <", [("c", "1 <tool_ 2 <")]),
    "mistral: a list": (
        "mistral",
        ('[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, '
        '{"name": "b", "arguments": {}}]'),
        [CALL, ("call", "b", "{}")],
    ),
    "mistral: names": (
        "mistral",
        'So: [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]b[CALL_ID]abc123DEF[ARGS]{}',
        [("c", "So: "), CALL, ("call", "b", "{}", "abc123DEF")],
    ),
    "mistral: names without a mark": ("mistral", f"[TOOL_CALLS]get_weather{PARIS}", [CALL]),
    "llama3_json: several": (
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "b", "parameters": {}}',
        [CALL, ("call", "b", "{}")],
    ),
    "llama3_json: behind its tag": (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        [CALL],
    ),
    "llama3_json: an answer in JSON": (
        "llama3_json",
        '{"name": "Bob", "age": 7}',
        [("c", '{"name": "Bob", "age": 7}')],
    ),
    "llama3_json: a list that is none": ("llama3_json", "[1] and {2}", [("c", "[1] and {2}")]),
    "pythonic: several, and every kind of value": (
        "pythonic",
        "[get_weather(city='Paris'), b(), a.c(x=[1, -2.5, (3,)], y={'k': None, \"z\": True}, s='it\\'s')]",
        [
            MADE,
            ("call", "b", "{}"),
            ("call", "a.c", '{"x":[1,-2.5,[3]],"y":{"k":null,"z":true},"s":"it\'s"}'),
        ],
    ),
    "pythonic: brackets and commas in text": (
        "pythonic",
        "[f(a='x, y)]', b=\"\"\"q'\"]\"\"\")]",
        [("call", "f", '{"a":"x, y)]","b":"q\'\\"]"}')],
    ),
    "pythonic: a value that is no literal": (
        "pythonic",
        "[f(a=today() + 1, b=2)]",
        [("call", "f", '{"a":"today() + 1","b":2}')],
    ),
    "pythonic: a citation": ("pythonic", "[1] says [f]", [("c", "[1] says [f]")]),
    "pythonic: positional": ("pythonic", "[f('x')] hm", [("c", "[f('x')] hm")]),
    "pythonic: broken": (
        "pythonic",
        "[f(a=1, b 2)] hm",
        [("call", "f", '{"a":1}'), ("c", "2)] hm")],
    ),
    "pythonic: a list with something else in it": (
        "pythonic",
        "[f(a=1), g and h]",
        [("call", "f", '{"a":1}'), ("c", "g and h]")],
    ),
    "pythonic: cut off in the end of a call": ("pythonic", "[f(a=1", [("call", "f", "{")]),
    "qwen3_coder: cut off in a tag": (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>1</parameter></func",
        [("call", "f", '{"a":1')],
    ),
    "pythonic: cut off": ("pythonic", "[f(a=1, b='x", [("call", "f", '{"a":1')]),
    "olmo3: lines": (
        "olmo3",
        "Ok.\n<function_calls>\nget_weather(city='Paris')\nb()\n</function_calls>",
        [("c", "Ok.\n"), MADE, ("call", "b", "{}")],
    ),
    "qwen3_coder: lines in a value, and types": (
        "qwen3_coder",
        ("Hm.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n a\n\"b\"\n\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=units>\nnull\n</parameter>\n"
        "<parameter=where>\n{'x': [1, True]}\n</parameter>\n</function>\n</tool_call>"),
        [
            ("c", "Hm.\n\n"),
            (
                "call",
                "get_weather",
                r'{"city":" a\n\"b\"\n","days":3,"units":null,"where":{"x":[1,true]}}',
            ),
        ],
    ),
    "qwen3_coder: values of other types than the schema's": (
        "qwen3_coder",
        ("<tool_call><function=get_weather><parameter=days>many</parameter><parameter=city>7</parameter>"
        "<parameter=units>7</parameter></function></tool_call>"),
        [("call", "get_weather", '{"days":"many","city":"7","units":"7"}')],
    ),
    "qwen3_coder: a tool nobody declared": (
        "qwen3_coder",
        "<function=x><parameter=n>1.50</parameter><parameter=t>a b</parameter></function>",
        [("call", "x", '{"n":1.50,"t":"a b"}')],
    ),
    "qwen3_coder: a value without its end": (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        [MADE],
    ),
    "qwen3_coder: no function": (
        "qwen3_coder",
        "a <tool_call>\nb</tool_call>",
        [("c", "a <tool_call>\nb</tool_call>")],
    ),
    "qwen3_coder: cut off in text": (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
        [("call", "get_weather", '{"city":"Par')],
    ),
    "qwen3_coder: broken": (
        "qwen3_coder",
        "<tool_call><function=f><parameter=a>1</parameter>oops</function></tool_call>",
        [("call", "f", '{"a":1}'), ("c", "oops</function>")],
    ),
    "glm45: several in a line": (
        "glm45",
        ("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
        "<tool_call>b\n</tool_call>"),
        [MADE, ("call", "b", "{}")],
    ),
    "deepseek_v3: several": (
        "deepseek_v3",
        (f"Ok{DSV}<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{PARIS}\n```"
        f"<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>b\n```json\n{{}}\n```"
        f"<｜tool▁call▁end｜>{DSV_END}"),
        [("c", "Ok"), CALL, ("call", "b", "{}")],
    ),
    "deepseek_v31: several": (
        "deepseek_v31",
        (f"{DSV}<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>b<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>{DSV_END}"),
        [CALL, ("call", "b", "{}")],
    ),
    "deepseek_v32: text and JSON": (
        "deepseek_v32",
        ('<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">7</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="false">[7, 8]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"),
        [("call", "f", '{"a":"7","b":[7, 8]}')],
    ),
    "kimi_k2: ids are kept": (
        "kimi_k2",
        ("<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:3"
        f"<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_call_begin|>b"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"),
        [(*CALL, "functions.get_weather:3"), ("call", "b", "{}", "functions.b:1")],
    ),
    "xlam: in a code block": (
        "xlam",
        '```json\n[{"name": "get_weather", "arguments": {"city": "Paris"}}]\n```',
        [CALL],
    ),
    "xlam: a code block of another kind": ("xlam", "```python\nx\n```", [("c", "```python\nx\n```")]),
    "granite-20b-fc: several": (
        "granite-20b-fc",
        ('<function_call> {"name": "get_weather", "arguments": {"city": "Paris"}}\n'
        '<function_call> {"name": "b", "arguments": {}}'),
        [CALL, ("call", "b", "{}")],
    ),
    "minimax: lines": (
        "minimax",
        ('<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
        '{"name": "b", "arguments": {}}\n</tool_calls>'),
        [CALL, ("call", "b", "{}")],
    ),
    "step3: other ways to begin a call": (
        "step3",
        (
            '<｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name="b"></steptml:invoke>'
            "<｜tool_call_end｜><｜tool_sep｜><｜tool_call_begin｜>function<｜tool_sep｜>c\n"
            '<steptml:invoke name="c"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>'
        ),
        [("call", "b", "{}"), ("call", "c", "{}")],
    ),
    "deepseek_v4: its own section": (
        "deepseek_v4",
        (
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="b">\n</｜DSML｜invoke>\n'
            "</｜DSML｜tool_calls>"
        ),
        [("call", "b", "{}")],
    ),
    "step3: several": (
        "step3",
        "<｜tool_calls_begin｜>"
        + '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="b"></steptml:invoke>'
        "<｜tool_call_end｜>" * 2 + "<｜tool_calls_end｜>",
        [("call", "b", "{}"), ("call", "b", "{}")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_consists_of_these_parts(name):
    """However it is cut, an answer is these thoughts, texts and calls."""
    family, text, expected = ANSWERS[name]
    assert [take_apart(pieces, tool=family) for pieces in cuts(text)] == [expected] * 3


@pytest.mark.parametrize("family", TOOL_PARSERS)
def test_the_example_of_a_family_is_one_call(family):
    """The example that the reference shows is read as what it says."""
    (kind, name, arguments, *_), *more = take_apart([TOOL_PARSERS[family].example], tool=family)
    assert (kind, name, more) == ("call", "get_weather", [])
    assert arguments.replace(" ", "").startswith('{"city":"Paris"')


@pytest.mark.parametrize("family", TOOL_PARSERS)
def test_no_mark_of_a_family_begins_another(family):
    """Of two marks the shorter wins, so the longer would never be found."""
    marks = TOOL_PARSERS[family]
    literals = (*marks.openers, *marks.sections, *marks.closers)
    pairs = [(a, b) for a in literals for b in literals if a != b and b.startswith(a)]
    assert pairs == []
