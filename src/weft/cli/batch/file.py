"""Files in OpenAI's Batch format: the input file has one request per line, the output file one answer per line.

Format: https://platform.openai.com/docs/guides/batch, "Preparing your batch file" and "Retrieving the results".
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import IO

import msgspec

from weft.core.errors import ConfigError
from weft.web.batches.batch_lines import (
    MAX_LINE_BYTES,
    BatchAnswer,
    BatchRequest,
    BatchResponse,
    check_length,
    read_request,
)

_answers = msgspec.json.Decoder(BatchAnswer)
_json = msgspec.json.Encoder()


def read_requests(
    path: Path, report: Callable[[str], None] | None = None
) -> Iterator[BatchRequest]:
    """Yields the requests of a file, in order. A line that is not a valid request is skipped and reported to `report`;
    without `report`, the first such line raises `ConfigError` with the line's number.
    """
    seen: set[str] = set()
    with _opened(path, "rb") as file:
        for number, line in _lines(file):
            try:
                request = read_request(line, seen)
            except (msgspec.MsgspecError, ConfigError, ValueError) as error:
                sentence = f"{path}, line {number}: {error}"
                if report is None:
                    raise ConfigError(sentence) from None
                report(sentence)
                continue
            seen.add(request.custom_id)
            yield request


class AnswerFile:
    """The output file of a batch. Only whole lines are appended, so that an interrupted batch can continue.

    `answered` has the `custom_id` of each answer that the file had when it was opened.
    """

    def __init__(self, path: Path, known: set[str]) -> None:
        """Opens and locks the file and reads its answers. Raises `ConfigError` if an answer's `custom_id` is not in
        `known`, the ids of the input file.
        """
        self.answered: set[str] = set()
        self._path = path
        self._file = _opened(path, "a+b")
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
            self._read(path, known)
        except BlockingIOError:
            self.close()
            raise ConfigError(f"{path} is being written by another batch") from None
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path, known: set[str]) -> None:
        end = 0
        self._file.seek(0)
        for number, line in _lines(self._file):
            if not line.endswith(b"\n"):
                break  # the last line was cut off while it was written
            try:
                check_length(line)
                custom_id = _answers.decode(line).custom_id
            except (msgspec.MsgspecError, ConfigError) as error:
                raise ConfigError(
                    f"{path}, line {number}: not an answer in OpenAI's Batch format: {error}"
                ) from None
            if custom_id not in known:
                raise ConfigError(
                    f"{path} answers {custom_id!r}, which is not in the input; choose another --output-file"
                )
            self.answered.add(custom_id)
            end += len(line)
        self._file.truncate(end)

    def write(self, custom_id: str, response: BatchResponse) -> None:
        """Appends an answer. The line is in the file when this method returns. Raises `ConfigError` if the disk does
        not take it.
        """
        answer = BatchAnswer(
            id=f"batch_req_{uuid.uuid4().hex}", custom_id=custom_id, response=response
        )
        try:
            self._file.write(_json.encode(answer) + b"\n")
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"cannot write to {self._path}: {error.strerror}") from None

    def close(self) -> None:
        with suppress(OSError):  # again what `write` could not write
            self._file.close()


def _opened(path: Path, mode: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise ConfigError(f"cannot open {path}: {error.strerror}") from None


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields each non-empty line of the file with its number. A line longer than `MAX_LINE_BYTES` is cut to
    `MAX_LINE_BYTES` + 1 bytes.
    """
    for number in range(1, 2**63):
        line = rest = file.readline(MAX_LINE_BYTES + 1)
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if line.strip() or len(line) > MAX_LINE_BYTES:
            yield number, line
