"""Chat templates: the same text as transformers, and nothing that hangs."""

import asyncio
import json
import time
from contextlib import ExitStack

import pytest
from transformers import PreTrainedTokenizerFast

from tests.busy import PATIENCE_S, is_within
from tests.text.vocabularies import byte_level_library
from weft.core.errors import BadRequest, ConfigError
from weft.text.templates.chat import RESERVED_NAMES, ChatTemplate, TemplateOptions
from weft.text.templates.render_processes import RenderLimits

TOKENS = {"bos_token": "<|start|>", "eos_token": "<|end|>"}

CHATML = """
{%- macro signature(tool) %}{{ tool.function.name }}: {{ tool | tojson }}{% endmacro %}
{%- if tools %}
<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}
{%- endif %}
# Tools
{%- for tool in tools %}
{{ signature(tool) }}
{%- endfor %}<|im_end|>
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{%- elif not (tools and loop.first and message.role == 'system') %}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson(indent=2) }}</tool_call>
{%- endfor %}<|im_end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{%- endif %}
"""

LLAMA = """{{ bos_token }}{% for message in messages %}
{%- set text = message['content'] | trim %}
<|header|>{{ message['role'] }}<|/header|>

{{ text + eos_token }}
{%- endfor %}{% if add_generation_prompt %}<|header|>assistant<|/header|>

{% endif %}"""

MISTRAL = """{{ bos_token }}{% set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = message.content + '\\n\\n' %}
        {%- continue %}
    {%- elif message.role == 'user' %}
        [INST] {{ ns.system }}{{ message.content }} [/INST]
    {%- elif message.role == 'assistant' %}
        {%- generation %} {{ message.content }}{{ eos_token }}{% endgeneration %}
    {%- else %}
        {{- raise_exception('roles must be system, user and assistant, got ' + message.role) }}
    {%- endif %}
{%- endfor %}"""

PARTS = """{% for message in messages %}{{ message.role }}:
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}[{{ part.text }}]{% endfor %}{% endif %}
{% endfor %}{% for document in documents or [] %}{{ document.title }};{% endfor %}"""

TALK = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": "Café? 你好 "},
    {"role": "assistant", "content": "Oui. "},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "q": "é<"}},
    }
]


def reference(source, messages, **options):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_library(), chat_template=source, **TOKENS
    )
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


@pytest.mark.parametrize("source", [CHATML, LLAMA, MISTRAL, PARTS])
@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True},
        {"add_generation_prompt": False, "tools": TOOLS},
        {"add_generation_prompt": True, "template_kwargs": {"enable_thinking": False}},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"add_generation_prompt": False, "documents": [{"title": "T", "text": "x"}]},
    ],
)
def test_prompts_are_those_of_transformers(source, options):
    """Tools, documents, own variables, continuation: each renders the text models were trained on."""
    with ChatTemplate(source, TOKENS) as template:
        flat = {**options, **options.get("template_kwargs", {})}
        flat.pop("template_kwargs", None)
        assert template.render(TALK, **options) == reference(source, TALK, **flat)


def test_a_tool_conversation_is_that_of_transformers():
    """Arguments that arrive as JSON text reach the template as the object it expects."""
    call = {"type": "function", "function": {"name": "look", "arguments": {"q": "Löwe"}}}
    wire = {"type": "function", "function": {"name": "look", "arguments": '{"q": "Löwe"}'}}
    talk = [TALK[1], {"role": "assistant", "content": ""}, {"role": "tool", "content": "7"}]
    ours = [talk[0], {"role": "assistant", "content": None, "tool_calls": [wire]}, talk[2]]
    theirs = [talk[0], {**talk[1], "tool_calls": [call]}, talk[2]]
    with ChatTemplate(CHATML, TOKENS) as template:
        assert template.render(ours, tools=TOOLS) == reference(
            CHATML, theirs, tools=TOOLS, add_generation_prompt=True
        )


def test_contents_take_the_form_the_template_reads():
    """A template that loops over content gets parts; any other gets one string."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    with ChatTemplate(PARTS, TOKENS) as template:
        assert "user" in template.facts(has_tools=False).part_roles
        assert template.render([{"role": "user", "content": parts}]) == "user:[a][b]"
    with ChatTemplate("{{ messages[0].content }}", TOKENS) as template:
        assert not template.facts(has_tools=False).part_roles
        assert template.render([{"role": "user", "content": parts}]) == "a\nb"


def test_the_date_is_that_of_the_call():
    """`strftime_now` gives today, as the models' templates expect."""
    with ChatTemplate("{{ strftime_now('%Y') }}", TOKENS) as template:
        assert template.render(TALK) == time.strftime("%Y")


