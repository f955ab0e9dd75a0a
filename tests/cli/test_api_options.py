"""The flags of the APIs arrive where they are used."""

from dataclasses import fields
from typing import Annotated

import pytest

from weft.cli.arguments.flags import flag_names, flags
from weft.cli.options import ServeOptions
from weft.cli.picker.options import EppOptions
from weft.cli.serving.loading import check_api_flags, to_api_options, to_rpc_options
from weft.cli.serving.serve import to_http_options
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.declare import Flag
from weft.epp.config.options import PickerOptions
from weft.epp.server.limits import PickerLimits
from weft.epp.server.options import ServerOptions
from weft.rpc.options import RpcOptions
from weft.text.parsers.table import REASONING_PARSERS, TOOL_PARSERS
from weft.web.http.options import HttpOptions
from weft.web.options import ApiOptions

HERMES = "<tools>{{ tools }}</tools> <tool_call>{{ call }}</tool_call> <think></think>"
OF_PICKER = (PickerOptions, ServerOptions, PickerLimits)
CHOSEN = {"tool_call_parser", "reasoning_parser"}


def test_every_option_of_the_apis_has_a_flag_and_arrives():
    """An option that is lost on the way is one that is accepted and ignored."""
    names = {field.name for field in fields(ApiOptions)} - CHOSEN
    given = {name: f"value of {name}" for name in names}
    arrived = to_api_options(ServeOptions(**given), None)  # type: ignore[arg-type]
    assert {name: getattr(arrived, name) for name in names} == given


def test_the_defaults_of_flags_are_the_defaults_of_the_apis():
    """Without a template to go by, there are no parsers either."""
    assert to_api_options(ServeOptions(), None) == ApiOptions()


@pytest.mark.parametrize("kind", [EngineOptions, ApiOptions, HttpOptions, RpcOptions, *OF_PICKER])
def test_a_flag_is_declared_once(kind):
    """Its name, type, default and help stand beside the setting, and nowhere else."""
    options = EppOptions if kind in OF_PICKER else ServeOptions
    names = set(flag_names(kind))
    assert names
    assert names <= {field.name for field in fields(options)}
    with pytest.raises(AssertionError, match="declared once"):
        flags(kind)(
            type(
                "Again",
                (),
                dict.fromkeys(names)
                | {"__annotations__": dict.fromkeys(names, Annotated[int, Flag("", "Server")])},
            )
        )


def test_what_may_be_repeated_arrives_as_the_setting_has_it():
    """A list on the command line; none where it is not given."""
    origins = ["https://a.example", "https://b.example"]
    assert to_http_options(ServeOptions(allowed_origins=origins)).allowed_origins == tuple(origins)
    assert to_http_options(ServeOptions()) == HttpOptions()


def test_parsers_go_by_the_chat_template():
    """Unless they are named, or refused."""
    auto = to_api_options(ServeOptions(), HERMES)
    named = ServeOptions(tool_call_parser="mistral", reasoning_parser="none")
    assert auto.tool_call_parser in TOOL_PARSERS
    assert auto.reasoning_parser in REASONING_PARSERS
    chosen = to_api_options(named, HERMES)
    assert (chosen.tool_call_parser, chosen.reasoning_parser) == ("mistral", None)


def test_parsers_that_do_not_go_together_are_refused_at_the_start():
    """Harmony's calls and thoughts are written in one way; the first request would be too late."""
    with pytest.raises(ConfigError, match="openai"):
        to_api_options(ServeOptions(tool_call_parser="openai", reasoning_parser="qwen3"), None)


@pytest.mark.parametrize("name", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_parser_is_refused(name: str):
    """With those that there are."""
    with pytest.raises(
        ConfigError, match=f"--{name.replace('_', '-')} 'x' is unknown; must be auto"
    ):
        check_api_flags(ServeOptions(**{name: "x"}))


@pytest.mark.parametrize(
    ("given", "expected"), [("auto", None), ("none", None), ("qwen3", "qwen3")]
)
def test_a_reasoning_parser_that_is_named_holds_for_grpc(given, expected):
    """Not one that was read off a template: callers there render prompts by themselves."""
    assert to_rpc_options(ServeOptions(reasoning_parser=given)).reasoning_parser == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be a JSON object"),
        ('["enable_thinking"]', "must be a JSON object"),
        ('{"messages": []}', "must not contain 'messages'"),
    ],
)
def test_default_template_kwargs_are_an_object_without_reserved_names(text, message):
    """An invalid value is refused before the model is read."""
    with pytest.raises(ConfigError, match=f"--default-chat-template-kwargs.*{message}"):
        check_api_flags(ServeOptions(default_chat_template_kwargs=text))  # type: ignore[call-arg]
