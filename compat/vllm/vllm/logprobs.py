"""vLLM's `Logprob`, a dataclass."""

from dataclasses import dataclass

__all__ = ["Logprob"]


@dataclass(slots=True)
class Logprob:
    """Log-probability of a token, its rank among all tokens, and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
