"""The tool families, by vLLM's names of their parsers. More specific families come before more general ones."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.text.parsers.families import ToolFamily
from weft.text.parsers.forms.json_calls import JsonCalls
from weft.text.parsers.forms.named_calls import NamedCalls, NamedOrJsonCalls
from weft.text.parsers.forms.python_calls import PythonCalls
from weft.text.parsers.forms.tagged_calls import TaggedCalls, Tags
from weft.text.parsers.forms.values import ANY_KIND, TEXT_KIND
from weft.text.parsers.streams import Markers

_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEP = "<｜tool▁sep｜>"

_FUNCTION_TAGS = Tags(
    name_end=">",
    key_start="<parameter=",
    key_ends=(">",),
    value_end="</parameter>",
    call_end="</function>",
    is_padded=True,
)
_INVOKE_TAGS = Tags(
    name_end='">',
    key_start='<parameter name="',
    key_ends=('">',),
    value_end="</parameter>",
    call_end="</invoke>",
)
_STEP_TAGS = Tags(
    name_end='">',
    key_start='<steptml:parameter name="',
    key_ends=('">',),
    value_end="</steptml:parameter>",
    call_end="</steptml:invoke>",
)
_DSML_TAGS = Tags(
    name_end='">',
    key_start='<｜DSML｜parameter name="',
    key_ends=('" string="true">', '" string="false">'),
    value_end="</｜DSML｜parameter>",
    call_end="</｜DSML｜invoke>",
    kinds_by_key_end={'" string="true">': TEXT_KIND, '" string="false">': ANY_KIND},
)
_ARG_TAGS = Tags(
    name_end="",
    key_start="<arg_key>",
    key_ends=("</arg_key>",),
    value_start="<arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
)

_FAMILIES = {
    "openai": ToolFamily(
        form=None,
        template_marks=("<|channel|>", "to=functions"),
        models="gpt-oss",
        example="<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Paris"}<|call|>',
    ),
    "kimi_k2": ToolFamily(
        form=NamedCalls(after=Markers(("<|tool_call_argument_begin|>",)), has_id_names=True),
        sections=("<|tool_calls_section_begin|>",),
        openers=("<|tool_call_begin|>",),
        closers=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        counts_ids=True,
        template_marks=("<|tool_calls_section_begin|>",),
        models="Kimi K2",
        example="<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        between="<|tool_call_end|><|tool_call_begin|>functions.",
    ),
    "deepseek_v32": ToolFamily(
        form=TaggedCalls(_DSML_TAGS),
        sections=("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
        openers=('<｜DSML｜invoke name="',),
        closers=("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
        template_marks=("｜DSML｜",),
        models="DeepSeek V3.2, V4",
        example='<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        between='\n</｜DSML｜invoke>\n<｜DSML｜invoke name="',
    ),
    "deepseek_v3": ToolFamily(
        form=NamedCalls(
            before=Markers((f"function{_SEP}",)),
            is_fenced=True,
        ),
        sections=(_CALLS_BEGIN,),
        openers=(_CALL_BEGIN,),
        closers=(_CALL_END, _CALLS_END),
        template_marks=(_CALLS_BEGIN, "```json"),
        models="DeepSeek V3, R1",
        example=f"{_CALLS_BEGIN}{_CALL_BEGIN}function{_SEP}get_weather\n```json\n"
        f'{{"city": "Paris"}}\n```{_CALL_END}{_CALLS_END}',
        between=f"\n```{_CALL_END}\n{_CALL_BEGIN}function{_SEP}",
    ),
    "deepseek_v31": ToolFamily(
        form=NamedCalls(after=Markers((_SEP,))),
        sections=(_CALLS_BEGIN,),
        openers=(_CALL_BEGIN,),
        closers=(_CALL_END, _CALLS_END),
        template_marks=(_CALLS_BEGIN,),
        models="DeepSeek V3.1",
        example=f'{_CALLS_BEGIN}{_CALL_BEGIN}get_weather{_SEP}{{"city": "Paris"}}'
        f"{_CALL_END}{_CALLS_END}",
        between=f"{_CALL_END}{_CALL_BEGIN}",
    ),
    "step3": ToolFamily(
        form=TaggedCalls(_STEP_TAGS),
        sections=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<｜tool_sep｜>"),
        openers=('<steptml:invoke name="',),
        closers=("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
        template_marks=("steptml",),
        models="Step3",
        example="<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="get_weather"><steptml:parameter name="city">Paris'
        "</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
        between='</steptml:invoke><｜tool_call_end｜><｜tool_call_begin｜>function<｜tool_sep｜>'
        '<steptml:invoke name="',
    ),
    "minimax_m2": ToolFamily(
        form=TaggedCalls(_INVOKE_TAGS),
        sections=("<minimax:tool_call>",),
        openers=('<invoke name="',),
        closers=("</minimax:tool_call>",),
        template_marks=("<minimax:tool_call>",),
        models="MiniMax M2",
        example='<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call>',
        between='\n</invoke>\n<invoke name="',
    ),
    "seed_oss": ToolFamily(
        form=TaggedCalls(_FUNCTION_TAGS),
        sections=("<seed:tool_call>",),
        openers=("<function=",),
        closers=("</seed:tool_call>",),
        template_marks=("<seed:tool_call>",),
        models="Seed-OSS",
        example="<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
        "</function>\n</seed:tool_call>",
    ),
    "qwen3_coder": ToolFamily(
        form=TaggedCalls(_FUNCTION_TAGS),
        sections=("<tool_call>",),
        openers=("<function=",),
        closers=("</tool_call>",),
        template_marks=("<function=", "<parameter="),
        models="Qwen3-Coder, Qwen3.5, Nemotron 3",
        example="<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    "glm45": ToolFamily(
        form=TaggedCalls(_ARG_TAGS),
        openers=("<tool_call>",),
        closers=("</tool_call>",),
        template_marks=("<arg_key>", "<arg_value>"),
        models="GLM-4.5, 4.6, 4.7",
        example="<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "</tool_call>",
    ),
    "mistral": ToolFamily(
        form=NamedOrJsonCalls(
            NamedCalls(
                id_mark=Markers(("[CALL_ID]",)),
                after=Markers(("[ARGS]",)),
                is_after_optional=True,
            ),
            JsonCalls(),
        ),
        openers=("[TOOL_CALLS]",),
        has_short_ids=True,
        template_marks=("[TOOL_CALLS]",),
        models="Mistral, Magistral, Devstral, Ministral",
        example='[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
        between="[TOOL_CALLS]",
    ),
    "internlm": ToolFamily(
        openers=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        closers=("<|action_end|>",),
        template_marks=("<|action_start|>",),
        models="InternLM 2.5",
        example='<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": '
        '{"city": "Paris"}}<|action_end|>',
    ),
    "granite": ToolFamily(
        openers=("<|tool_call|>", "<tool_call>"),
        closers=("</tool_call>",),
        template_marks=("<|tool_call|>",),
        models="Granite 3",
        example='<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        between='}, {"name": "',
    ),
    "granite-20b-fc": ToolFamily(
        openers=("<function_call>",),
        needs_special_tokens=False,
        template_marks=("<function_call>",),
        models="Granite 20B function calling",
        example='<function_call> {"name": "get_weather", "arguments": {"city": "Paris"}}',
    ),
    "lfm2": ToolFamily(
        form=PythonCalls(),
        openers=("<|tool_call_start|>",),
        closers=("<|tool_call_end|>",),
        template_marks=("<|tool_call_start|>",),
        models="LFM2",
        example="<|tool_call_start|>[get_weather(city='Paris')]<|tool_call_end|>",
        between="), ",
    ),
    "olmo3": ToolFamily(
        form=PythonCalls(),
        openers=("<function_calls>",),
        closers=("</function_calls>",),
        needs_special_tokens=False,
        template_marks=("<function_calls>",),
        models="OLMo 3",
        example="<function_calls>\nget_weather(city='Paris')\n</function_calls>",
        between=")\n",
    ),
    "llama4_pythonic": ToolFamily(
        form=PythonCalls(needs_list=True),
        openers=("<|python_start|>",),
        closers=("<|python_end|>",),
        starts="[",
        template_marks=("<|header_start|>",),
        models="Llama 4",
        example="<|python_start|>[get_weather(city='Paris')]<|python_end|>",
        between="), ",
    ),
    "llama3_json": ToolFamily(
        form=JsonCalls(needs_arguments=True),
        openers=("<|python_tag|>",),
        starts="{[",
        template_marks=("<|start_header_id|>", '"parameters"'),
        models="Llama 3.1, 3.2, 3.3",
        example='{"name": "get_weather", "parameters": {"city": "Paris"}}',
        between='}; {"name": "',
    ),
    "llama4_json": ToolFamily(
        form=JsonCalls(needs_arguments=True),
        openers=("<|python_tag|>", "<|python_start|>"),
        closers=("<|python_end|>",),
        starts="{[",
        models="Llama 4 with a JSON template",
        example='{"name": "get_weather", "parameters": {"city": "Paris"}}',
        between='}; {"name": "',
    ),
    "phi4_mini_json": ToolFamily(
        openers=("functools",),
        needs_special_tokens=False,
        template_marks=("<|/tool|>",),
        models="Phi-4-mini",
        example='functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        between='}, {"name": "',
    ),
    "hunyuan_a13b": ToolFamily(
        openers=("<tool_calls>",),
        closers=("</tool_calls>",),
        needs_special_tokens=False,
        template_marks=("<tool_calls>", "<answer>"),
        models="Hunyuan A13B",
        example='<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>',
        between='}, {"name": "',
    ),
    "minimax": ToolFamily(
        openers=("<tool_calls>",),
        closers=("</tool_calls>",),
        needs_special_tokens=False,
        template_marks=("<tool_calls>", "<beginning_of_sentence>"),
        models="MiniMax M1",
        example='<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_calls>',
        between='}\n{"name": "',
    ),
    "jamba": ToolFamily(
        openers=("<tool_calls>",),
        closers=("</tool_calls>",),
        template_marks=("<tool_calls>",),
        models="Jamba 1.5, 1.6",
        example='<tool_calls>[\n  {"name": "get_weather", "arguments": {"city": "Paris"}}\n]</tool_calls>',
        between='},\n  {"name": "',
    ),
    "longcat": ToolFamily(
        openers=("<longcat_tool_call>",),
        closers=("</longcat_tool_call>",),
        template_marks=("<longcat_tool_call>",),
        models="LongCat-Flash",
        example='<longcat_tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}'
        "</longcat_tool_call>",
    ),
    "hermes": ToolFamily(
        openers=("<tool_call>",),
        closers=("</tool_call>",),
        template_marks=("<tool_call>",),
        models="Qwen 2.5, Qwen 3, QwQ, Hermes 2 Pro and 3, Granite 4, Ernie 4.5",
        example='<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    ),
    "pythonic": ToolFamily(
        form=PythonCalls(needs_list=True),
        starts="[",
        needs_special_tokens=False,
        template_marks=("[func_name1(",),
        models="Llama 3.2 1B and 3B, ToolACE",
        example="[get_weather(city='Paris')]",
        between="), ",
    ),
    "xlam": ToolFamily(
        form=JsonCalls(needs_arguments=True, is_fenced=True),
        openers=("<tool_call>", "[TOOL_CALLS]", "```"),
        closers=("</tool_call>",),
        starts="[{",
        needs_special_tokens=False,
        models="xLAM 2",
        example='[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        between='}, {"name": "',
    ),
}  # fmt: skip

# Names of vLLM for a format that has another name here.
ALIASES: Mapping[str, str] = MappingProxyType({
    "deepseek_v4": "deepseek_v32",
    "ernie45": "hermes",
    "glm47": "glm45",
    "granite4": "hermes",
    "qwen3_xml": "qwen3_coder",
})  # fmt: skip

TOOL_PARSERS: Mapping[str, ToolFamily] = MappingProxyType(
    _FAMILIES | {alias: _FAMILIES[name] for alias, name in ALIASES.items()}
)
