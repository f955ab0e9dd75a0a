"""Whisper's rules for the tokens of a transcript: times come in order and in pairs, and text between them.

A transcript begins with a time. Two times stand between segments: the end of one, and the beginning of the next. A time
is at least the one before it, and the end of a segment is after its beginning. A time comes next if all times together
are more probable than the best other token.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.compute.protocols.masks import Words, mask_of
from weft.compute.protocols.runner import FloatArray
from weft.core.values.media import SpeechRules


def allowed_tokens(rules: SpeechRules, output: Sequence[int], logits: FloatArray) -> Words:
    """Returns the mask of the tokens that may follow `output`, for a row of logits."""
    allowed = np.ones(len(logits), bool)
    allowed[rules.suppressed] = False
    if not output:
        allowed[rules.suppressed_first] = False
    _keep_order(rules, output, allowed)
    first = rules.first_timestamp
    if allowed[first:].any() and allowed[:first].any() and _prefers_time(logits, allowed, first):
        allowed[:first] = False
    if not allowed.any():  # no time is left, and the model must end
        allowed[rules.end] = True
    return mask_of(allowed)


def _keep_order(rules: SpeechRules, output: Sequence[int], allowed: NDArray[np.bool_]) -> None:
    """Forbids what would break the order of times and text."""
    first = rules.first_timestamp
    if not output:
        allowed[:first] = False
        allowed[first + rules.max_first_steps + 1 :] = False
        return
    ends_with_time = output[-1] >= first
    is_begin = ends_with_time and (len(output) < 2 or output[-2] >= first)
    if is_begin:  # of a segment, whose text follows
        allowed[first:] = False
    elif ends_with_time:  # the end of a segment: the next one begins, or the transcript ends
        allowed[: rules.end] = False
    times = [token for token in output if token >= first]
    if times:
        allowed[first : times[-1] + (not ends_with_time or is_begin)] = False


def _prefers_time(logits: FloatArray, allowed: NDArray[np.bool_], first: int) -> bool:
    best_text = logits[:first][allowed[:first]].max()
    times = logits[first:][allowed[first:]].astype(np.float64) - best_text
    return bool(np.exp(times).sum() > 1)
