"""The tokenizer of a server, fetched over gRPC."""

import asyncio
from io import BytesIO

from weft.core.errors import FailedPrecondition, GenerationError, Unsupported
from weft.pb import common_pb2
from weft.rpc.calls.tokenizer_archive import MAX_PACKED_BYTES, unpack
from weft.rpc.connection import Connection
from weft.text.tokenizer import Tokenizer


async def fetch_tokenizer(connection: Connection) -> Tokenizer | None:
    """Returns the server's tokenizer; None if the server has none, or lacks the call."""
    try:
        files = await fetch_tokenizer_files(connection)
    except (Unsupported, FailedPrecondition):
        return None  # without a tokenizer, the server still accepts token ids
    return await asyncio.to_thread(Tokenizer.from_files, files)


async def fetch_tokenizer_files(connection: Connection) -> dict[str, bytes]:
    """Returns the files of the server's tokenizer, by name."""
    packed, sha256 = BytesIO(), ""
    chunks = connection.stream("GetTokenizer", common_pb2.GetTokenizerRequest())
    try:
        async for chunk in chunks:
            packed.write(chunk.data)
            sha256 = chunk.sha256
            if packed.tell() > MAX_PACKED_BYTES:
                raise GenerationError(
                    f"the tokenizer archive is larger than {MAX_PACKED_BYTES} bytes"
                )
    finally:
        await chunks.aclose()
    return await asyncio.to_thread(unpack, packed.getvalue(), sha256)
