"""Bodies of the pooling APIs: embeddings, pooling, classification, scores and rankings."""

from typing import Any, Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")
Encoding = Literal["float", "base64", "bytes", "bytes_only"]
# A text, a list of texts, a list of token ids, or a list of such lists; no mixture.
Input = str | list[str | int | list[int]]


class PoolingFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all pooling requests share."""

    model: str | None = None
    request_id: str | None = None
    user: str | None = None
    priority: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


class InputFields(PoolingFields, frozen=True, kw_only=True):
    """Input of a pooling request: texts, token ids, or one conversation."""

    input: Input | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class NumberFields(InputFields, frozen=True, kw_only=True):
    """The fields that set how numbers are encoded."""

    encoding_format: Encoding | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    endianness: Literal["native", "little", "big"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None


class EmbeddingBody(NumberFields, frozen=True, kw_only=True):
    """A request for one embedding of each input."""


class PoolingBody(NumberFields, frozen=True, kw_only=True):
    """A request for the output of any pooling task, for each input."""

    task: str | None = None
    use_activation: bool | None = None


class ClassifyBody(InputFields, frozen=True, kw_only=True):
    """A request for the class of each input."""

    use_activation: bool | None = None


class ScoreBody(PoolingFields, frozen=True, kw_only=True):
    """Texts to compare: one text with another, one with several, or each text with the text at the same position."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    use_activation: bool | None = None


class RerankDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document as an object, which some clients send instead of a string."""

    text: str


class RerankBody(PoolingFields, frozen=True, kw_only=True):
    """Documents to rank by their relevance for a query. `top_n` 0 returns all."""

    query: str
    documents: list[str | RerankDocument]
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    use_activation: bool | None = None


class PoolingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Number of tokens of all inputs; nothing is generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class PooledAnswer(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One result for each input, in input order."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[T]
    usage: PoolingUsage


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding of one input: a list of numbers, or their bytes in base64."""

    index: int
    object: str = "embedding"
    embedding: list[float] | str


class EmbeddingAnswer(PooledAnswer[Embedding], frozen=True, kw_only=True):
    """Embeddings, in the order of the inputs."""


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one input; for token-level tasks one list per token."""

    index: int
    object: str = "pooling"
    data: list[float | list[float]] | str


class PoolingAnswer(PooledAnswer[Pooled], frozen=True, kw_only=True):
    """Results, in the order of the inputs."""


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """The class of one input, and the scores of all."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassifyAnswer(PooledAnswer[Classification], frozen=True, kw_only=True):
    """Classes, in the order of the inputs."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The score of a pair of texts."""

    index: int
    object: str = "score"
    score: float


class ScoreAnswer(PooledAnswer[Score], frozen=True, kw_only=True):
    """Scores, in the order of the texts."""


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    """A ranked document; `index` is its position in the request."""

    index: int
    document: RerankDocument | msgspec.UnsetType = msgspec.UNSET
    relevance_score: float


class RerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The ranked documents, the best first."""

    id: str
    model: str
    usage: PoolingUsage
    results: list[RerankResult]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Position of an input's numbers in a binary answer."""

    index: int
    embed_dtype: str
    endianness: str
    start: int
    end: int
    shape: list[int]


class BytesMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a binary answer, sent in its `metadata` header."""

    id: str
    created: int
    model: str
    data: list[Item]
    usage: PoolingUsage
