"""Parser of vLLM's gRPC engine protocol: Generate and Embed are scheduled; other calls go to any endpoint."""

from dataclasses import replace
from typing import Final

from weft.core.checks.lora import LORA_METADATA
from weft.epp.request.parsers.parser import Call, Dialect, Parser, Reads, malformed, unscheduled
from weft.epp.request.parsers.payload import first_message
from weft.epp.request.parsers.reading_time import MAX_READ_PARTS
from weft.epp.request.values import InferenceRequest, Refused
from weft.epp.request.vllm import SERVICE, crowded, read_embed, read_generate
from weft.wire.message_bounds import MAX_PARTS

GENERATE: Final = f"{SERVICE}/Generate"
EMBED: Final = f"{SERVICE}/Embed"
# Parsed, a one-byte token id takes four bytes; a message below this size is always parsed.
_MAX_SURE_BYTES: Final = 2**25


class VllmGrpcParser(Parser):
    """Parses all calls of the VllmEngine service. The protocol names no model; metadata may name a LoRA adapter."""

    type = "vllmgrpc-parser"
    suffixes = (GENERATE, EMBED, f"{SERVICE}/*")
    model_header = LORA_METADATA
    dialect = Dialect.VLLM_GRPC

    def reads(self, path: str) -> Reads:
        """Returns the parts of the request to read: calls without a prompt, and calls that never end, must not wait for
        a body.
        """
        return Reads.BODY if path.endswith((GENERATE, EMBED)) else Reads.NOTHING

    def parse(self, call: Call) -> InferenceRequest:
        """Parses token ids, which are hashed unchanged, or text, whose tokens are estimated or computed."""
        if self.reads(call.path) is Reads.NOTHING:
            return unscheduled(call, self.type)
        message = first_message(call)
        is_generate = call.path.endswith(GENERATE)
        max_parts = MAX_READ_PARTS if call.is_on_loop else MAX_PARTS
        if (field := crowded(message, max_parts, is_generate=is_generate)) is not None:
            raise Refused(
                413, f"{field} has more parts than {max_parts}, which are too many to read"
            )
        parsed = read_generate(message) if is_generate else read_embed(message)
        if parsed is None and len(message) > _MAX_SURE_BYTES:  # memory may not suffice
            raise Refused(413, "invalid gRPC payload: the message is too large to be parsed")
        if parsed is None:
            what = "a GenerateRequest with tokenized or text"
            raise malformed(
                f"invalid gRPC payload: expected {what if is_generate else 'an EmbedRequest with tokenized'}"
            )
        adapter = call.headers.get(LORA_METADATA, "")
        return replace(
            call.to_request(self.type),
            model=adapter,
            has_adapter=bool(adapter),
            prompts=(parsed.prompt,),
            # Placeholder tokens are equal for all media, so the hashes of the media become part of the cache key.
            cache_salt="".join(parsed.media),
            media=parsed.media,
            is_streaming=parsed.is_streaming,
            max_tokens=parsed.max_tokens,
        )
