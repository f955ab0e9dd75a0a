import hashlib
import io
import zipfile

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import TOKENIZER_FILES, channel_to, refusal
from weft.core.errors import GenerationError
from weft.pb.common_pb2 import GetTokenizerRequest
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.calls.tokenizer_archive import PIECE_BYTES, pack, to_chunks, unpack

PACKED = pack({"a": b"x" * 300, "b": bytes(range(256))})


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def zipped(**entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


async def test_tokenizer_comes_as_a_zip(stub: VllmEngineStub):
    """The chunks are one archive of the given files; the hash of the whole is on the last only."""
    chunks = [chunk async for chunk in stub.GetTokenizer(GetTokenizerRequest())]

    packed = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].sha256 == sha256(packed)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == TOKENIZER_FILES


def test_pieces_are_of_64_kib():
    """All but the last."""
    chunks = list(to_chunks(bytes(PIECE_BYTES * 2 + 1)))

    assert [len(chunk.data) for chunk in chunks] == [PIECE_BYTES, PIECE_BYTES, 1]


def test_archive_is_the_same_every_time():
    """Gateways compare the hash across servers: neither time nor order of the files shows."""
    backwards = dict(reversed(TOKENIZER_FILES.items()))

    assert pack(TOKENIZER_FILES) == pack(backwards)


def test_unpacking_gives_the_files_back():
    """The client's half."""
    packed = pack(TOKENIZER_FILES)

    assert unpack(packed, sha256(packed)) == TOKENIZER_FILES


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"not a zip", id="no zip"),
        pytest.param(zipped(**{"../x": b""}), id="path"),
        pytest.param(zipped(**{"a/b": b""}), id="folder"),
        pytest.param(zipped(**{"a\\b": b""}), id="backslash"),
        pytest.param(zipped(**{f"f{i}": b"" for i in range(51)}), id="too many"),
        pytest.param(zipped(x=b"y")[:-10], id="cut"),
    ],
)
def test_strange_archives_are_refused(packed: bytes):
    """A client does not trust the server it talks to."""
    with pytest.raises(GenerationError, match="cannot be read"):
        unpack(packed, sha256(packed))


@given(position=st.integers(0, len(PACKED) - 1), value=st.integers(0, 255))
def test_any_changed_byte_is_read_or_refused(position: int, value: int):
    """Also with a matching hash: files, or one typed error."""
    changed = bytearray(PACKED)
    changed[position] = value

    result = read_or_refuse(bytes(changed))

    assert isinstance(result, dict | GenerationError)


def read_or_refuse(packed: bytes) -> dict[str, bytes] | GenerationError:
    try:
        return unpack(packed, sha256(packed))
    except GenerationError as error:
        return error


def test_damaged_archive_is_refused():
    """The hash decides."""
    with pytest.raises(GenerationError, match="SHA-256"):
        unpack(pack(TOKENIZER_FILES), sha256(b""))


async def test_model_without_tokenizer_says_so(engine: FakeEngine):
    """FAILED_PRECONDITION, not an empty archive."""
    async with channel_to(engine, {}) as channel:
        status, detail = await refusal(VllmEngineStub(channel).GetTokenizer(GetTokenizerRequest()))

    assert status == grpc.StatusCode.FAILED_PRECONDITION
    assert "no tokenizer files" in detail
