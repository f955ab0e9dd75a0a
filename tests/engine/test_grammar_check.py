"""Trying out constraints in a child process: the nasty ones end in time, and nobody else notices."""

import asyncio

import psutil
import pytest

from tests.busy import until
from tests.text.vocabularies import files_of, metaspace_library
from weft.core.errors import BadRequest, Unavailable
from weft.core.values.types import StructuredOutputsParams
from weft.engine.constraints.check import MAX_CACHE_BYTES, GrammarChecker
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_files(tokenizer_files(300, "<|endoftext|>"))
# A second and more of work, whatever the library's own limits.
HEAVY = "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60)) + 'A60: "x"\n'


def constraint(**given):
    return StructuredOutputsParams(**given)


@pytest.fixture
def checker():
    """Its children are gone at the end."""
    opened = GrammarChecker(TOKENIZER, 300, (256,))
    yield opened
    opened.close()


@pytest.fixture
def children():
    """Finds the child processes of this one that are alive, and were not there before the test."""
    before = psutil.Process().children()
    return lambda: [
        child for child in psutil.Process().children() if child not in before and is_alive(child)
    ]


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def seconds_of(process):
    """Its processor time."""
    times = process.cpu_times()
    return times.user + times.system


def deep(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


NASTY = [
    ("41", "json", {"json": {"$ref": "#"}}),
    ("41", "json", {"json": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}}),
    ("41", "json", {"json": {"type": 1}}),
    ("41", "json", {"json": {"$ref": "https://example.com/schema.json"}}),
    ("41", "json", {"json": {"$ref": "file:///etc/passwd"}}),
    ("41", "json", {"json": {"type": "integer", "multipleOf": 0}}),
    ("41", "json", {"json": {"type": "string", "pattern": "(a"}}),
    ("41", "json", {"json": {"enum": []}}),
    ("42", "regex", {"regex": "(a"}),
    ("42", "regex", {"regex": "(?<=a)b"}),
    ("42", "regex", {"regex": "(?=a)b"}),
    ("42", "regex", {"regex": "(" * 10_000 + "a" + ")" * 10_000}),
    ("43", "grammar", {"grammar": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000}),
    ("43", "grammar", {"grammar": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000}),
    ("43", "grammar", {"grammar": "start: foo"}),
    ("43", "grammar", {"grammar": "root ::= foo"}),
    ("43", "grammar", {"grammar": "%import /etc/passwd\nstart: X"}),
    ("43", "grammar", {"grammar": "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(60))}),
    ("43", "grammar", {"grammar": HEAVY}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for _, name, given in NASTY], ids=range(len(NASTY))
)
async def test_a_nasty_constraint_is_refused_in_time(checker, children, name, given):
    """Rows 41 to 43: by name, in a sentence, and the next caller is served."""
    await checker.check(constraint(regex="warm"))
    [worker] = children()
    before_s = seconds_of(worker)
    with pytest.raises(BadRequest) as caught:
        await checker.check(constraint(**given))
    # A child that is there no more was ended at its limit.
    assert not is_alive(worker) or seconds_of(worker) - before_s < 2.5
    assert caught.value.parameter == name
    assert len(str(caught.value)) < 400
    assert await checker.check(constraint(regex="ab"))


@pytest.mark.parametrize(
    "given",
    [
        {"regex": "(a+)+$"},
        {"regex": "^(([a-z])+.)+[A-Z]([a-z])+$"},
        {"json": deep(50)},
        {"json": {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}},
        {"json": {"type": "string", "pattern": "^(([a-z]+)+)+$"}},
        {"json": {}},
        {"choice": [f"choice {number}" for number in range(4000)]},
        {"grammar": 'start: start "a" | "b"'},
        {"grammar": "%import common.NUMBER\nstart: NUMBER"},
    ],
    ids=range(9),
)  # fmt: skip
async def test_what_only_looks_nasty_is_served(checker, given):
    """The library does not backtrack: nested quantifiers cost nothing."""
    assert await checker.check(constraint(**given))


async def test_the_time_limit_ends_the_work(children):
    """The child dies in the midst of it, and another takes its place."""
    patient = GrammarChecker(TOKENIZER, 300, (256,), time_limit_s=60)
    await patient.check(constraint(regex="ab"))
    [worker] = children()
    before_s = seconds_of(worker)
    with pytest.raises(BadRequest, match="too big"):  # where it is given all the time it takes
        await patient.check(constraint(grammar=HEAVY))
    limit_s = (seconds_of(worker) - before_s) / 2
    patient.close()
    checker = GrammarChecker(TOKENIZER, 300, (256,), time_limit_s=limit_s)
    await checker.check(constraint(regex="ab"))
    [worker] = children()
    with pytest.raises(BadRequest, match=r"grammar takes more than"):
        await checker.check(constraint(grammar=HEAVY))
    assert not is_alive(worker)
    assert await checker.check(constraint(regex="ac"))
    checker.close()
    assert children() == []


async def test_a_slow_constraint_keeps_nobody_else_waiting(checker, children):
    """There is a second child; and the event loop turns. The first one stands still here."""
    await checker.check(constraint(regex="a"))
    [stuck] = children()
    stuck.suspend()
    slow = asyncio.create_task(checker.check(constraint(regex="b")))
    await until(lambda: not checker._idle)
    assert await checker.check(constraint(regex="c"))
    assert not slow.done()
    stuck.resume()
    assert await slow


async def test_a_constraint_is_checked_once(checker):
    """The second answer needs no child."""
    first = await checker.check(constraint(json={"type": "integer"}))
    checker.close()
    assert await checker.check(constraint(json='{"type": "integer"}')) == first


async def test_what_is_cached_is_bounded(checker):
    """Ten thousand different texts of three kilobytes do not stay."""
    cache = checker._cache
    for number in range(10_000):
        cache.put(str(number), "x" * 3000)
    assert cache.num_bytes <= MAX_CACHE_BYTES
    assert cache.get("0") is None
    assert cache.get("9999") is not None


async def test_closing_refuses_those_who_wait(checker, children):
    """With an error of ours, and never as if they had been cancelled."""

    def are_held():
        for child in children():
            child.suspend()  # so that none of them is done too soon
        return len(children()) == 2

    waiting = [
        asyncio.create_task(checker.check(constraint(grammar=HEAVY + f"// {n}"))) for n in range(4)
    ]
    await until(are_held)
    checker.close()
    for child in children():
        child.resume()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [BadRequest] * 2 + [Unavailable] * 2


async def test_a_tokenizer_that_cannot_be_used_is_named(checker):
    """Not the time limit, though no child can work with it."""
    unusable = Tokenizer.from_files(files_of(metaspace_library()))
    other = GrammarChecker(unusable, 400, (2,))
    with pytest.raises(BadRequest, match="no grammar works with this tokenizer"):
        await other.check(constraint(regex="a"))
    other.close()


async def test_no_child_runs_before_it_is_needed(checker, children):
    """Requests without constraints cost nothing."""
    assert children() == []
    await checker.check(constraint(regex="a"))
    assert len(children()) == 1
    checker.close()
    assert children() == []
