"""How the APIs are to behave."""

from dataclasses import dataclass
from typing import Annotated, Literal

from weft.core.declare import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """How the APIs behave, whoever asks; each field is the flag of `weft serve` with its name.

    `tool_call_parser` and `reasoning_parser` are names of `weft.text.parsers`, None for none; "auto"
    has been resolved by the chat template before this is made.
    """

    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        Flag(
            "How the template gets contents: as text, or as lists of parts; auto reads it off the template.",
            "API",
        ),
    ] = "auto"
    trust_request_chat_template: Annotated[
        bool, Flag("Render a request's own chat_template, in a sandbox and within limits.", "API")
    ] = False
    tool_call_parser: Annotated[
        str | None,
        Flag(
            "How the model writes tool calls; auto goes by the chat template.",
            "API",
            default="auto",
        ),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        Flag(
            "How the model writes reasoning; auto goes by the chat template. One that is named holds for "
            "gRPC too: constraints begin behind the reasoning.",
            "API",
            default="auto",
        ),
    ] = None
    enable_auto_tool_choice: Annotated[
        bool, Flag("Let the model choose whether to call a tool.", "API")
    ] = True
    exclude_tools_when_tool_choice_none: Annotated[
        bool, Flag('Hide the tools from the model when tool_choice is "none".', "API")
    ] = False
    response_role: Annotated[str, Flag("Role of the messages that are answered.", "API")] = (
        "assistant"
    )
    return_tokens_as_token_ids: Annotated[
        bool, Flag("Write the tokens of log-probabilities as token_id:ID.", "API")
    ] = False
    enable_prompt_tokens_details: Annotated[
        bool, Flag("Say how many prompt tokens came from the prefix cache.", "API")
    ] = True
    enable_force_include_usage: Annotated[
        bool, Flag("End every stream with its usage, requested or not.", "API")
    ] = False
    max_n: Annotated[int, Flag("Most answers to one request (n).", "API")] = 128
    allow_runtime_lora_updating: Annotated[
        bool,
        Flag("Let holders of a control key load and unload adapters, from any directory.", "API"),
    ] = False
    tool_server: Annotated[
        str | None,
        Flag(
            "MCP servers whose tools responses may call: HOST:PORT or a URL, LABEL= before it, commas between.",
            "API",
        ),
    ] = None
    allowed_tool_hosts: Annotated[
        str | None,
        Flag(
            "Hosts whose MCP servers a request may name by server_url: HOST or HOST:PORT, commas between; "
            "without it none.",
            "API",
        ),
    ] = None
