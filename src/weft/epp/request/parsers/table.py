"""Chooses the parser of a path: the longest claimed ending wins; the fallback parser gets all other paths."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from weft.epp.request.parsers.anthropic import AnthropicParser
from weft.epp.request.parsers.engine_grpc import (
    SglangGrpcParser,
    TrtllmGrpcParser,
    VllmGrpcParser,
)
from weft.epp.request.parsers.openai import OpenAiParser
from weft.epp.request.parsers.parser import Call, Dialect, Parser, Reads
from weft.epp.request.parsers.tokens_in import SglangHttpParser, VllmHttpParser
from weft.epp.request.parsers.vertexai import VertexAiParser
from weft.epp.request.values import InferenceRequest


class PassthroughParser(Parser):
    """Parser for all paths that no other parser claims: such a request is routed by load, without reading its body."""

    type = "passthrough-parser"
    dialect = Dialect.NONE

    def reads(self, _path: str) -> Reads:
        """Returns that the body is passed on unread, whatever its length."""
        return Reads.HEADERS

    def parse(self, call: Call) -> InferenceRequest:
        """Returns a request without a prompt."""
        return call.to_request(self.type)


_ALL: Final[tuple[Parser, ...]] = (
    OpenAiParser(),
    AnthropicParser(),
    VllmHttpParser(),
    SglangHttpParser(),
    VllmGrpcParser(),
    SglangGrpcParser(),
    TrtllmGrpcParser(),
    VertexAiParser(),
    PassthroughParser(),
)
PARSERS = MappingProxyType({parser.type: parser for parser in _ALL})
DEFAULT_PARSERS: Final = (
    "openai-parser",
    "anthropic-parser",
    "vllmhttp-parser",
    "passthrough-parser",
)


class ParserTable:
    """The request parsers of one configuration."""

    def __init__(self, types: Sequence[str]) -> None:
        parsers = [PARSERS[type_] for type_ in types]
        claims: dict[str, Parser] = {}
        for parser in parsers:
            for suffix in parser.suffixes:
                claims.setdefault(suffix, parser)
        # Longest first, so that the first match is the longest match.
        ordered = sorted(claims.items(), key=lambda claim: -len(claim[0]))
        self._claims = tuple((_pattern(suffix), parser) for suffix, parser in ordered)
        self._fallback = next((parser for parser in parsers if not parser.suffixes), None)

    def find(self, path: str) -> Parser | None:
        """Returns the parser that claims a path (without its query); None if there is none."""
        for (is_whole, is_service, text), parser in self._claims:
            if is_whole:
                if path == text:
                    return parser
            elif is_service:
                if path.rpartition("/")[0].endswith(text):
                    return parser
            elif path.endswith(text):
                return parser
        return self._fallback


def _pattern(suffix: str) -> tuple[bool, bool, str]:
    """Splits a path ending of a parser into: True if it is a whole path, True if it is a gRPC service with all its
    methods, and the text to compare.
    """
    if suffix.startswith("/"):
        return True, False, suffix
    if suffix.endswith("/*"):
        # A service's name may be qualified by a package: "google.cloud.PredictionService".
        return False, True, suffix.removesuffix("/*")
    return False, False, suffix if suffix.startswith("Prediction") else f"/{suffix}"