def test_a_syntax_error_names_its_line():
    """A broken template in a checkpoint is one line for the user, at start."""
    with pytest.raises(ConfigError, match="chat template, line 2: "):
        ChatTemplate("ok\n{% for %}", TOKENS)


def test_a_template_can_refuse_the_messages():
    """`raise_exception` is the template's own check of the conversation."""
    with ChatTemplate(MISTRAL, TOKENS) as template:
        with pytest.raises(BadRequest, match="roles must be system, user and assistant, got bot"):
            template.render([{"role": "bot", "content": "x"}])
        assert template.render(TALK[1:2]).endswith("[INST] Café? 你好  [/INST]")


FOREVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HUGE_NUMBER = "{{ messages[0].content | length ** (9 ** 9) % 7 }}"


@pytest.mark.parametrize("source", [FOREVER, HUGE_NUMBER])
def test_a_template_that_never_ends_is_stopped(source):
    """Whether it loops in the template or inside one operation; the next rendering works."""
    with ChatTemplate(
        "{% if messages[0].role == 'evil' %}" + source + "{% endif %}fine",
        TOKENS,
        options=TemplateOptions(limits=RenderLimits(time_limit_s=0.3)),
    ) as template:
        template.render(TALK)
        started = time.monotonic()
        with pytest.raises(BadRequest, match=r"did not finish within 0\.3 s"):
            template.render([{"role": "evil", "content": "123456789"}])
        assert is_within(time.monotonic() - started, 4)  # at most ten times as long by the clock
        assert template.render(TALK) == "fine"


def test_only_rendering_counts_against_the_time_limit():
    """The process waits for its next call as long as it takes."""
    limits = RenderLimits(time_limit_s=0.5)
    with ChatTemplate("fine", TOKENS, TemplateOptions(limits=limits)) as template:
        template.render(TALK)
        time.sleep(0.7)
        assert template.render(TALK) == "fine"


def test_a_closed_template_starts_again():
    """Closing gives the process back; it does not end the template's use."""
    template = ChatTemplate("fine", TOKENS)
    template.render(TALK)
    template.close()
    template.close()
    with template:
        assert template.render(TALK) == "fine"


def test_a_template_is_compiled_under_the_limits_too():
    """Constant expressions are evaluated when a template is compiled."""
    limits = RenderLimits(time_limit_s=0.3)
    with (
        ChatTemplate("{{ 9 ** (9 ** 9) % 7 }}", TOKENS, TemplateOptions(limits=limits)) as template,
        pytest.raises(BadRequest, match="did not finish"),
    ):
        template.render(TALK)


DOUBLING = """{% set ns = namespace(s='xxxx') %}
{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"""


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(1000) %}{{ 'x' * 1000 }}{% endfor %}",
        DOUBLING,
        "{{ 'x'.ljust(10 ** 12) }}",
    ],
)
def test_a_template_that_makes_too_much_is_stopped(source):
    """Output is bounded by length, and what leads to it by memory."""
    limits = RenderLimits(
        time_limit_s=PATIENCE_S, max_chars=100_000, max_memory_bytes=256 * 1024 * 1024
    )
    with (
        ChatTemplate(source, TOKENS, TemplateOptions(limits=limits)) as template,
        pytest.raises(BadRequest, match=r"longer than 100000 characters|too much memory"),
    ):
        template.render(TALK)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ none_such.attribute }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source):
    """No interpreter internals; what it was given is a copy of its own."""
    with (
        ChatTemplate(source, TOKENS) as template,
        pytest.raises(BadRequest, match="template failed"),
    ):
        template.render(TALK)


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), "bos_token"])
def test_reserved_names_are_refused(name):
    """A caller's keywords may not replace arguments, functions or special tokens."""
    with pytest.raises(BadRequest, match=f"may not set '{name}'") as caught:
        ChatTemplate("x", TOKENS).render(TALK, template_kwargs={name: True})
    assert caught.value.parameter == "chat_template_kwargs"


@pytest.mark.parametrize("value", [[{"name": "f"}], {"length": "short"}, "x", 1.5, True, None])
def test_any_json_reaches_the_template_from_a_caller(value):
    """Templates of Granite read `controls`, an object, and those of SmolLM3 `xml_tools`, a list."""
    template = ChatTemplate("{{ extra | tojson }}", TOKENS)
    assert json.loads(template.render(TALK, template_kwargs={"extra": value})) == value


