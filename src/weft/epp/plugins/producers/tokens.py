"""`token-producer`: prompts as tokens, or as what stands in for them."""

import asyncio
import logging
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from weft.core.errors import BadRequest, ConfigError
from weft.core.prompts import pack_tokens
from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import TOKENS, Surroundings, plugin_type
from weft.epp.request.values import InferenceRequest, Prompt, Refused

if TYPE_CHECKING:
    from weft.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"
_NO_RENDERING = (
    "prompts are not sent to another server for rendering; name a directory with a "
    f"{TOKENIZER_FILE} in modelName, or leave it out for estimates"
)


class EstimateParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No media reaches the picker as content, so there is nothing to set."""


class TokenParameters(Parameters, frozen=True, kw_only=True):
    """How text becomes tokens: by the tokenizer in the directory `model_name`, or estimated."""

    model_name: str = ""
    estimate: EstimateParameters | None = None
    vllm: dict[str, object] | None = None
    uds_tokenizer_config: dict[str, object] | None = None

    def __post_init__(self) -> None:
        if self.vllm is not None:
            raise ValueError(f"vllm is refused: {_NO_RENDERING}")
        if self.uds_tokenizer_config is not None:
            raise ValueError(f"udsTokenizerConfig is refused: {_NO_RENDERING}")


class TokenProducer:
    """Token ids pass unchanged. Text is tokenised, or packed four UTF-8 bytes a pseudo token.

    Text that the server will put through a chat template is not what the server will compute; its
    tokens serve for lengths and approximate prefixes, but do not count as real ones.
    """

    def __init__(self, parameters: TokenParameters, around: Surroundings) -> None:
        self._tokenizer = _open_tokenizer(parameters.model_name)
        if parameters.model_name and self._tokenizer is None:
            _log.warning(
                "%s: modelName %r is no directory with a %s: tokens are estimated",
                around.name, parameters.model_name, TOKENIZER_FILE,
            )  # fmt: skip

    async def prepare(self, cycle: Cycle) -> None:
        """Fill in the prompts. Text is tokenised on another thread: it takes many milliseconds."""
        tokenizer = self._tokenizer
        prompts = cycle.request.prompts
        if tokenizer is None or all(each.text is None for each in prompts):
            self._pack(cycle)
            return
        try:
            packed = await asyncio.to_thread(_encode_all, tokenizer, prompts)
        except BadRequest:
            self._pack(cycle)  # the server will say what is wrong with it; it is routed there
            return
        _fill(cycle, packed, has_real_tokens=_is_raw(cycle.request))

    def produce(self, cycle: Cycle) -> None:
        """Nothing is left to do: the prompts were filled in before."""

    def _pack(self, cycle: Cycle) -> None:
        prompts = cycle.request.prompts
        is_real = bool(prompts) and all(each.text is None for each in prompts)
        _fill(cycle, [pack(each) for each in prompts], has_real_tokens=is_real)


def pack(prompt: Prompt) -> bytes:
    """A prompt as little-endian uint32 tokens."""
    if prompt.packed is not None:
        return prompt.packed
    if prompt.token_ids is None:
        # surrogatepass: JSON may spell lone surrogates, and a request must not fail for its hash.
        raw = (prompt.text or "").encode("utf-8", "surrogatepass")
        return raw + bytes(-len(raw) % 4)
    try:
        return pack_tokens(prompt.token_ids)
    except struct.error as error:
        raise Refused(400, f"token ids must be integers from 0 to 4294967295: {error}") from error


def _fill(cycle: Cycle, prompts: list[bytes], *, has_real_tokens: bool) -> None:
    cycle.prompts = prompts
    cycle.has_real_tokens = has_real_tokens
    left_out = sum(each.num_left_out for each in cycle.request.prompts)
    cycle.num_prompt_tokens = sum(map(len, prompts)) // 4 + left_out


def _encode_all(tokenizer: "Tokenizer", prompts: tuple[Prompt, ...]) -> list[bytes]:
    return [
        pack(each) if each.text is None else pack_tokens(tokenizer.encode(each.text))
        for each in prompts
    ]


def _is_raw(request: InferenceRequest) -> bool:
    """Whether the server tokenises the text as it is."""
    path = request.path
    return (
        request.is_grpc
        or path.endswith("/generate")
        or (path.endswith("/completions") and not path.endswith("/chat/completions"))
    )


def _open_tokenizer(name: str) -> "Tokenizer | None":
    directory = Path(name)
    if not name or not (directory / TOKENIZER_FILE).is_file():
        return None
    try:
        # Only here: a picker that estimates needs no tokenizer library.
        from weft.text.tokenizer import CONFIG_FILE, open_tokenizer  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"{TOKENS}.parameters.modelName: needs a package: {error}") from error
    try:
        files = {
            file: (directory / file).read_bytes()
            for file in (TOKENIZER_FILE, CONFIG_FILE)
            if (directory / file).is_file()
        }
        return open_tokenizer(files, name)
    except OSError as error:
        raise ConfigError(f"{TOKENS}.parameters.modelName: {error}") from error


ROWS: Final = (
    plugin_type(TOKENS, Kind.PRODUCER, TokenProducer, TokenParameters, aliases=("tokenizer",)),
)
