"""`token-producer`: the token ids of prompts, or estimated numbers of tokens."""

import asyncio
import logging
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from weft.core.config.quantity import parse_duration_s
from weft.core.errors import BadRequest, ConfigError
from weft.core.values.prompts import pack_tokens
from weft.epp.config.parameters import AtLeastOne, Kind, Parameters, Part
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import TOKENS, Producer, Surroundings, plugin
from weft.epp.request.values import InferenceRequest, NotRendered, Prompt, Refused

if TYPE_CHECKING:
    from weft.epp.request.rendering import RenderClient
    from weft.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_NO_SOCKET = (
    "tokenizers behind a socket are not supported; set vllm.url to a server that renders prompts, or "
    "modelName to a directory with a tokenizer"
)


class Resolution(Part, frozen=True, kw_only=True):
    """Width and height of an image in pixels."""

    width: AtLeastOne = 640
    height: AtLeastOne = 360


class DynamicImage(Part, frozen=True, kw_only=True):
    """Number of pixels per token."""

    factor: AtLeastOne = 1024


class StaticImage(Part, frozen=True, kw_only=True):
    """Number of tokens per image."""

    static_token: AtLeastOne


class ImageEstimate(Part, frozen=True, kw_only=True):
    """Estimated number of tokens of an image. The picker does not open images: all count with the default
    resolution.
    """

    mode: Literal["dynamic", "static"] = "dynamic"
    default_resolution: Resolution = Resolution()
    dynamic: DynamicImage = DynamicImage()
    static: StaticImage | None = None

    def __post_init__(self) -> None:
        if self.mode == "static" and self.static is None:
            raise ValueError("image: mode static needs static.staticToken")

    @property
    def num_tokens(self) -> int:
        """Tokens per image."""
        if self.mode == "static" and self.static is not None:
            return self.static.static_token
        return self.default_resolution.width * self.default_resolution.height // self.dynamic.factor


class EstimateParameters(Part, frozen=True, kw_only=True):
    """Estimated number of tokens of media; 0 unless configured."""

    image: ImageEstimate | None = None


class RenderParameters(Part, frozen=True, kw_only=True):
    """A server that renders prompts to token ids: any vLLM or Weft server with the model."""

    url: str = "http://localhost:8000"
    timeout: str = "5s"
    mm_timeout: str = "30s"  # for chats, which may contain media

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", self.url):
            raise ValueError(f"vllm.url must be http://HOST:PORT or https://, got {self.url!r}")
        for name, text in (("timeout", self.timeout), ("mmTimeout", self.mm_timeout)):
            if parse_duration_s(text) <= 0:
                raise ValueError(f"vllm.{name} must be more than 0, got {text!r}")


class TokenParameters(Parameters, frozen=True, kw_only=True):
    """Conversion of text to tokens: by another server, by the tokenizer in the directory `model_name`, or by an
    estimate.
    """

    model_name: str = ""
    backend: Literal["vllm", "estimate"] | None = None  # None: decided by the other parameters
    estimate: EstimateParameters | None = None
    vllm: RenderParameters | None = None
    uds_tokenizer_config: dict[str, object] | None = None

    def __post_init__(self) -> None:
        if self.backend == "estimate" and self.vllm is not None:
            raise ValueError("backend: estimate and vllm exclude each other")
        if self.uds_tokenizer_config is not None:
            raise ValueError(f"udsTokenizerConfig is refused: {_NO_SOCKET}")

    def without_effect(self) -> Iterable[tuple[str, str]]:
        """Yields `model_name` if it is set but another source of tokens is used."""
        if self.backend == "estimate" and self.model_name:
            yield "modelName", "backend: estimate opens no tokenizer"

    @property
    def rendering(self) -> RenderParameters | None:
        """The server that renders prompts; None if none is configured."""
        return RenderParameters() if self.backend == "vllm" and self.vllm is None else self.vllm


