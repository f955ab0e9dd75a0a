"""Requests that the server makes to itself: which answers are final."""

import pytest

from weft.web import inside
from weft.web.inside import TRANSIENT, InsideAnswer, until_answered


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    """The pauses between tries take half a minute."""
    monkeypatch.setattr(inside, "_PAUSES_S", (0.0, 0.0))


def answering(*statuses: int):
    """A function that answers with these statuses, the last one for ever, and the number of its calls."""
    calls: list[int] = []

    async def send() -> InsideAnswer:
        calls.append(statuses[min(len(calls), len(statuses) - 1)])
        return InsideAnswer(status=calls[-1])

    return send, calls


@pytest.mark.parametrize("status", [200, 400, 401, 404, 409])
async def test_an_answer_that_says_something_is_final(status):
    """No request is made twice for it."""
    send, calls = answering(status)
    assert (await until_answered(send)).status == status
    assert calls == [status]


@pytest.mark.parametrize("status", sorted(TRANSIENT))
async def test_a_server_without_room_is_asked_again(status):
    """Until it has room."""
    send, calls = answering(status, status, 200)
    assert (await until_answered(send)).status == 200
    assert len(calls) == 3


async def test_an_error_of_the_server_itself_is_the_answer_after_some_tries():
    """Else a request that the server cannot handle would be made for ever."""
    send, calls = answering(500)
    assert (await until_answered(send)).status == 500
    assert len(calls) == 8
