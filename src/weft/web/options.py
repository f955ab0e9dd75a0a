"""Options of the HTTP APIs."""

from dataclasses import dataclass
from typing import Annotated, Literal

from weft.core.values.declare import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Behaviour of the HTTP APIs for all callers; each field is the flag of `weft serve` with the same name.

    `tool_call_parser` and `reasoning_parser` are names of `weft.text.parsers`, None for none; "auto"
    has been resolved by the chat template before this is made.
    """

    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        Flag(
            "Format of message content in the chat template: string (text), openai (a list of parts), or auto "
            "(decided by the template).",
            "API",
        ),
    ] = "auto"
    default_chat_template_kwargs: Annotated[
        str | None,
        Flag(
            'Default chat_template_kwargs of every request, as a JSON object such as {"enable_thinking": false}. A '
            "value of the request replaces the default.",
            "API",
            is_json=True,
        ),
    ] = None
    trust_request_chat_template: Annotated[
        bool,
        Flag(
            "Accept chat_template in requests; it is rendered in a sandbox, within limits.", "API"
        ),
    ] = False
    tool_call_parser: Annotated[
        str | None,
        Flag(
            "Parser of the model's tool calls; auto chooses by the chat template.",
            "API",
            default="auto",
        ),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        Flag(
            "Parser of the model's reasoning; auto chooses by the chat template. A parser that is given by name "
            "applies to gRPC requests too: their structured output begins after the reasoning.",
            "API",
            default="auto",
        ),
    ] = None
    enable_auto_tool_choice: Annotated[
        bool, Flag('Let the model decide whether to call a tool (tool_choice "auto").', "API")
    ] = True
    exclude_tools_when_tool_choice_none: Annotated[
        bool, Flag('Leave tools out of the prompt when tool_choice is "none".', "API")
    ] = False
    response_role: Annotated[str, Flag("Role of the generated messages.", "API")] = "assistant"
    return_tokens_as_token_ids: Annotated[
        bool, Flag("Write tokens in logprobs as token_id:ID.", "API")
    ] = False
    enable_prompt_tokens_details: Annotated[
        bool, Flag("Report the number of cached prompt tokens in usage.", "API")
    ] = True
    enable_force_include_usage: Annotated[
        bool, Flag("Send usage at the end of every stream, even if it was not requested.", "API")
    ] = False
    max_n: Annotated[int, Flag("Maximum value of n, the number of answers per request.", "API")] = (
        128
    )
    allow_runtime_lora_updating: Annotated[
        bool,
        Flag(
            "Allow loading and unloading of LoRA adapters at run time, from any directory; callers need a "
            "control API key.",
            "API",
        ),
    ] = False
    tool_server: Annotated[
        str | None,
        Flag(
            "MCP servers whose tools the Responses API may call: [LABEL=]HOST:PORT or [LABEL=]URL, separated by "
            "commas.",
            "API",
        ),
    ] = None
    allowed_tool_hosts: Annotated[
        str | None,
        Flag(
            "Hosts that a request may name in server_url of an MCP tool: HOST or HOST:PORT, separated by commas. "
            "Default: none.",
            "API",
        ),
    ] = None