@plugin(TOKENS, Kind.PRODUCER, TokenParameters, aliases=("tokenizer",))
class TokenProducer(Producer):
    """Stores the prompts' tokens in the cycle. Token ids of the client pass unchanged.

    Text is tokenized, or packed at four UTF-8 bytes per pseudo token. The text of a chat lacks the model's chat
    template, so its tokens are used for lengths and approximate prefixes only, and do not count as real token ids.
    """

    def __init__(self, parameters: TokenParameters, around: Surroundings) -> None:
        self._name = around.name
        self._media_tokens = 0
        if parameters.estimate is not None and parameters.estimate.image is not None:
            self._media_tokens = parameters.estimate.image.num_tokens
        self._renderer = _open_renderer(parameters)
        self._last_failure = ""
        self._tokenizer: Tokenizer | None = None
        if self._renderer is not None or parameters.backend == "estimate":
            return
        self._tokenizer = _open_tokenizer(parameters.model_name)
        if parameters.model_name and self._tokenizer is None:
            _log.warning(
                "%s: modelName %r is not a directory with a tokenizer: tokens are estimated",
                around.name, parameters.model_name,
            )  # fmt: skip

    async def prepare(self, cycle: Cycle) -> None:
        """Stores the prompts' tokens in the cycle. Text is tokenized on another thread, because that takes
        milliseconds.
        """
        tokenizer = self._tokenizer
        prompts = cycle.request.prompts
        if all(each.text is None for each in prompts):
            self._pack(cycle)
            return
        if self._renderer is not None and await self._render(cycle, self._renderer):
            return
        if tokenizer is None:
            self._pack(cycle)
            return
        try:
            packed = await asyncio.to_thread(_encode_all, tokenizer, prompts)
        except BadRequest:
            # The request is invalid: it is routed all the same, and the server returns the error.
            self._pack(cycle)
            return
        _fill(cycle, packed, has_real_tokens=_is_raw(cycle.request))

    async def aclose(self) -> None:
        """Closes the connections to the server that renders prompts."""
        if self._renderer is not None:
            await self._renderer.aclose()

    async def _render(self, cycle: Cycle, renderer: "RenderClient") -> bool:
        """Returns True if the render server returned the prompt's tokens. The request is routed in either case."""
        if not renderer.can_render(cycle.request):
            return False
        try:
            packed = await renderer.render(cycle.request, cycle.model)
        except NotRendered as error:
            # Logged once, not for each request while the server is down.
            if str(error) != self._last_failure:
                self._last_failure = str(error)
                _log.warning("%s: not rendered, tokens are estimated: %s", self._name, error)
            return False
        self._last_failure = ""
        _fill(cycle, packed, has_real_tokens=True)
        return True

    def _pack(self, cycle: Cycle) -> None:
        prompts = cycle.request.prompts
        is_real = bool(prompts) and all(each.text is None for each in prompts)
        _fill(cycle, [pack(each) for each in prompts], has_real_tokens=is_real)
        cycle.num_prompt_tokens += self._media_tokens * len(cycle.request.media)


def pack(prompt: Prompt) -> bytes:
    """Returns a prompt as little-endian uint32 tokens."""
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
    """True if the server tokenizes the request's text unchanged, without a chat template."""
    path = request.path
    return (
        request.is_grpc
        or path.endswith("/generate")
        or (path.endswith("/completions") and not path.endswith("/chat/completions"))
    )


def _open_renderer(parameters: TokenParameters) -> "RenderClient | None":
    rendering = parameters.rendering
    if rendering is None:
        return None
    # Imported late: a picker that does not render prompts needs no HTTP client, which takes 50 ms to load.
    from weft.epp.request.rendering import RenderClient  # noqa: PLC0415

    return RenderClient(
        rendering.url,
        timeout_s=parse_duration_s(rendering.timeout),
        chat_timeout_s=parse_duration_s(rendering.mm_timeout),
        model=parameters.model_name,
    )


def _open_tokenizer(name: str) -> "Tokenizer | None":
    if not name:
        return None
    try:
        # Imported late: a picker that estimates token counts needs no tokenizer library.
        from weft.text.tokenizer import tokenizer_in  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"{TOKENS}.parameters.modelName: needs a package: {error}") from error
    return tokenizer_in(Path(name))
