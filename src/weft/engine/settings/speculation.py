"""`--speculative-config`: converts the user's value to the drafting method and the draft model."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec
from tokenizers import Tokenizer

from weft.compute.backends import BACKENDS
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.config.speculation import DraftModelConfig, SpeculativeConfig
from weft.core.errors import ConfigError
from weft.engine.settings.given import check_between, read_json
from weft.model.files.checkpoint import Checkpoint
from weft.model.open import find_model
from weft.model.spec import ModelSpec

FLAG = "--speculative-config"
MAX_DRAFT_TOKENS = 32
MAX_LOOKUP_TOKENS = 64
# vLLM's default if neither `prompt_lookup_max` nor `prompt_lookup_min` is given.
DEFAULT_LOOKUP_TOKENS = 5
_MIN_DRAFT_LEN = 2
# vLLM's names for "mtp" in different model families.
MTP_METHODS = (
    "mtp",
    "deepseek_mtp",
    "glm4_moe_mtp",
    "qwen3_next_mtp",
    "qwen3_5_mtp",
)
_OF_MODELS = ("model", "revision", "quantization", "max_model_len", "draft_tensor_parallel_size")
_OF_LOOKUPS = ("prompt_lookup_max", "prompt_lookup_min")
_TOKENIZER_FILE = "tokenizer.json"


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of `--speculative-config`."""

    num_speculative_tokens: int
    method: str | None = None
    model: str | None = None
    revision: str | None = None
    quantization: str | None = None
    max_model_len: int | None = None
    draft_tensor_parallel_size: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model, or an MTP head of the served model, after its checks; its tokenizer is not read yet."""

    checkpoint: Checkpoint
    config: DraftModelConfig

    def check_vocabulary(self, target: Checkpoint) -> None:
        """Raises `ConfigError` if the draft model's vocabulary differs from that of `target`, whose tokenizer has
        been read.
        """
        if self.config.is_mtp:
            return
        own = self.checkpoint.with_tokenizer()
        if own.tokenizer_files[_TOKENIZER_FILE] == target.tokenizer_files[_TOKENIZER_FILE]:
            return
        drafted, served = _vocabulary(own), _vocabulary(target)
        if drafted == served:
            return
        token_id = min(i for i in drafted.keys() | served.keys() if drafted.get(i) != served.get(i))
        raise ConfigError(
            f"{FLAG}: model {self.config.model} must have the same vocabulary as {target.card.name}, but token "
            f"{token_id} is {_shown(drafted.get(token_id))} in the draft model and {_shown(served.get(token_id))} in "
            "the served model"
        )


def find_draft(options: EngineOptions, target: Checkpoint, compute: ComputeConfig) -> Draft | None:
    """Finds the draft model for the model `target`; returns None without a draft model. `compute` is that of `target`.

    Raises a `ConfigError` that names the flag and what is wrong with the flag or the model.
    """
    if options.speculative_config is None:
        return None
    given, card = _read(options.speculative_config), target.card
    if card.pooling is not None:
        raise ConfigError(f"{FLAG}: {card.name} is a pooling model, which generates no text")
    try:
        if given.method in MTP_METHODS:
            return _find_mtp(target, options, compute)
        return None if given.model is None else _find(given, given.model, options, compute)
    except ConfigError as error:
        raise ConfigError(f"{FLAG}: {error}") from error


def read_speculation(
    value: str | dict[str, Any] | None, draft: DraftModelConfig | None = None
) -> SpeculativeConfig | None:
    """Reads the setting; None disables speculative decoding. `draft` is the draft model that was found.

    Raises a `ConfigError` that names the flag and what is wrong.
    """
    if value is None:
        return None
    given = _read(value)
    if given.model is not None or given.method in MTP_METHODS:
        assert draft is not None, "found by `find_draft`"
        return SpeculativeConfig(
            method="mtp" if draft.is_mtp else "draft_model",
            num_speculative_tokens=given.num_speculative_tokens,
            draft=draft,
        )
    bounds = [given.prompt_lookup_max, given.prompt_lookup_min]
    most, least = (
        next((one for one in order if one is not None), DEFAULT_LOOKUP_TOKENS)
        for order in (bounds, bounds[::-1])
    )
    check_between(f"{FLAG}: prompt_lookup_max", most, 1, MAX_LOOKUP_TOKENS)
    check_between(f"{FLAG}: prompt_lookup_min", least, 1, most)
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=given.num_speculative_tokens,
        prompt_lookup_max=most,
        prompt_lookup_min=least,
    )


def _read(value: str | dict[str, Any]) -> _Given:
    given = read_json(FLAG, value, _Given)
    method = given.method or ("ngram" if given.model is None else "draft_model")
    match method:
        case "ngram":
            _refuse_fields(given, method, _OF_MODELS)
        case "draft_model":
            _refuse_fields(given, method, _OF_LOOKUPS)
            if given.model is None:
                raise ConfigError(f"{FLAG}: model is missing; method draft_model needs it")
        case _ if method in MTP_METHODS:
            _refuse_fields(given, method, (*_OF_MODELS, *_OF_LOOKUPS))
        case _:
            raise ConfigError(
                f'{FLAG}: method must be "ngram", "draft_model" or "mtp", not {method[:40]!a}'
            )
    check_between(
        f"{FLAG}: num_speculative_tokens", given.num_speculative_tokens, 1, MAX_DRAFT_TOKENS
    )
    if given.draft_tensor_parallel_size not in (None, 1):
        raise ConfigError(
            f"{FLAG}: draft_tensor_parallel_size must be 1, not {given.draft_tensor_parallel_size}: "
            "a draft model always runs inside its engine"
        )
    return given


def _refuse_fields(given: _Given, method: str, fields: tuple[str, ...]) -> None:
    for field in fields:
        if getattr(given, field) is not None:
            raise ConfigError(f"{FLAG}: {field} cannot be combined with method {method}")


def _find(given: _Given, name: str, options: EngineOptions, compute: ComputeConfig) -> Draft:
    checkpoint = find_model(name, revision=given.revision, dtype=options.dtype, runner="generate")
    if not isinstance(checkpoint.spec, ModelSpec):
        raise ConfigError(f"{checkpoint.card.name} cannot be a draft model: it has no weights")
    backend = BACKENDS[compute.compute]
    wanted = msgspec.structs.replace(
        options, model=name, compute=compute.compute, quantization=given.quantization
    )
    computed = backend.configure(wanted, checkpoint.card)
    checkpoint = backend.sized(checkpoint, computed)
    card = checkpoint.card
    if card.keeps_states:
        raise ConfigError(f"{card.name} cannot be a draft model: it has recurrent states")
    most = card.max_position_embeddings
    length = most if given.max_model_len is None else given.max_model_len
    check_between(f"max_model_len of {card.name}", length, _MIN_DRAFT_LEN, most)
    return Draft(
        checkpoint,
        DraftModelConfig(
            model=name,
            revision=given.revision,
            load_dtype=options.dtype,
            quantization=computed.quantization,
            max_model_len=length,
            vocab_size=card.vocab_size,
            weight_bytes=card.weight_bytes,
            kv_bytes_per_token=card.kv_bytes_per_token,
        ),
    )


def _find_mtp(target: Checkpoint, options: EngineOptions, compute: ComputeConfig) -> Draft:
    if target.find_mtp is None:
        raise ConfigError(f"{target.card.name} has no layers for multi-token prediction")
    if compute.compute == "gpu":
        raise ConfigError(
            'method "mtp" is not available with --compute gpu yet; leave it out, or give "ngram"'
        )
    checkpoint = BACKENDS[compute.compute].sized(target.find_mtp(), compute)
    card = checkpoint.card
    return Draft(
        checkpoint,
        DraftModelConfig(
            model=options.model,
            revision=options.revision,
            load_dtype=options.dtype,
            quantization=compute.quantization,
            max_model_len=card.max_position_embeddings,
            vocab_size=card.vocab_size,
            weight_bytes=card.weight_bytes,
            kv_bytes_per_token=card.kv_bytes_per_token,
            is_mtp=True,
        ),
    )


def _vocabulary(checkpoint: Checkpoint) -> dict[int, str]:
    tokenizer = checkpoint.parsed_tokenizer
    if tokenizer is None:
        tokenizer = Tokenizer.from_buffer(checkpoint.tokenizer_files[_TOKENIZER_FILE])
    return {token_id: text for text, token_id in tokenizer.get_vocab().items()}


def _shown(token: str | None) -> str:
    return "none" if token is None else json.dumps(token[:40])
