"""Converts `options`, `format`, `think` and `keep_alive` of Ollama's bodies to the parameters of a turn."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.types import SamplingParams, StructuredOutputsParams
from weft.schema.ollama import GenerationBody, OllamaOptions
from weft.web.http.endpoint import Deviation
from weft.web.inference.fields import report_unheld
from weft.web.served import Served

# Ollama's options, by the parameter that each sets.
_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "temperature": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "repetition_penalty": "repeat_penalty",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "seed": "seed",
        "stop": "stop",
    }
)
# This API's names of fields, by the engine's names in error messages.
NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {name: f"options.{option}" for name, option in _OPTIONS.items()}
    | {"max_tokens": "options.num_predict", "json": "format", "logprobs": "top_logprobs"}
)
# By option: the values that change nothing here, and why any other value is refused.
_REFUSED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = MappingProxyType(
    {
        "mirostat": ((0,), "Mirostat sampling is not offered"),
        "typical_p": ((1.0,), "typical sampling is not offered"),
        "tfs_z": ((1.0,), "tail-free sampling is not offered"),
        "penalize_newline": ((True,), "penalties apply to every token"),
        "vocab_only": ((False,), "the server has the whole model"),
    }
)
# Levels of `think` that templates with levels of effort have.
_LEVELS: Final = ("low", "medium", "high")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_LONG_S: Final = 1e8
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_DURATION: Final = re.compile(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+|-?\d+(\.\d+)?")


def to_params(served: Served, body: GenerationBody) -> SamplingParams:
    """Returns the sampling parameters; options that are absent have the model's own values."""
    options = _read(body.options)
    check_keep_alive(body.keep_alive)
    given = {
        name: value
        for name, option in _OPTIONS.items()
        if (value := getattr(options, option)) is not None
    }
    if options.repeat_last_n == 0:
        given["repetition_penalty"] = 1.0  # the penalty looks at no token
    if options.seed == -1:
        del given["seed"]  # a random one
    # -1 means no limit, and -2 an answer that fills the context, which is the same here.
    limit = None if options.num_predict in (-1, -2) else options.num_predict
    return SamplingParams(
        **{**served.client.model_config.default_sampling_params, **given},
        max_tokens=limit,
        logprobs=_num_logprobs(body),
        structured_outputs=_constraint(body.format),
    )


def to_template_kwargs(think: bool | str | None) -> dict[str, Any]:
    """Returns the template's arguments for reasoning; none leave the template's default."""
    if think is None:
        return {}
    if isinstance(think, str):
        if think not in _LEVELS:
            raise BadRequest("think", f"think must be true, false or one of {', '.join(_LEVELS)}")
        return {"enable_thinking": True, "thinking": True, "reasoning_effort": think}
    return {"enable_thinking": think, "thinking": think}


def check_keep_alive(keep_alive: str | float | None) -> None:
    """Refuses a duration that cannot be read. The model stays in memory while the server runs, whatever it says."""
    if isinstance(keep_alive, str) and not _DURATION.fullmatch(keep_alive):
        raise BadRequest(
            "keep_alive", "keep_alive must be a number of seconds, or a duration such as 5m"
        )


def keep_alive_s(keep_alive: str | float | None) -> float | None:
    """Returns the seconds that a model stays in memory after a request, negative for ever; None if the request does
    not say so, or says it in a form that `check_keep_alive` refuses.
    """
    if keep_alive is None:
        return None
    text = str(keep_alive)
    if isinstance(keep_alive, str) and not _DURATION.fullmatch(text):
        return None
    parts = _PART.findall(text)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not parts:
        return min(float(text), _LONG_S)
    return -seconds if text.startswith("-") else min(seconds, _LONG_S)


def check_load(keep_alive: str | float | None) -> str:
    """Returns the reason of an answer that only loads the model; refuses to unload it."""
    check_keep_alive(keep_alive)
    if keep_alive is not None and not any(map(float, _NUMBER.findall(str(keep_alive)))):
        raise BadRequest(
            "keep_alive", "keep_alive 0 without a prompt unloads a model; this server keeps its own"
        )
    return "load"


def deviations(body: GenerationBody) -> Iterable[Deviation]:
    """Yields options whose effect here is not that of Ollama, and parts of a schema that no grammar enforces."""
    if isinstance(body.format, dict):
        yield from report_unheld("format", body.format)
    options = body.options or {}
    for name in options.keys() - set(OllamaOptions.__struct_fields__):
        yield Deviation(f"options.{name[:100]}", f"options.{name[:100]} is unknown, and is ignored")
    penalty = options.get("repeat_penalty")
    if options.get("repeat_last_n") not in (None, 0, -1) and penalty not in (None, 1):
        yield Deviation(
            "options.repeat_last_n",
            "options.repeat_last_n: repeat_penalty applies to all tokens of the prompt and the answer",
        )
    if options.get("num_ctx") is not None:
        yield Deviation(
            "options.num_ctx",
            "options.num_ctx is ignored: --max-model-len of the server is the length of every context",
        )


def _read(given: Mapping[str, Any] | None) -> OllamaOptions:
    """The options by name and type; raises `BadRequest` for one that is not offered."""
    try:
        options = msgspec.convert(given or {}, OllamaOptions, strict=False)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = f"options.{path.rstrip('`')}" if path else "options"
        raise BadRequest(name, f"{name}: {reason}") from None
    for name, (neutral, reason) in _REFUSED.items():
        value = getattr(options, name)
        if value is not None and value not in neutral:
            raise BadRequest(f"options.{name}", f"options.{name} must be absent: {reason}", value)
    return options


def _num_logprobs(body: GenerationBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise BadRequest("top_logprobs", "top_logprobs needs logprobs to be true")
    return None


def _constraint(form: str | dict[str, Any] | None) -> StructuredOutputsParams | None:
    if form is None or form == "":
        return None
    if isinstance(form, dict):
        return StructuredOutputsParams(json=form)
    if form == "json":
        return StructuredOutputsParams(json_object=True)
    raise BadRequest("format", f'format must be "json" or a JSON schema, got {form[:40]!a}')
