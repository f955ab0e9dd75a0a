"""Loads: sessions whose prompts grow turn by turn over shared system prompts, bursts, and workers that fail.

All is drawn from one seed, and the same for every policy: when sessions begin, what they say, what is answered.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.scale.service import BLOCK_SIZE
from weft.epp.prefix.keys import XxhKeys, iter_keys

_KEYS = XxhKeys("simulated worker")
_ROOT = _KEYS.root("")
_WIDTH = 4 * BLOCK_SIZE
_MAX_TURNS = 3  # times the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is asked, and what goes wrong. Lengths are means, in tokens."""

    name: str
    about: str
    num_groups: int = 16  # of sessions that share a system prompt
    num_system: int = 1000
    num_turns: float = 5.0
    num_asked: int = 150
    num_answered: int = 150
    gap_s: float = 7.0  # from one turn to the next; longer if the answer takes longer
    burst: tuple[float, float, float] | None = (
        None  # every so many seconds, for so many, so much more
    )
    failing: float = 0.0  # share of workers that end in the middle, and are back ten seconds later
    slow: float = 0.0  # share of workers that take twice as long


SCENARIOS: dict[str, Scenario] = {
    each.name: each
    for each in (
        Scenario(name="chat", about="sessions of 5 turns, 16 system prompts of 1,000 tokens"),
        Scenario(
            name="agents",
            about="sessions of 12 turns, 64 system prompts of 4,000 tokens, a turn every two seconds",
            num_groups=64, num_system=4000, num_turns=12.0, num_asked=300, num_answered=80,
            gap_s=2.0,
        ),
        Scenario(
            name="documents",
            about="single questions about 256 documents of 6,000 tokens, some far more often than others",
            num_groups=256, num_system=6000, num_turns=1, num_asked=100, num_answered=100,
        ),
        Scenario(
            name="unrelated", about="single questions of 800 tokens that share nothing",
            num_groups=0, num_system=0, num_turns=1, num_asked=800, num_answered=150,
        ),
        Scenario(
            name="bursts", about="chat; for one second of ten, four times as many sessions begin",
            burst=(10.0, 1.0, 4.0),
        ),
        Scenario(name="failures", about="chat; a quarter of the workers is lost, and comes back empty", failing=0.25),
        Scenario(name="mixed", about="chat; half of the workers takes twice as long", slow=0.5),
    )
}  # fmt: skip


def shortened(scenario: Scenario, factor: float) -> Scenario:
    """The same with shorter texts, for a smaller engine."""
    return replace(
        scenario,
        num_system=int(scenario.num_system * factor),
        num_asked=int(scenario.num_asked * factor),
        num_answered=int(scenario.num_answered * factor),
    )


@dataclass(slots=True)
class Text:
    """Tokens, and the chain of their full blocks. It only grows."""

    tokens: bytes = b""
    chain: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """How long it is."""
        return len(self.tokens) // 4

    def then(self, tokens: bytes) -> "Text":
        """This and more, as another text."""
        whole = self.tokens + tokens
        start = len(self.chain) * _WIDTH
        parent = self.chain[-1] if self.chain else _ROOT
        more = iter_keys(
            _KEYS, whole[start:], block_size=BLOCK_SIZE, parent=parent, first_extra=None
        )
        return Text(whole, [*self.chain, *more])


@dataclass(slots=True)
class Turn:
    """What a session adds: a question, and the answer that comes of it."""

    asked: bytes
    answered: bytes
    gap_s: float  # since the turn before it


@dataclass(slots=True)
class Session:
    """A client: when it comes, what it begins with, and its turns."""

    at_s: float
    begins: Text
    turns: Sequence[Turn]


class Sessions:
    """The sessions of a run, in the order in which they begin."""

    def __init__(self, scenario: Scenario, *, requests_per_s: float, seconds: float, seed: int):
        self._scenario = scenario
        self._rate = requests_per_s / scenario.num_turns
        self._seconds = seconds
        self._random = random.Random(f"{seed} sessions {scenario.name}")
        self._groups = [
            Text().then(self._draw(scenario.num_system)) for _ in range(scenario.num_groups)
        ]
        # By Zipf's law: the first group is the favourite.
        self._weights = [1 / (rank + 1) for rank in range(scenario.num_groups)]

    def __iter__(self) -> Iterator[Session]:
        yield from self._under_way()
        now = 0.0
        while True:
            now += self._random.expovariate(self._rate * self._factor(now))
            if now >= self._seconds:
                return
            yield self._session(now)

    def _under_way(self) -> Iterator[Session]:
        """Those that began before: as many as there are on average, so that the rate is there at once."""
        scenario = self._scenario
        count = round(self._rate * (scenario.num_turns - 1) * scenario.gap_s)
        for at_s in sorted(self._random.uniform(0.0, scenario.gap_s) for _ in range(count)):
            session = self._session(at_s)
            for _ in range(self._count_turns() - 1):
                asked, answered = self._turn(0.0).asked, self._turn(0.0).answered
                session.begins = session.begins.then(asked + answered)
            yield session

    def _factor(self, now: float) -> float:
        """How much more than on average; a burst's sessions are missing from the time between."""
        if self._scenario.burst is None:
            return 1.0
        every_s, for_s, factor = self._scenario.burst
        if now % every_s < for_s:
            return factor
        return (every_s - for_s * factor) / (every_s - for_s)

    def _session(self, now: float) -> Session:
        drawn, scenario = self._random, self._scenario
        begins = drawn.choices(self._groups, self._weights)[0] if self._groups else Text()
        turns = [
            self._turn(drawn.expovariate(1 / scenario.gap_s) if number else 0.0)
            for number in range(self._count_turns())
        ]
        return Session(now, begins, turns)

    def _count_turns(self) -> int:
        """Geometric, with the mean that was asked for; without memory, so those under way have as many left."""
        num_turns, mean = 1, self._scenario.num_turns
        while num_turns < _MAX_TURNS * mean and self._random.random() > 1 / mean:
            num_turns += 1
        return num_turns

    def _turn(self, gap_s: float) -> Turn:
        scenario = self._scenario
        return Turn(
            self._draw(self._length(scenario.num_asked)),
            self._draw(self._length(scenario.num_answered)),
            gap_s,
        )

    def _length(self, mean: int) -> int:
        """From half the mean to half as much again: bounded, so that every request fits."""
        return max(1, round(mean * self._random.uniform(0.5, 1.5)))

    def _draw(self, num_tokens: int) -> bytes:
        return self._random.randbytes(4 * num_tokens)
