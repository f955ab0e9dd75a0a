"""Why an answer ends: asked once a token, after it has been appended."""

from weft.core.types import FinishReason
from weft.engine.scheduling.sequence import Sequence


def why_finished(
    sequence: Sequence, token_id: int, max_model_len: int
) -> tuple[FinishReason | None, int | None]:
    """The reason and, for a stop token that is named, its id; `token_id` is the sequence's last.

    Grammar, thought and repetition watch follow here. `GrammarFailed` if the grammar cannot.
    """
    params = sequence.params
    eos_token_ids = () if params.ignore_eos else sequence.request.eos_token_ids
    if token_id in eos_token_ids[:1]:
        return FinishReason.STOP, None
    if token_id in eos_token_ids or token_id in (params.stop_token_ids or ()):
        return FinishReason.STOP, token_id
    grammar = sequence.ruling_grammar
    if sequence.thought is not None and not sequence.thought.is_over:
        sequence.thought.push(token_id)
    if grammar is not None:
        grammar.advance(token_id)
        if grammar.is_over:
            return FinishReason.STOP, None
    if sequence.num_tokens >= max_model_len:
        return FinishReason.LENGTH, None
    if params.max_tokens is not None and sequence.num_output_tokens >= params.max_tokens:
        return FinishReason.LENGTH, None
    if sequence.repetition is not None:
        is_repeating = sequence.repetition.push(token_id)
        if is_repeating and sequence.num_output_tokens >= params.min_tokens:
            return FinishReason.REPETITION, None
    return None, None
