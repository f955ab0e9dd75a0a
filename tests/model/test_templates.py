"""Chat templates by name: with tools the one for tools is taken, wherever a model's files have it."""

import json
from datetime import datetime

import pytest

from tests.model.checkpoints import write_checkpoint
from weft.core.errors import ConfigError
from weft.model.open import open_model
from weft.model.tokenizers.templates import read_chat_template
from weft.text.templates.template import make_environment

# White space at every edge, which joining must keep.
PLAIN = "{%- for m in messages %}\n  {{ m }}\n{% endfor %}\n"
TOOLS = "\n  {% macro one(t) %}[{{ t }}]{% endmacro %}{% for t in tools %}{{ one(t) }}{% endfor %}  \n\n"
LIST = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": TOOLS}]


def config(chat_template):
    return {"tokenizer_config.json": json.dumps({"chat_template": chat_template}).encode()}


def written(source, tools):
    template = make_environment(datetime.now).from_string(source)
    return template.render(messages=["hi"], tools=tools)


FILES = {
    "a list": config([{"name": "rag", "template": "rag"}, *LIST]),
    "an object": config({"default": PLAIN, "tool_use": TOOLS}),
    "files": {
        "chat_template.jinja": PLAIN.encode(),
        "chat_template.tool_use.jinja": TOOLS.encode(),
        **config("old"),
    },
}


@pytest.mark.parametrize("files", FILES.values(), ids=FILES.keys())
def test_with_tools_the_template_for_tools_is_taken(files):
    """Each writes the text that it writes by itself, to the last space."""
    source = read_chat_template(files, "m")
    assert written(source, ["f"]) == written(TOOLS, ["f"])
    assert written(source, None) == written(PLAIN, None)


@pytest.mark.parametrize("entry", LIST, ids=["default", "tool_use"])
def test_a_single_template_is_that_of_all_conversations(entry):
    """A model whose only template is that for tools is not without one."""
    assert read_chat_template(config([entry]), "m") == entry["template"]


def test_the_directory_of_named_templates_is_read(tmp_path):
    """As transformers saves them, beside chat_template.jinja."""
    directory = write_checkpoint(tmp_path / "m")
    (directory / "chat_template.jinja").write_text(PLAIN)
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text(TOOLS)
    source = open_model(str(directory)).with_tokenizer().chat_template
    assert written(source, ["f"]) == written(TOOLS, ["f"])
    assert written(source, None) == written(PLAIN, None)


@pytest.mark.parametrize("given", [{"default": 3}, [{"name": "default"}], ["text"], 3])
def test_what_is_no_template_is_refused(given):
    """By the file and the key."""
    with pytest.raises(
        ConfigError, match=r"m/tokenizer_config\.json: chat_template is .* must be text"
    ):
        read_chat_template(config(given), "m")


@pytest.mark.parametrize("name", ["default", "tool_use"])
def test_every_template_that_may_be_rendered_is_checked(name):
    """A broken one is found at the start, not by the first request with tools."""
    named = {"default": PLAIN, "tool_use": TOOLS, name: "{% if %}"}
    with pytest.raises(ConfigError, match="chat_template: line 1"):
        read_chat_template(config(named), "m")
