"""Pictures in the engine: the same tokens however they are batched, chunked, cached or preempted."""

import pytest

from tests.doubles.picture_runner import PLACEHOLDER, PictureRunner, items_config, placed
from tests.doubles.stepping import SteppingEngine, make_engine
from weft.core.values.pictures import PlacedItem
from weft.core.values.types import FinishReason

BEFORE, AFTER = [5, 6, 7, 8, 9], [10, 11, 12]


def make(pictures=None, **overrides) -> SteppingEngine:
    """An engine of blocks of four tokens that takes pictures."""
    return make_engine(PictureRunner(), items_config=pictures or items_config(), **overrides)


def prompt_of(*seeds: int, rows: int = 2, before=BEFORE) -> tuple[list[int], list[PlacedItem]]:
    """Text, a picture for each seed, and text after each."""
    token_ids, items = list(before), []
    for seed in seeds:
        items.append(placed(seed, len(token_ids), rows))
        token_ids += [PLACEHOLDER] * items[-1].num_tokens + AFTER
    return token_ids, items


def answer(engine: SteppingEngine, name: str, *seeds: int, rows: int = 2, **params):
    """The finished answer to a prompt with pictures."""
    token_ids, items = prompt_of(*seeds, rows=rows)
    return engine.finish(name, token_ids, items=items, max_tokens=6, **params)


ALONE = answer(make(), "alone", 1, 2).token_ids


def test_other_pictures_give_another_answer() -> None:
    """The rows of the tower reach the model."""
    assert answer(make(), "other", 1, 3).token_ids != ALONE
    assert answer(make(), "turned", 2, 1).token_ids != ALONE


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7, 11])
def test_chunks_change_nothing(budget: int) -> None:
    """A chunk may end before, in and after a picture."""
    engine = make(max_num_batched_tokens=budget)
    assert answer(engine, "chunked", 1, 2).token_ids == ALONE
    engine.scheduler.check()


@pytest.mark.parametrize(
    "changes", [{"max_step_rows": 1}, {"output_bytes": 1}, {"output_bytes": 80}]
)
def test_a_step_without_room_for_a_picture_ends_before_it(changes: dict[str, int]) -> None:
    """Budget and memory of the tower delay a picture, and an item larger than either is computed alone."""
    engine = make(items_config(**changes))
    token_ids, items = prompt_of(1, 2)
    for name in ("a", "b"):
        engine.submit(name, token_ids, items=items, max_tokens=6, salt=name)
    engine.submit("c", *prompt_of(3)[:1], items=prompt_of(3)[1], max_tokens=6)
    engine.run()
    assert [engine.answers[name][0].token_ids for name in "ab"] == [ALONE, ALONE]
    assert engine.answers["c"][0].token_ids == answer(make(), "c", 3).token_ids
    engine.scheduler.check()


def test_pictures_in_a_batch_answer_as_alone() -> None:
    """Sequences with pictures, other pictures and none share steps."""
    engine = make(max_num_batched_tokens=9)
    token_ids, items = prompt_of(1, 2)
    engine.submit("text", [3, 4, 5, 6, 7, 8], max_tokens=20)
    engine.submit("other", *prompt_of(4)[:1], items=prompt_of(4)[1], max_tokens=20)
    engine.submit("own", token_ids, items=items, max_tokens=6)
    engine.run()
    assert engine.answers["own"][0].token_ids == ALONE
    text = make().finish("text", [3, 4, 5, 6, 7, 8], max_tokens=20)
    assert engine.answers["text"][0].token_ids == text.token_ids


def test_the_same_prompt_again_is_cached_past_its_pictures() -> None:
    """Blocks are found by the items in them: the second request computes no tower, and little text."""
    engine = make()
    answer(engine, "first", 1, 2)
    again = answer(engine, "again", 1, 2)
    assert (again.token_ids, again.num_cached_tokens) == (ALONE, 16)
    assert engine.runner.encoded == [4, 4]


def test_text_before_different_pictures_is_shared() -> None:
    """A picture changes the keys of its own blocks and later ones; blocks before it are hits."""
    engine = make()
    answer(engine, "first", 1, 2)
    other = answer(engine, "other", 3, 2)
    assert other.num_cached_tokens == 4
    assert other.token_ids == answer(make(), "alone", 3, 2).token_ids


def test_a_picture_that_moves_is_not_found_where_it_stood() -> None:
    """The place of an item in a block is part of the block's key: placeholders alone look alike."""
    engine = make()
    token_ids = [5, 6, 7, *[PLACEHOLDER] * 8, 10]
    for name, starts in (("first", (3, 7)), ("second", (3, 5))):
        shapes = ((2, 2), (2, 2)) if name == "first" else ((1, 2), (2, 3))
        items = [placed(9, start, *shape) for start, shape in zip(starts, shapes, strict=True)]
        found = engine.finish(name, token_ids, items=items, max_tokens=6)
        assert (
            found.token_ids == make().finish(name, token_ids, items=items, max_tokens=6).token_ids
        )


def test_outputs_are_found_by_other_prompts() -> None:
    """The tower computes a picture once, whatever stands around it."""
    engine = make()
    answer(engine, "first", 1)
    token_ids, items = prompt_of(1, before=[20])
    engine.finish("second", token_ids, items=items, max_tokens=2)
    assert engine.runner.encoded == [4]
    counts = engine.scheduler.cache.outputs.counts
    assert (counts.num_queries, counts.num_hits) == (2, 1)


