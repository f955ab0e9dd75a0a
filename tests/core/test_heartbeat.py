"""weft.core.aio.heartbeat: a process that does not answer is noticed, and no other."""

import pytest

from weft.core.aio.heartbeat import PERIOD_S, Heartbeat


class Other:
    """A process that answers some beats, and how long it has been listened to."""

    def __init__(self, num_answers: int, timeout_s: float, start_s: float = 0.0) -> None:
        self.num_answers = num_answers
        self.took_s = 0.0
        self.heartbeat = Heartbeat(self._beat, timeout_s, start_s=start_s, sleep=self._sleep)

    def _beat(self) -> None:
        self._is_answered = self.num_answers > 0
        self.num_answers -= 1

    async def _sleep(self, seconds: float) -> None:
        self.took_s += seconds
        if self._is_answered:
            self.heartbeat.answered()


@pytest.mark.parametrize(
    ("num_answers", "start_s", "expected_s"),
    [
        (0, 0.0, 20.0),
        (0, 100.0, 120.0),
        (7, 0.0, 7 * PERIOD_S + 20.0),
        (7, 100.0, 7 * PERIOD_S + 20.0),
    ],
)
async def test_silence_is_time_without_an_answer(num_answers, start_s, expected_s):
    """It counts from the last answer; a process that starts has more time until the first."""
    other = Other(num_answers, 20.0, start_s)
    await other.heartbeat.silence()
    assert other.took_s == expected_s
