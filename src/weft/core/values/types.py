"""Values that several layers use: requests and outputs.

All are frozen msgspec Structs, so that the same value serves Python callers and messages between processes. Token ids
are plain ints, times are seconds, logprobs are natural logarithms.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from weft.core.values.declare import INT32_MAX, INT64_MAX, Carried, Param
from weft.core.values.kv_transfer import Prefill, Resumption
from weft.core.values.media import Media, Owner
from weft.core.values.pictures import PlacedItem
from weft.core.values.prompts import EmbeddedTokens, OpenReasoning, PromptType

_PENALTY = Param(-2, 2)
# Request bodies have other fields for these parameters, or none; gRPC clients do this work themselves.
_IN_PYTHON = Param(body=Carried.NOT, wire=Carried.OWN)
_NOT_ON_WIRE = Param(wire=Carried.NOT)
_INSIDE = Param(body=Carried.NOT, wire=Carried.NOT)


class OutputKind(StrEnum):
    """Content of the outputs of one request: everything so far, only the new part, or one output at the end."""

    CUMULATIVE = "cumulative"  # each output has everything so far
    DELTA = "delta"  # each output has only what is new since the previous output
    FINAL_ONLY = "final_only"  # one output, when the request has ended


class FinishReason(StrEnum):
    """Reason why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


class PoolingKind(StrEnum):
    """Hidden states of a prompt from which a pooling result is computed."""

    CLS = "cls"  # the hidden state of the first token
    LAST = "last"
    MEAN = "mean"  # the mean of the hidden states of all tokens
    EACH = "each"  # the hidden state of every token: one result per token