def test_a_reset_computes_the_tower_again() -> None:
    """`reset_encoder_cache` drops the outputs that nobody holds."""
    engine = make(enable_prefix_caching=False)
    answer(engine, "first", 1, 2)
    engine.scheduler.clear_outputs()
    assert answer(engine, "again", 1, 2).token_ids == ALONE
    assert engine.runner.encoded == [4, 4, 4, 4]


def test_new_weights_compute_the_tower_again() -> None:
    """Outputs of former weights are never used."""
    engine = make()
    answer(engine, "first", 1, 2)
    engine.scheduler.start_weights_epoch()
    answer(engine, "again", 1, 2)
    assert engine.runner.encoded == [4, 4, 4, 4]


def test_preempted_sequences_answer_as_alone() -> None:
    """A preempted sequence gives its outputs back, and holds them again when it runs again."""
    engine = make(num_blocks=11, enable_prefix_caching=False)
    token_ids, items = prompt_of(1, 2)
    for name in ("a", "b"):
        engine.submit(name, token_ids, items=items, max_tokens=24)
    engine.run()
    assert engine.scheduler.planner.num_preemptions > 0
    expected = make().finish("alone", token_ids, items=items, max_tokens=24).token_ids
    assert [engine.answers[name][0].token_ids for name in "ab"] == [expected, expected]
    assert all(o.num_holders == 0 for o in engine.scheduler.cache.outputs._outputs.values())
    engine.scheduler.check()


def test_an_aborted_request_gives_its_outputs_back() -> None:
    """An output that no step has computed is dropped with its last holder."""
    engine = make(max_num_batched_tokens=6)
    token_ids, items = prompt_of(1)
    engine.submit("gone", token_ids, items=items, max_tokens=6)
    engine.step()
    engine.abort("gone")
    engine.scheduler.check()
    assert answer(engine, "alone", 1, 2).token_ids == ALONE


@pytest.mark.parametrize("budget", [1, 3, 4, 6, 8, 64])
def test_no_step_cuts_tokens_that_see_each_other(budget: int) -> None:
    """A chunk ends before such a run, or takes it whole; the runner refuses rows that see later ones."""
    both = items_config(sees_both_ways=True)
    engine = make(both, max_num_batched_tokens=budget)
    assert answer(engine, "chunked", 1, 2).token_ids == answer(make(both), "alone", 1, 2).token_ids
    assert answer(engine, "again", 1, 2).num_cached_tokens == 16


def test_answers_share_the_outputs_of_their_prompt() -> None:
    """Several answers of a request compute the tower once."""
    engine = make(enable_prefix_caching=False)
    token_ids, items = prompt_of(1, 2)
    engine.finish("many", token_ids, items=items, max_tokens=6, n=3)
    assert engine.runner.encoded == [4, 4]


def test_cache_events_name_the_items_of_each_block() -> None:
    """A router reads from events which pictures a block stands for, and where each begins."""
    engine = make()
    token_ids, items = prompt_of(1)
    engine.finish("named", token_ids, items=items, max_tokens=1)
    [stored] = engine.scheduler.cache.take_events()
    assert stored.media == [[], [(items[0].hash, 1)], [(items[0].hash, -3)]]


@pytest.mark.parametrize("failure", [MemoryError(), RuntimeError("no"), None])
def test_a_picture_that_the_tower_cannot_compute_fails_its_own_requests(failure) -> None:
    """An error, lack of memory or wrong rows end the requests with this picture; other requests of the step go on."""
    engine = make()
    engine.runner.broken, engine.runner.failure = 6, failure
    engine.submit("text", [3, 4, 5, 6, 7, 8], max_tokens=6)
    token_ids, items = prompt_of(1, rows=3)
    for name in ("broken", "twin"):
        engine.submit(name, token_ids, items=items, max_tokens=6)
    engine.submit("good", *prompt_of(1, 2)[:1], items=prompt_of(1, 2)[1], max_tokens=6)
    engine.run()
    for name in ("broken", "twin"):
        [ended] = engine.answers[name]
        assert (ended.finish_reason, ended.token_ids) == (FinishReason.ERROR, [])
        assert ended.error.startswith("image: the model could not compute this picture")
    assert engine.answers["good"][0].token_ids == ALONE
    text = make().finish("text", [3, 4, 5, 6, 7, 8], max_tokens=6)
    assert engine.answers["text"][0].token_ids == text.token_ids
    engine.scheduler.check()


def test_nothing_that_a_failed_picture_left_is_found_later() -> None:
    """The next request with the picture computes the tower again, and all blocks from the picture on."""
    engine = make()
    engine.runner.broken, engine.runner.failure = 6, MemoryError()
    answer(engine, "broken", 1, rows=3)
    engine.runner.broken = None
    again = answer(engine, "again", 1, rows=3)
    assert again.token_ids == answer(make(), "alone", 1, rows=3).token_ids
    assert (again.error, again.num_cached_tokens) == (None, 0)
    assert engine.runner.encoded == [6, 6]
    engine.scheduler.check()


def test_a_picture_that_fails_in_a_later_chunk_ends_all_answers_of_its_request() -> None:
    """Chunks before the picture were computed; the steps after it never run."""
    engine = make(max_num_batched_tokens=4)
    engine.runner.broken, engine.runner.failure = 6, RuntimeError()
    token_ids, items = prompt_of(1, rows=3)
    engine.submit("many", token_ids, items=items, max_tokens=6, n=2)
    engine.run()
    assert [a.finish_reason for a in engine.answers["many"]] == [FinishReason.ERROR] * 2
    engine.scheduler.check()
