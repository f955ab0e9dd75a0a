"""Chat templates of a checkpoint: finds them under all their file names, checks them, and joins them into one."""

from collections.abc import Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from weft.core.errors import ConfigError
from weft.model.fields import Fields, one_line
from weft.model.tokenizers.token_facts import read_settings

TEMPLATE = "chat_template.jinja"
# The template for conversations with tools; in a checkpoint it is in a subdirectory, here it has a plain name.
TOOL_TEMPLATE = "chat_template.tool_use.jinja"
TOOL_TEMPLATE_PATH = "additional_chat_templates/tool_use.jinja"
_DEFAULT, _TOOL_USE = "default", "tool_use"
_MAX_TEMPLATE_CHARS = 1 << 20  # templates of models in use have some thousands


def read_chat_template(files: Mapping[str, bytes], where: str) -> str | None:
    """Returns the chat template among `files`, checked; None if the model has none.

    If a model has a second template for conversations with tools, both are joined into one.
    """
    named = {} if TEMPLATE in files else _named_templates(read_settings(files, where))
    for name, file in ((_DEFAULT, TEMPLATE), (_TOOL_USE, TOOL_TEMPLATE)):
        if file in files:
            named[name] = _decoded(files[file], f"{where}/{file}")
            _check_template(named[name], f"{where}/{file}")
    default, tool_use = named.get(_DEFAULT), named.get(_TOOL_USE)
    if default is None or tool_use is None:
        return tool_use if default is None else default
    return _either(default, tool_use)


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path}: not UTF-8 text (byte {err.start})") from err


def _named_templates(config: Fields) -> dict[str, str]:
    """Returns the templates in tokenizer_config.json by name; the file has one text, or a list or object of named
    texts.
    """
    value = config.values.get("chat_template")
    match value:
        case None:
            return {}
        case str():
            named: dict[Any, Any] = {_DEFAULT: value}
        case dict():
            named = value
        case list() if all(isinstance(entry, dict) for entry in value):
            named = {str(entry.get("name")): entry.get("template") for entry in value}
        case _:
            named = {_DEFAULT: None}
    if not all(isinstance(template, str) for template in named.values()):
        config.refuse(
            "chat_template", "text, a list of objects with name and template, or texts by name"
        )
    wanted = {name: str(named[name]) for name in (_DEFAULT, _TOOL_USE) if name in named}
    for template in wanted.values():
        _check_template(template, f"{config.where}: chat_template")
    return wanted


def _either(default: str, tool_use: str) -> str:
    """Returns one template that uses `tool_use` if there are tools. The `+` signs preserve the white space of both."""
    first, second = (text.removesuffix("\n") for text in (tool_use, default))
    return f"{{% if tools %}}\n{first}{{%+ else %}}\n{second}{{%+ endif %}}"


class _GenerationBlock(Extension):
    """The template block `{% generation %}`, which marks text for training masks; Weft only parses it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_template(template: str, where: str) -> None:
    """Raises `ConfigError` for a chat template that does not parse or is too large."""
    if len(template) > _MAX_TEMPLATE_CHARS:
        raise ConfigError(
            f"{where}: has {len(template)} characters; at most {_MAX_TEMPLATE_CHARS} are read"
        )
    environment = ImmutableSandboxedEnvironment(
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    try:
        environment.parse(template)
    except jinja2.TemplateSyntaxError as err:
        raise ConfigError(f"{where}: line {err.lineno}: {one_line(err)}") from err
    except RecursionError:
        raise ConfigError(f"{where}: the template is nested too deeply") from None