def test_only_json_reaches_the_template_from_a_caller():
    """The template runs in another process, to which JSON is sent."""
    with pytest.raises(BadRequest, match="chat_template_kwargs must be plain JSON"):
        ChatTemplate("x", TOKENS).render(TALK, template_kwargs={"extra": object()})


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        ("hello", "must be a list"),
        ([1], r"messages\[0\] must be an object with a role"),
        ([{"content": "x"}], "with a role"),
        ([{"role": "user", "content": 7}], r"messages\[0\].content must be a string"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "got 'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text of a part must be a string"),
        ([{"role": "user", "content": "", "x": float("nan")}], "must be plain JSON"),
        ([{"role": "user", "content": "", "x": object()}], "must be plain JSON"),
    ],
)
def test_malformed_messages_are_bad_requests(messages, words):
    """Each says where and what, and none reaches the template."""
    with ChatTemplate("x", TOKENS) as template, pytest.raises(BadRequest, match=words):
        template.render(messages)


def test_messages_beyond_the_input_limit_are_refused():
    """The limit is on what the template is given, before it runs."""
    template = ChatTemplate("x", TOKENS, TemplateOptions(limits=RenderLimits(max_input_chars=1000)))
    with pytest.raises(BadRequest, match="at most 1000"):
        template.render([{"role": "user", "content": "y" * 1000}])


def test_odd_text_passes_through_unharmed():
    """NUL, newlines, braces and lone surrogates are text, to the template and on the pipe."""
    text = json.loads('"a\\u0000\\n{{ 7*7 }}\\u2028\\ud83d"')
    with ChatTemplate("{{ messages[0].content }}", TOKENS) as template:
        assert template.render([{"role": "user", "content": text}]) == text


def test_continuing_and_prompting_exclude_each_other():
    """A prompt either goes on with the last message or opens a new one."""
    with pytest.raises(BadRequest, match="exclude each other"):
        ChatTemplate("x", TOKENS).render(TALK, continue_final_message=True)


def test_a_template_that_drops_the_last_message_cannot_continue_it():
    """There is no place to go on from."""
    with ChatTemplate("x", TOKENS) as template, pytest.raises(BadRequest, match="leaves out"):
        template.render(TALK, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize(
    ("wants_parts", "written"), [(True, "<hi>"), (False, "<h><i>"), (None, "<hi>")]
)
def test_the_form_of_contents_can_be_decided(wants_parts, written):
    """A template that is read wrongly can be told what it gets: parts, or one text (here its letters)."""
    source = (
        "{% for m in messages %}{% for p in m.content %}<{{ p.text or p }}>{% endfor %}{% endfor %}"
    )
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    with ChatTemplate(source, {}, TemplateOptions(wants_parts=wants_parts)) as template:
        assert template.render([message]) == written


async def test_short_conversations_wait_for_no_long_ones():
    """A long one takes a quarter of a second, and there may be dozens of them."""
    long = [{"role": "user", "content": "long " * 10_000}]
    short = [{"role": "user", "content": "short"}]
    with ChatTemplate("{{ messages[0].content }}", TOKENS) as template, ExitStack() as stack:
        processes = template.processes
        for _ in range(processes._long._most):  # all processes for long ones are busy
            stack.enter_context(processes._long._turns)
        waiting = [
            asyncio.create_task(processes.run_soon(lambda: (template.prepare(long), None)))
            for _ in range(40)
        ]
        text, _ = await processes.run_soon(lambda: (template.prepare(short), None))
        assert text == "short"
        assert not any(task.done() for task in waiting)
        stack.close()
        texts = [text for text, _ in await asyncio.gather(*waiting)]
    assert texts == [long[0]["content"]] * 40


@pytest.mark.parametrize(("source", "num_warnings"), [("{{ tools | tojson }}", 0), ("x", 1)])
def test_a_template_that_leaves_tools_out_is_told_in_the_log_once(caplog, source, num_warnings):
    """A model that was never shown the tools does not call them, and nobody would know why."""
    with ChatTemplate(source, TOKENS) as template:
        template.render(TALK, tools=TOOLS)
        template.render(TALK, tools=TOOLS)
        template.render(TALK)
    assert caplog.text.count("does not write tools") == num_warnings
