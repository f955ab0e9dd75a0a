"""`token-producer`: prompts as tokens, or as what stands in for them."""

import struct

import msgspec

from weft.epp.cycle import Cycle
from weft.epp.plugin import Parameters, Surroundings
from weft.epp.prefix.keys import pack_tokens
from weft.epp.request import Prompt, Refused

TYPE = "token-producer"


class EstimateParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No media reaches the picker as content, so there is nothing to set."""


class TokenParameters(Parameters, frozen=True, kw_only=True):
    """How text becomes tokens."""

    model_name: str = ""
    estimate: EstimateParameters | None = None


class TokenProducer:
    """Token ids pass unchanged; text is packed four UTF-8 bytes a pseudo token."""

    def __init__(self, parameters: TokenParameters, _: Surroundings) -> None:
        pass

    def produce(self, cycle: Cycle) -> None:
        """Fill in the prompts, unless somebody has."""
        if cycle.prompts:
            return
        prompts = cycle.request.prompts
        cycle.has_real_tokens = bool(prompts) and all(
            prompt.token_ids is not None for prompt in prompts
        )
        cycle.prompts = [pack(prompt) for prompt in prompts]
        cycle.num_prompt_tokens = sum(map(len, cycle.prompts)) // 4


def pack(prompt: Prompt) -> bytes:
    """A prompt as little-endian uint32 tokens."""
    if prompt.token_ids is None:
        # surrogatepass: JSON may spell lone surrogates, and a request must not fail for its hash.
        raw = (prompt.text or "").encode("utf-8", "surrogatepass")
        return raw + bytes(-len(raw) % 4)
    try:
        return pack_tokens(prompt.token_ids)
    except struct.error as error:
        raise Refused(400, f"token ids must be integers from 0 to 4294967295: {error}") from error