class StructuredOutputsParams(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Constraint on the answer: exactly one of the fields, checked by `weft.core.checks.structured`.

    `json` is a JSON schema, as text or as an object. `grammar` is Lark or, with `root ::=`, GBNF. `structural_tag` is
    JSON that describes free text with constrained parts between tags (see `weft.engine.constraints.structural_tag`).
    JSON is generated without whitespace between its parts, unless `whitespace_pattern` allows some.
    """

    json: str | dict[str, Any] | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: str | None = None
    whitespace_pattern: str | None = None


class RepetitionDetectionParams(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Settings for ending an answer whose last tokens are one pattern of tokens, repeated `min_count` times.

    A pattern has `min_pattern_size` (0 counts as 1) to `max_pattern_size` tokens; a maximum of 0 disables detection.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of sampling and stopping. `weft.core.checks.validate` checks their ranges.

    `None` means "not requested". `max_tokens=None` fills the context. `temperature` below 1e-5 is greedy. `top_k` 0 or
    -1 is off. `logprobs`/`prompt_logprobs` -1 is the whole vocabulary. `logprob_token_ids` are scored in addition to
    the sampled token, in place of the most likely tokens. `flat_logprobs` returns logprobs as
    `weft.core.values.logprobs.FlatLogprobs`, which has few objects, instead of lists.

    The tokens that may be sampled are restricted by `structured_outputs`, then `allowed_token_ids`, `bad_words` (as
    texts or as token ids) and `min_tokens`; a restriction that would leave no token is skipped for that token. With
    `structured_outputs`, `ignore_eos` continues the answer only while the constraint allows more. For a model that
    reasons (see `EngineClient.generate`) the constraint begins after the reasoning, or with `grammar_from_first_token`
    at the first token. Reasoning that reaches `thinking_token_budget` tokens is ended: the tokens of the text that ends
    it come next, whatever else is requested. A budget of -1 is no limit.
    """

    n: int = 1
    temperature: Annotated[
        float, Param(0, 2, of_model=True, help="0 takes the likeliest token each time.")
    ] = 1.0
    top_p: Annotated[
        float,
        Param(
            0,
            1,
            above=True,
            narrows=True,
            of_model=True,
            help="Sample from this share of probability.",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Param(
            -1,
            INT64_MAX,
            wire=Carried.OWN,
            narrows=True,
            of_model=True,
            help="Sample from this many tokens; 0: all.",
        ),
    ] = 0
    min_p: Annotated[
        float,
        Param(
            0,
            1,
            narrows=True,
            of_model=True,
            help="Drop tokens less likely than this share of the best.",
        ),
    ] = 0.0
    presence_penalty: Annotated[float, _PENALTY] = 0.0
    frequency_penalty: Annotated[float, _PENALTY] = 0.0
    # A logit divided or multiplied by a value in this range stays finite in float32.
    repetition_penalty: Annotated[float, Param(1e-5, 1e5, of_model=True)] = 1.0
    seed: Annotated[
        int | None, Param(-INT64_MAX - 1, INT64_MAX, help="Same seed, same answer.")
    ] = None
    stop: Annotated[
        str | list[str] | None,
        Param(wire=Carried.OWN, help="End before this text; repeat for several."),
    ] = None
    stop_token_ids: Annotated[list[int] | None, Param(wire=Carried.OWN)] = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: Annotated[
        int | None,
        Param(1, INT32_MAX, body=Carried.OWN, help="Most tokens to generate.", is_size=True),
    ] = 16
    min_tokens: Annotated[int, Param(0, INT32_MAX)] = 0
    logprobs: Annotated[int | None, Param(body=Carried.OWN)] = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Annotated[list[int] | None, _NOT_ON_WIRE] = None
    flat_logprobs: Annotated[bool, _IN_PYTHON] = False
    logit_bias: Annotated[dict[int, float] | None, Param(wire=Carried.OWN)] = None
    allowed_token_ids: Annotated[list[int] | None, _NOT_ON_WIRE] = None
    bad_words: Annotated[list[str] | None, _NOT_ON_WIRE] = None
    bad_words_token_ids: Annotated[list[list[int]] | None, _INSIDE] = None
    structured_outputs: Annotated[
        StructuredOutputsParams | None, Param(body=Carried.OWN, wire=Carried.OWN)
    ] = None
    grammar_from_first_token: Annotated[bool, Param(body=Carried.NOT)] = False
    thinking_token_budget: Annotated[int | None, Param(-1, INT32_MAX, wire=Carried.NOT)] = None
    repetition_detection: Annotated[RepetitionDetectionParams | None, _NOT_ON_WIRE] = None
    truncate_prompt_tokens: int | None = None
    detokenize: Annotated[bool, _IN_PYTHON] = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: Annotated[OutputKind, _IN_PYTHON] = OutputKind.CUMULATIVE
    stream_interval: Annotated[
        int | None, Param(1, INT32_MAX, body=Carried.NOT, wire=Carried.NOT)
    ] = None
    skip_reading_prefix_cache: Annotated[bool, _INSIDE] = False
    extra_args: Annotated[dict[str, Any] | None, _IN_PYTHON] = None

    @property
    def is_greedy(self) -> bool:
        """True if the most likely token is always selected."""
        return self.temperature < 1e-5

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple of strings, whether it was given as one string or as a list."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class StreamingInput(msgspec.Struct, frozen=True):
    """A piece of a prompt that arrives during its request; `sampling_params` None keeps the parameters of the call."""

    prompt: PromptType
    sampling_params: SamplingParams | None = None


class LoRARequest(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter: its public name, its id (>= 1) and its directory.

    `base_model_name` None is the served model. `load_inplace` reloads an adapter that is already loaded.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a request besides its prompt and parameters. `EngineClient.generate` documents them."""

    request_id: str
    prompt_text: str | None = None
    lora_request: LoRARequest | None = None
    tokenization_kwargs: Mapping[str, Any] | None = None
    trace_headers: Mapping[str, str] | None = None
    priority: int = 0
    data_parallel_rank: int | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: Mapping[str, Any] | None = None
    media_owner: Owner | None = None
    prefiller: Prefill | None = None  # used by the HTTP server before the engine gets the request


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: made once, by `EngineClient.prepare`; all later code trusts its values.

    `params` are resolved: `max_tokens` is a number, and -1 and True are replaced by the values that they stand for.
    `request_id` is the caller's label; `engine_id` is unique for the life of the process and is the id that the engine
    uses. `eos_token_ids[0]` is the primary end-of-sequence id. `seed` is always set. `arrival_time` is on the monotonic
    clock of the front process. `grammar` is made from `params.structured_outputs`, which is then None; `bad_token_ids`
    from the bad words: the last token of each list may not follow the others. `reasoning` is None unless the
    answer begins inside reasoning; if another server decides this, the tokens of `reasoning` are unknown, and
    `reasoning_ended` is the caller's value.

    Tokens of `prompt_embeds`, which are in the order of the prompt, have id 0; `cache_salt` then distinguishes these
    embeddings from others. Only the number of `media` has been checked: an engine that computes pictures has `items`
    instead, in order, whose tokens are among `prompt_token_ids`. A request with `pooling` and `pooling_kind` generates
    nothing, and its `params` are unused. `lora_id`, at least 1, is unique for each load of the `lora_request`. With a
    `resumption` the answers of a lost engine continue.
    """

    request_id: str
    engine_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: tuple[int, ...]
    seed: int
    arrival_time: float
    prompt: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    data_parallel_rank: int | None = None
    trace_headers: Mapping[str, str] | None = None
    lora_request: LoRARequest | None = None
    lora_id: int | None = None
    grammar: str | None = None
    bad_token_ids: list[list[int]] = []
    reasoning: OpenReasoning | None = None
    reasoning_ended: bool | None = None
    pooling: "PoolingParams | None" = None
    pooling_kind: PoolingKind | None = None
    token_type_ids: list[int] | None = None
    prompt_embeds: list[EmbeddedTokens] = []
    media: Media | None = None
    items: list[PlacedItem] = []
    resumption: Resumption | None = None

    @property
    def lora_name(self) -> str | None:
        """Name of the adapter, which is part of the request's keys in the prefix cache."""
        return None if self.lora_request is None else self.lora_request.lora_name


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of pooling hidden states into one result; used by `EngineClient.encode`.

    `task` is embed, classify, token_embed or token_classify; None is token_embed or token_classify, whichever the model
    offers. `dimensions` shortens an embedding, and `normalize` (None: the model's setting) scales it to length 1; both
    are for embeddings. `use_activation` False returns scores without the activation function.
    """

    task: str | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    skip_reading_prefix_cache: bool | None = None
    output_kind: OutputKind = OutputKind.FINAL_ONLY


class Logprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Logprob of one token at one position.

    `rank` is the number of tokens with at least this logprob, itself included; None if an API has no field for it.
    """

    logprob: float
    rank: int | None
    decoded_token: str | None = None


# Keyed by token id: the sampled token first, then the others by rank.
PositionLogprobs = dict[int, Logprob]
# (token id, log-probability, rank): the sampled token first, then the others by rank.
LogprobRow = list[tuple[int, float, int | None]]


class SequenceOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New output of one step for one answer of a request.

    `prompt_logprobs` comes in parts, step by step, with the outputs of answer 0 until its first token (position 0 left
    out). `error` is set only with `FinishReason.ERROR`, and the caller may see its text. Numbers of draft tokens and of
    accepted tokens are counted from the answer's beginning. `pooled` is the whole result of a pooling request: float32
    numbers in this machine's byte order. `prompt_token_ids` is set if it differs from the request's, because each media
    item has become many tokens.
    """

    engine_id: str
    index: int
    token_ids: list[int] = []
    logprobs: list[LogprobRow] | None = None
    prompt_logprobs: list[LogprobRow] | None = None
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    num_draft_tokens: int = 0  # counted since the answer began
    num_accepted_tokens: int = 0  # draft tokens that were accepted
    pooled: bytes | None = None
    pooled_shape: tuple[int, ...] = ()
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of the `n` answers. With output kind DELTA, `text`, `token_ids` and `logprobs` hold only the new part.

    `stop_reason` is the stop string or the stop token id that matched; None for end-of-sequence. Numbers of draft
    tokens and of accepted tokens are counted from the answer's beginning under every output kind.
    """

    index: int
    text: str = ""
    token_ids: list[int] = []
    cumulative_logprob: float | None = None
    logprobs: Sequence[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def is_finished(self) -> bool:
        """True if this answer is complete."""
        return self.finish_reason is not None


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Output of `generate`: the new part of every answer of one request, or the whole answers.

    `prompt_logprobs[0]` is None (no token precedes it). `num_cached_tokens` counts prompt tokens from the prefix cache
    when the request was first scheduled. `kv_transfer_params` are for the engine that continues the prompt.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    is_finished: bool
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Same value as `is_finished`, under vLLM's name."""
        return self.is_finished


class PoolingRequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The only output of `encode`: numbers, row by row.

    `shape` is (numbers,), or (tokens, numbers) for tasks with a result for every token. An aborted request has no
    numbers, and the shape (0,).
    """

    request_id: str
    prompt_token_ids: list[int]
    data: list[float]
    shape: tuple[int, ...] = ()
    num_cached_tokens: int = 0
    is_finished: bool = True
