"""What a sequence asks of the choice of its next token, as the native code takes it."""

from weft.compute.sampler import Choice
from weft.engine.sampling.noise import noise_key
from weft.engine.scheduling.sequence import Sequence


def to_choice(sequence: Sequence) -> Choice:
    """Everything but the grammar, which has masked the row before, and a token that is forced."""
    params = sequence.params
    has_repetition = params.repetition_penalty != 1.0
    has_penalty = bool(params.presence_penalty or params.frequency_penalty)
    return Choice(
        allowed=params.allowed_token_ids,
        forbidden=bad_ends(sequence) if sequence.request.bad_token_ids else (),
        forbidden_ends=early_ends(sequence),
        bias=params.logit_bias or {},
        seen=sequence.token_ids if has_repetition else (),
        output=sequence.output_token_ids if has_penalty else (),
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        temperature=0.0 if params.is_greedy else params.temperature,
        min_p=params.min_p,
        top_k=max(0, params.top_k),
        top_p=params.top_p,
        key=noise_key(sequence.seed, sequence.num_output_tokens),
    )


def bad_ends(sequence: Sequence) -> list[int]:
    """The tokens that would complete a bad word now; only the output counts."""
    num_output = sequence.num_output_tokens
    ends = []
    for word in sequence.request.bad_token_ids:
        num_before = len(word) - 1
        if num_before == 0 or (
            num_before <= num_output and sequence.token_ids[-num_before:] == word[:-1]
        ):
            ends.append(word[-1])
    return ends


def early_ends(sequence: Sequence) -> list[int]:
    """The tokens that would end the answer where it must not end yet."""
    params = sequence.params
    if sequence.num_output_tokens < params.min_tokens:
        return [*sequence.request.eos_token_ids, *(params.stop_token_ids or ())]
    if params.ignore_eos and sequence.ruling_grammar is not None:
        return list(sequence.request.eos_token_ids)
    return []
