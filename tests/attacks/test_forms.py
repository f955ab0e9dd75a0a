"""Forms with recordings: whatever their parts are, others are served, and memory comes back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.target import Reading, Target, target
from tests.doubles.loop_probe import TRIES, is_bounded
from tests.doubles.whisper import sound, write_whisper
from weft.web.http.options import HttpOptions

BOUNDARY = b"b" * 60
_ROOM = HttpOptions().max_form_bytes - 2**16
# Memory of a recording while it is decoded, and of the form: both are bounded.
MOST_BYTES = 512 * 2**20
SPEECH = "/v1/audio/transcriptions"


def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    """A part of a form."""
    head = b"--" + BOUNDARY + b'\r\ncontent-disposition: form-data; name="' + name + b'"' + more
    return head + b"\r\n\r\n" + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    """A form of these parts."""
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def file(data: bytes) -> bytes:
    """The part with the recording."""
    return part(b"file", data, b'; filename="a.wav"')


def endless(rate: int, channels: int) -> bytes:
    """A recording whose header promises as much as it can, and which is as large as a file may be."""
    made = bytearray(sound(0.1))
    made[22:28] = channels.to_bytes(2, "little") + rate.to_bytes(4, "little")
    made[40:44] = b"\xff\xff\xff\xff"
    return bytes(made) + bytes(25 * 2**20 - len(made))


FORMS = {
    "bytes that are no recording": lambda: form(file(b"a" * _ROOM)),
    "beginnings of boundaries": lambda: form(
        file((b"\r\n--" + BOUNDARY[:-1] + b"x") * (_ROOM // 64))
    ),
    "line ends": lambda: form(file(b"\r\n" * (_ROOM // 2))),
    "fields": lambda: form(*(part(b"x%d" % number, b"a") for number in range(100_000))),
    "large fields": lambda: form(*(part(b"x%d" % number, b"a" * 2**18) for number in range(90))),
    "header without an end": lambda: b"--" + BOUNDARY + b"\r\n" + b"a" * _ROOM,
    "headers": lambda: b"--" + BOUNDARY + b"\r\n" + b"a: b\r\n" * (_ROOM // 6),
    "no end": lambda: file(b"a" * _ROOM),
    "long after its end": lambda: form(file(b"a")) + b"\r\n" * (_ROOM // 2),
    "prompt": lambda: form(file(sound(0.1)), part(b"prompt", b"text " * 50_000)),
    "highest rate": lambda: form(file(endless(384_000, 1))),
    "lowest rate": lambda: form(file(endless(1000, 8))),
    "no channels": lambda: form(file(endless(16_000, 0))),
    "most channels": lambda: form(file(endless(16_000, 65_535))),
    "chunks": lambda: form(file(sound(0.1)[:12] + b"none\0\0\0\0" * (_ROOM // 9))),
}


@pytest.fixture(scope="module")
def aimed(tmp_path_factory) -> Iterator[Target]:
    """A server that transcribes, by a model of random weights."""
    model: Path = write_whisper(tmp_path_factory.mktemp("whisper"))
    with target(str(model), "--max-model-len", "64") as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMS)
def test_no_form_holds_the_event_loop(aimed: Target, kind: str):
    """It is answered or refused, and takes no more memory than a recording may."""
    body = FORMS[kind]()
    num_descriptors = aimed.server.front.num_fds()
    found: list[tuple[object, Reading]] = []
    for _ in range(TRIES):
        aimed.read()
        status = aimed.post(SPEECH, body, f"multipart/form-data; boundary={BOUNDARY.decode()}")[0]
        found.append((status, aimed.read()))
        assert status in (200, 400, 413)
        if is_bounded(found[-1][1].pause_s) and found[-1][1].grown_bytes < MOST_BYTES:
            break
    else:
        raise AssertionError(found)
    assert aimed.is_well()
    assert aimed.server.front.num_fds() <= num_descriptors + 2
