"""Builds the `Choice` of a sequence's next token from its request, its output and its drafts.

Random numbers are a pure function of (seed, output position, token id), not of a random stream: so a seeded answer does
not depend on batching, chunking, preemption or masks. The mixing function is the 64-bit finaliser of SplitMix64.
"""

from collections.abc import Sequence as Seq
from operator import attrgetter

import numpy as np

from weft.compute.protocols.masks import Words
from weft.compute.protocols.sampler import Choice, Choices, narrowing, reads_output, reads_seen
from weft.core.values.params import PARAMETERS
from weft.engine.scheduling.sequence import Sequence

# Numeric fields of `SamplingParams` that `Choice` has under the same names.
_NUMBERS = tuple(
    name for name in Choice.__struct_fields__ if name in PARAMETERS and name != "temperature"
)

_is_narrowed = attrgetter("is_narrowed")
_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the increment of SplitMix64
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def next_choice(sequence: Sequence, drafted: Seq[int] = ()) -> Choice:
    """Returns the choice of the next token, or of the token after the `drafted` tokens, which no grammar constrains.

    Raises `GrammarFailed` if the grammar allows no further token.
    """
    if sequence.grammar is None and sequence.reasoning is None:
        return to_choice(sequence, drafted)
    grammar = sequence.ruling_grammar
    mask = None if grammar is None else grammar.mask()
    return to_choice(sequence, drafted, mask=mask, forced_token_id=sequence.forced_token_id)


def to_choice(
    sequence: Sequence,
    drafted: Seq[int] = (),
    *,
    mask: Words | None = None,
    forced_token_id: int | None = None,
) -> Choice:
    """Returns the choice of the next token, as if the `drafted` tokens were already output."""
    params = sequence.params
    position = sequence.num_output_tokens + len(drafted)
    forbidden_ends = early_ends(sequence, position)
    is_plain = sequence.is_plain and not sequence.is_narrowed
    if is_plain and mask is None and forced_token_id is None and not forbidden_ends:
        return Choice(temperature=sequence.temperature, key=_plain_key(sequence, position))
    return Choice(
        mask=mask,
        forced_token_id=forced_token_id,
        allowed=params.allowed_token_ids,
        forbidden=bad_ends(sequence, drafted) if sequence.request.bad_token_ids else (),
        forbidden_ends=forbidden_ends,
        bias=params.logit_bias or {},
        seen=[*sequence.seen_token_ids, *drafted] if reads_seen(params) else (),
        output=[*sequence.output_token_ids, *drafted] if reads_output(params) else (),
        temperature=sequence.temperature,
        **{name: getattr(params, name) for name in _NUMBERS},
        key=noise_key(sequence.seed, position),
    )


def plain_choices(sequences: Seq[Sequence]) -> Choices:
    """Returns the next choices of plain sequences with one row each, equal to those of `to_choice`."""
    temperatures = [sequence.temperature for sequence in sequences]
    keys = [_plain_key(sequence, sequence.num_output_tokens) for sequence in sequences]
    is_narrowed = any(map(_is_narrowed, sequences))
    return Choices(
        rows=np.arange(len(sequences), dtype=np.int32),
        temperatures=np.array(temperatures, np.float64),
        keys=np.array(keys, np.uint64),
        **(narrowing([sequence.params for sequence in sequences]) if is_narrowed else {}),
    )


def bad_ends(sequence: Sequence, drafted: Seq[int] = ()) -> list[int]:
    """Returns the tokens that would now complete a bad word; only output tokens count for bad words."""
    words = sequence.request.bad_token_ids
    longest = max(map(len, words), default=1) - 1
    begin = max(sequence.num_prompt_tokens, sequence.num_tokens - longest)
    tail = [*sequence.token_ids[begin:], *drafted]
    ends = []
    for word in words:
        num_before = len(word) - 1
        if num_before == 0 or (num_before <= len(tail) and tail[-num_before:] == word[:-1]):
            ends.append(word[-1])
    return ends


def early_ends(sequence: Sequence, position: int) -> list[int]:
    """Returns the tokens that would end the answer before `min_tokens`, at this position of the output."""
    params = sequence.params
    if position < params.min_tokens:
        return [*sequence.request.eos_token_ids, *(params.stop_token_ids or ())]
    if params.ignore_eos and sequence.ruling_grammar is not None:
        return list(sequence.request.eos_token_ids)
    return []


def _plain_key(sequence: Sequence, position: int) -> int:
    return noise_key(sequence.seed, position) if sequence.temperature else 0


def noise_key(seed: int, position: int) -> int:
    """Returns the 64-bit random key of one output position; keys of different positions differ."""
    return _mix_int(_mix_int(seed + _GAMMA) + position * _GAMMA)


def _mix_int(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)
