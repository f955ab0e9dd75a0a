"""Bodies of Ollama's API, under /api. Fields of a request may be null where they may be absent.

The format is that of https://docs.ollama.com/api. Streams are lines of JSON, one object each.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from weft.schema.usage import TokenLogprob

# -- requests -----------------------------------------------------------------------------------


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Name and arguments of a tool call; `index` is its place in the message."""

    name: str
    arguments: dict[str, Any] = {}
    index: int | None = None
    description: str | None = None


class CalledTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the assistant."""

    function: CalledFunction
    id: str | None = None
    type: str | None = None


class OllamaMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the conversation. `images` are files in base64; `tool_name` is the tool of a result."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[CalledTool] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OfferedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call."""

    function: OfferedFunction
    type: str | None = None


class OllamaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Names and types of `options`. `weft.web.ollama.options` reads them and says how each is used."""

    num_predict: int | None = None
    num_ctx: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    penalize_newline: bool | None = None
    mirostat: int | None = None
    mirostat_eta: float | None = None
    mirostat_tau: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    vocab_only: bool | None = None
    f16_kv: bool | None = None


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both APIs that generate. A body without `stream` asks for a stream."""

    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: str | float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaChatBody(GenerationBody, frozen=True, kw_only=True):
    """The body of /api/chat. Without messages, the server only loads the model."""

    messages: list[OllamaMessage] | None = None
    tools: list[OfferedTool] | None = None


class OllamaGenerateBody(GenerationBody, frozen=True, kw_only=True):
    """The body of /api/generate. Without a prompt, the server only loads the model."""

    prompt: str | None = None
    system: str | None = None
    suffix: str | None = None
    images: list[str] | None = None
    raw: bool | None = None
    template: str | None = None
    context: list[int] | None = None


class OllamaEmbedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /api/embed. Unless `truncate` is false, long inputs are cut at the end."""

    model: str
    input: str | list[str]
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None


class OllamaEmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /api/embeddings, the older form for one text."""

    model: str
    prompt: str
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None


class OllamaShowBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /api/show; `name` is an older name of `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


# -- answers ------------------------------------------------------------------------------------


class WrittenFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Name and arguments of a call that the model wrote."""

    index: int
    name: str
    arguments: msgspec.Raw


class WrittenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model wrote."""

    id: str
    function: WrittenFunction


class WrittenMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, or a part of it."""

    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[WrittenCall] | UnsetType = UNSET


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an answer. Durations are in nanoseconds; `prompt_eval_duration` lasts until the first token."""

    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaChatAnswer(Timings, frozen=True, kw_only=True):
    """An answer of /api/chat, or a line of its stream."""

    model: str
    created_at: str
    message: WrittenMessage
    done: bool
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class OllamaGenerateAnswer(Timings, frozen=True, kw_only=True):
    """An answer of /api/generate, or a line of its stream."""

    model: str
    created_at: str
    response: str
    thinking: str | UnsetType = UNSET
    done: bool
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class OllamaEmbedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /api/embed: one vector of length 1 for each input."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OllamaEmbeddingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /api/embeddings."""

    embedding: list[float]


class OllamaDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a model, as lists show them."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str = ""
    quantization_level: str


class OllamaModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of /api/tags and /api/ps. `digest` differs between models with different settings; it is not the hash of
    a file.
    """

    name: str
    model: str
    modified_at: str
    digest: str
    details: OllamaDetails
    context_length: int
    expires_at: str | UnsetType = UNSET


class OllamaModels(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /api/tags and /api/ps."""

    models: list[OllamaModel]


class OllamaShown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /api/version: the version of Ollama's API that this server follows."""

    version: str
