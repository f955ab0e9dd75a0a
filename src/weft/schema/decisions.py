"""Bodies of the decision APIs: OpenAI's /v1/decisions, /v1/systemone, and vLLM's /generative_scoring."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.schema.usage import Usage

# -- OpenAI's decisions -------------------------------------------------------------------------


class DecisionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a question. The text "true" and the boolean true are different values."""

    value: bool | str
    description: str | None = None


class DecisionLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A level of a scale."""

    label: str
    description: str | None = None


class DecisionQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question about the input: `choices` belong to type choice, `levels` to type score."""

    type: str
    instructions: str | list[dict[str, Any]]
    name: str | None = None
    choices: list[DecisionChoice] | None = None
    levels: list[DecisionLevel] | None = None


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the prompt cache. They have no effect: every prompt is looked up in the prefix cache."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class DecisionsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /v1/decisions: questions about one input, which is a text or a list of items."""

    model: str | None = None
    input: str | list[dict[str, Any]]
    questions: list[DecisionQuestion]
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None


class PredicateAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="predicate"):
    """The probability that a statement is true."""

    name: str | None
    probability: float


class ChoiceProbability(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of an option."""

    value: bool | str
    probability: float


class ChoiceAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="choice"):
    """The most probable option, its probability, and the probabilities of all options."""

    name: str | None
    choice: bool | str
    confidence: float
    probabilities: list[ChoiceProbability]


class ScoreProbability(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of a level; `value` counts the levels from 0."""

    label: str
    value: int
    probability: float


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="score"):
    """The expected value of the level, and the probability of the most probable level."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[ScoreProbability]


class RefusalAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """The model assigns too little probability to the labels: it would write something else."""

    name: str | None


DecisionAnswer = PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusalAnswer


class DecisionInputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the prompts that the prefix cache had; the others were written to it."""

    cached_tokens: int
    cache_write_tokens: int


class DecisionOutputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the answers: none is reasoning."""

    reasoning_tokens: int = 0


class DecisionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all prompts and answers."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails = DecisionOutputDetails()
    total_tokens: int


class DecisionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answers, in the order of the questions."""

    model: str
    answers: list[DecisionAnswer]
    usage: DecisionUsage


# -- /v1/systemone ------------------------------------------------------------------------------


class SystemOneQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question of type noul (yes or no), choice or score; `criteria` are its options."""

    type: str
    instructions: str | None = None
    criteria: dict[str, str | None] | list[str] | None = None


class SystemOneBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /v1/systemone: questions by name about a state, which is a text or JSON."""

    model: str | None = None
    state: str | dict[str, Any] | list[Any]
    questions: dict[str, SystemOneQuestion]
    instructions: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None


class SystemOneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. `noul` is the probability of yes, `score` the expected level, counted from 0."""

    type: str
    noul: float | UnsetType = UNSET
    choice: str | UnsetType = UNSET
    score: float | UnsetType = UNSET
    legend: dict[str, str] | UnsetType = UNSET
    probabilities: dict[str, float]
    confidence: float


class SystemOneUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all prompts and answers."""

    input_tokens: int
    output_tokens: int


class LabelDiagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of all labels together (null if the server reports logits), and whether a label is first."""

    label_mass: float | None
    argmax_is_label: bool


class SystemOneAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers, by the names of the questions."""

    id: str
    object: str = "structured_decision"
    created: int
    model: str
    answers: dict[str, SystemOneAnswer]
    usage: SystemOneUsage
    diagnostics: dict[str, LabelDiagnostics]


# -- /generative_scoring ------------------------------------------------------------------------


class ScoringBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /generative_scoring: the probability of the first label after the query with each item."""

    model: str | None = None
    query: str | list[int]
    items: list[str | list[int]]
    label_token_ids: list[int]
    apply_softmax: bool | None = None
    item_first: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None


class ItemScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of an item."""

    index: int
    object: str = "score"
    score: float


class ScoringAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The scores, in the order of the items."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ItemScore]
    usage: Usage
