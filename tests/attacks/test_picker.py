"""Whatever body a caller sends, a picker answers others: its event loop is held for none."""

import gzip
from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType

import pytest

from tests.attacks.picker import Picker, picker
from tests.doubles.loop_probe import TRIES, is_bounded
from tests.epp.server.messages import request_headers
from tests.epp.server.test_large_bodies import MIB, SHAPES, path_of
from tests.slow import slow_but

# Each as the shape of a body, its length, and how it is sent.
ENCODERS: MappingProxyType[str, Callable[[bytes], bytes]] = MappingProxyType(
    {"identity": lambda body: body, "gzip": partial(gzip.compress, compresslevel=1)}
)
ATTACKS = [
    (shape, num_bytes, encoding)
    for shape in SHAPES
    for num_bytes in (MIB // 4 - 100, 2 * MIB, 32 * MIB)
    for encoding in ENCODERS
]
OFTEN = {("messages", 2 * MIB, "gzip"), ("parts", MIB // 4 - 100, "identity")}


@pytest.fixture(scope="module")
def aimed() -> Iterator[Picker]:
    """The same for all attacks, as for all callers."""
    with picker() as started:
        yield started


@pytest.mark.parametrize("attack", slow_but(OFTEN, ATTACKS), ids=str)
def test_no_body_holds_the_loop_of_a_picker(aimed: Picker, attack: tuple[str, int, str]):
    """However large it is when it is unpacked."""
    shape, num_bytes, encoding = attack
    body = ENCODERS[encoding](SHAPES[shape](num_bytes))
    found: list[object] = []
    for _ in range(TRIES):
        aimed.read()
        status = aimed.route(request_headers(path_of(shape), content_encoding=encoding), body)
        found.append((status, aimed.read()))
        if status in {200, 400, 413} and is_bounded(found[-1][1].pause_s):
            return
    raise AssertionError(found)
