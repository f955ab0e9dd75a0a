"""Fields of OpenAI's bodies, and of engines that extend them, that change nothing here: refused, or only labels."""

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.core.errors import BadRequest

# Accepted with any value: they say who asks and how to group, not what to answer.
LABELS: Mapping[str, str] = {
    "user": "a name for the caller's own records",
    "metadata": "the caller's own notes; nothing is stored that they could be found by",
    "safety_identifier": "a name for the caller's own records",
    "prompt_cache_key": "every prompt is looked up in the prefix cache, whatever its key",
}

# The same inside other fields.
INNER_LABELS: Mapping[str, str] = {
    "response_format.json_schema.name": "a name for the caller's own records",
    "response_format.json_schema.description": "a note for the caller's own records",
    "response_format.json_schema.strict": "the answer always follows the schema",
    "tools.function.strict": (
        "a forced call always follows its schema; one of the model's own choice is as it writes it"
    ),
}

# By name: the values that ask for what happens anyway, and why no other is taken. Null is always one.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((), "this server answers in text"),
    "best_of": ((), "ask for n answers and choose among them"),
    "chat_template": ((), "templates of callers are not run; the model's own is used"),
    "early_stopping": ((False,), "beam search is not offered"),
    "function_call": ((), "it was replaced by tool_choice"),
    "functions": ((), "it was replaced by tools"),
    "guided_decoding_backend": (("auto", "guidance", "llguidance"), "there is one, llguidance"),
    "kv_transfer_params": (({},), "this engine takes no part in KV transfer"),
    "length_penalty": ((1.0,), "beam search is not offered"),
    "logits_processors": (([],), "code of callers is not run"),
    "mm_processor_kwargs": (({},), "this server takes text only"),
    "modalities": ((["text"],), "this server answers in text"),
    "moderation": ((), "no moderation is offered"),
    "prediction": ((), "predicted outputs are not offered"),
    "prompt_cache_options": (({},), "the prefix cache has no options of a request"),
    "prompt_cache_retention": (("in_memory", "in-memory"), "the prefix cache is in memory"),
    "prompt_embeds": (([],), "prompts are text or token ids"),
    "service_tier": (("auto", "default"), "there is one tier"),
    "store": ((False,), "chat completions are not stored"),
    "suffix": (("",), "suffix is not currently supported"),
    "use_beam_search": ((False,), "beam search is not offered"),
    "vllm_xargs": (({},), "this engine has no further arguments"),
    "web_search_options": ((), "this server does not search"),
}


def refuse_unsupported(
    body: msgspec.Struct, table: Mapping[str, tuple[tuple[Any, ...], str]] = REFUSED
) -> None:
    """Raise `BadRequest` for the first field of `body` that asks for what is not offered."""
    for name in body.__struct_fields__:
        if name not in table:
            continue
        value = getattr(body, name)
        neutral, reason = table[name]
        if value is not None and value not in neutral:
            allowed = "".join(f" or {msgspec.json.encode(item).decode()}" for item in neutral)
            raise BadRequest(name, f"{name} must be absent{allowed}: {reason}")
