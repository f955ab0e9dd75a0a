"""Converts the rest of a request that another server has begun."""

from weft.core.errors import BadRequest, FailedPrecondition
from weft.core.values.kv_transfer import GivenAnswer, Resumption
from weft.core.values.types import OutputKind, Request
from weft.pb import vllm_engine_pb2 as pb

FIELD = "weft_resumption"
_MAX_COUNT = 1_000_000


def to_message(resumption: Resumption) -> pb.WeftResumption:
    """Translates a resumption for another server."""
    return pb.WeftResumption(
        fingerprint=resumption.fingerprint,
        answers=[_to_answer(given) for given in resumption.answers],
        number=resumption.number,
        num_losses=resumption.num_losses,
    )


def _to_answer(given: GivenAnswer | None) -> pb.WeftGivenAnswer:
    if given is None:
        return pb.WeftGivenAnswer(has_ended=True)
    return pb.WeftGivenAnswer(
        token_ids=given.token_ids,
        draft_tokens=given.num_draft_tokens,
        accepted_tokens=given.num_accepted_tokens,
    )


def to_resumption(message: pb.WeftResumption) -> Resumption:
    """Converts a resumption; `check_resumption` compares it with the request."""
    for name, least in (("number", 1), ("num_losses", 0)):
        if not least <= getattr(message, name) <= _MAX_COUNT:
            raise BadRequest(FIELD, f"{FIELD}.{name} must be from {least} to {_MAX_COUNT}")
    return Resumption(
        fingerprint=message.fingerprint,
        answers=[_to_given(answer) for answer in message.answers],
        number=message.number,
        num_losses=message.num_losses,
    )


def _to_given(message: pb.WeftGivenAnswer) -> GivenAnswer | None:
    if message.has_ended:
        return None
    return GivenAnswer(list(message.token_ids), message.draft_tokens, message.accepted_tokens)


def check_resumption(resumption: Resumption, request: Request, vocab_size: int) -> None:
    """Raises `BadRequest` if no server can have begun the request like that."""
    params, answers = request.params, resumption.answers
    if len(answers) != params.n:
        raise BadRequest(FIELD, f"{FIELD} must have n={params.n} answers, got {len(answers)}")
    if not resumption.open_indexes:
        raise BadRequest(FIELD, f"{FIELD}: every answer has ended")
    if params.output_kind is OutputKind.FINAL_ONLY and _has_begun(resumption):
        raise BadRequest(FIELD, f"{FIELD} with tokens needs stream=true")
    for given in answers:
        if given is not None:
            _check_given(given, params.max_tokens, vocab_size)


def _has_begun(resumption: Resumption) -> bool:
    return bool(resumption.num_tokens) or None in resumption.answers


def _check_given(given: GivenAnswer, max_tokens: int | None, vocab_size: int) -> None:
    if max_tokens is not None and len(given.token_ids) >= max_tokens:
        raise BadRequest(
            FIELD,
            f"{FIELD}.answers: an unfinished answer has fewer than max_tokens={max_tokens} tokens",
        )
    if any(token_id >= vocab_size for token_id in given.token_ids):
        raise BadRequest(FIELD, f"{FIELD}.answers: token ids must be below {vocab_size}")


def check_fingerprint(resumption: Resumption, fingerprint: str) -> None:
    """Raises `FailedPrecondition` unless the request was begun by a server whose answers equal this one's."""
    if not fingerprint or resumption.fingerprint != fingerprint:
        raise FailedPrecondition(
            "the request was begun by a server with other weights or settings, so it cannot continue here"
        )
