"""Finds out whether an answer begins with reasoning, and which text ends it, from the options of a call."""

from collections.abc import Mapping
from typing import Any

from weft.core.errors import BadRequest
from weft.core.values.prompts import OpenReasoning
from weft.core.values.types import SamplingParams
from weft.core.values.unicode import encode_text
from weft.text.tokenizer import Tokenizer

MAX_END_CHARS = 64
# Number of last prompt tokens in which the marker is searched: white space may follow the marker.
_TAIL_TOKENS = 256


def read_reasoning(
    params: SamplingParams,
    reasoning_ended: bool | None,
    kwargs: Mapping[str, Any] | None,
    prompt_token_ids: list[int],
    tokenizer: Tokenizer | None,
) -> OpenReasoning | None:
    """Returns the open reasoning of an answer, by the arguments of `EngineClient.generate`; None without one."""
    if not (reasoning_ended is None or isinstance(reasoning_ended, bool)):
        raise BadRequest("reasoning_ended", "reasoning_ended must be true, false or None")
    end = _end_of(kwargs)
    if params.thinking_token_budget is not None:
        _check_budget(params, end)
    if end is None:
        if reasoning_ended is False:
            raise BadRequest(
                "reasoning_parser_kwargs",
                "reasoning_ended=False needs the text that ends the reasoning: "
                'reasoning_parser_kwargs={"end": "</think>"}',
            )
        return None
    if tokenizer is None:
        raise BadRequest(
            "reasoning_parser_kwargs",
            "reasoning_parser_kwargs needs a tokenizer, and this model has none",
        )
    token_ids = tokenizer.encode(end, add_special_tokens=False)
    if end not in tokenizer.decode(token_ids, skip_special_tokens=False):
        raise _bad_end("cannot be written with this model's tokenizer")
    if reasoning_ended is None:
        tail = tokenizer.decode(prompt_token_ids[-_TAIL_TOKENS:], skip_special_tokens=False)
        reasoning_ended = tail.rstrip().endswith(end.rstrip())
    return None if reasoning_ended else OpenReasoning(end=end, end_token_ids=token_ids)


def shows_end(end: str, token_ids: list[int], tokenizer: Tokenizer) -> bool:
    """True if the prompt contains the text that ends reasoning: anywhere if it is one token, else near its end."""
    found = tokenizer.encode(end.strip(), add_special_tokens=False)
    if len(found) == 1:
        return found[0] in token_ids
    return end.strip() in tokenizer.decode(token_ids[-_TAIL_TOKENS:], skip_special_tokens=False)


def _check_budget(params: SamplingParams, end: str | None) -> None:
    name = "thinking_token_budget"
    if end is None:
        raise BadRequest(
            name,
            f"{name} needs the text that ends the reasoning, and none is known for this request",
        )
    if params.grammar_from_first_token and params.structured_outputs is not None:
        raise BadRequest(
            name, f"{name} cannot be enforced where structured_outputs applies to the reasoning too"
        )


def _end_of(kwargs: Mapping[str, Any] | None) -> str | None:
    if kwargs is None:
        return None
    unknown = [str(key) for key in kwargs if key != "end"]
    if unknown:
        raise BadRequest(
            "reasoning_parser_kwargs",
            f"unknown reasoning_parser_kwargs {unknown[:5]}; the only one is end",
        )
    if "end" not in kwargs:
        return None
    end = kwargs["end"]
    if not isinstance(end, str) or not end.strip() or len(end) > MAX_END_CHARS:
        raise _bad_end(f"must be text of 1 to {MAX_END_CHARS} characters that are not all spaces")
    encode_text("reasoning_parser_kwargs", end)
    return end


def _bad_end(what: str) -> BadRequest:
    return BadRequest("reasoning_parser_kwargs", f"end of reasoning_parser_kwargs {what}")
