"""A batch that leads out of the model, the pool or itself is refused by field, before anything runs."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.native.models import make_runner
from tests.compute.steps import Part, step
from weft.compute.protocols.runner import Batch
from weft.engine.step.step_size import MAX_ROWS

BLOCK_SIZE = 4


def ints(*values):
    return np.array(values, np.int32)


def good_batch():
    parts = [
        Part([5, 6, 7, 8, 9], 5, [3, 1], 0, 5),
        Part([1, 2, 3], 3, [0], 2, 3),
    ]
    return step(parts, BLOCK_SIZE, [4, 5])


@pytest.fixture(scope="module")
def runner():
    runner = make_runner("plain", "bfloat16", num_threads=2)
    runner.allocate_kv(num_blocks=4, block_size=BLOCK_SIZE)
    return runner


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", ints(5, 6, 7, 8, 9, 300)),
        ("token_ids", ints(5, 6, 7, 8, 9, -1)),
        ("token_ids", ints()),
        ("positions", ints(0, 1, 2, 3, 4, -1)),
        ("positions", ints(0, 1, 2, 3, 8, 2)),
        ("positions", ints(0, 1, 2, 3, 4)),
        ("slots", ints(12, 13, 14, 15, 4, 16)),
        ("slots", ints(12, 13, 14, 15, 4, -1)),
        ("slots", ints(12, 13, 14, 15, 4, 4)),
        ("slots", ints(12, 13, 14, 15, 4, 2, 3)),
        ("query_starts", ints(0, 5, 7)),
        ("query_starts", ints(1, 5, 6)),
        ("query_starts", ints(0, 7, 6)),
        ("query_starts", ints(0, 0, 6)),
        ("query_starts", ints(0)),
        ("block_tables", np.array([[3, 4], [0, 0]], np.int32)),
        ("block_tables", np.array([[3, -1], [0, 0]], np.int32)),
        ("block_tables", np.array([[3, 1]], np.int32)),
        ("block_tables", np.zeros((2, 0), np.int32)),
        ("logit_rows", ints(4, 6)),
        ("logit_rows", ints(-1, 5)),
        ("token_types", ints(0, 0, 0, 0, 0, 1)),
        ("token_types", ints(0, 0, 0)),
        ("token_types", ints()),
        ("adapter_ids", ints()),
        ("embed_rows", ints()),
        ("embed_rows", ints(6)),
        ("embed_rows", ints(-1)),
        ("embed_rows", ints(2)),  # without what it begins with
        ("embeds", np.zeros((1, 64), np.float32)),
        ("deep_embeds", np.zeros((1, 1, 64), np.float32)),  # without rows
        ("rope_positions", np.zeros((5, 3), np.int32)),
        ("rope_positions", np.full((6, 3), -1, np.int32)),
        ("attend_ends", ints(0, 1, 2, 3, 4)),
        ("attend_ends", ints(0, 1, 2, 3, 5, 2)),  # behind the rows of the sequence
        ("attend_ends", ints(0, 0, 2, 3, 4, 2)),  # before the row itself
        ("attend_ends", ints()),
        ("memories", [np.zeros(64, np.uint8)]),  # of a model that attends to none
    ],
)
def test_a_bad_field_is_refused(runner, field, value):
    """Each field that could lead out of bounds is checked, and the message names a field."""
    names = "|".join(f.name for f in fields(Batch))
    with pytest.raises(ValueError, match=names):
        runner.forward(replace(good_batch(), **{field: value}))


def test_a_step_may_have_the_rows_that_can_be_asked_for_and_no_more(runner):
    """`--max-num-batched-tokens` is bounded by it."""
    for num_rows, message in (
        (MAX_ROWS, "positions must have"),
        (MAX_ROWS + 1, "more than 2.20"),
    ):
        batch = replace(good_batch(), token_ids=np.zeros(num_rows, np.int32))
        with pytest.raises(ValueError, match=message):
            runner.forward(batch)


# What every batch has and the native step reads; `prompt_lens` is for rotary scaling.
UNREAD = (
    *("prompt_lens", "token_types", "adapter_ids", "embed_rows", "embeds"),
    *("state_reads", "state_writes", "num_state_rows", "token_sources"),
    *("deep_embeds", "rope_positions", "attend_ends", "memories"),
)
READ = [f.name for f in fields(Batch) if f.name not in UNREAD]


@pytest.mark.parametrize("field", READ)
def test_an_array_of_another_type_is_refused(runner, field):
    """Only contiguous int32 arrays are read; others would be read as something they are not."""
    value = getattr(good_batch(), field).astype(np.float64)
    with pytest.raises(TypeError):
        runner.forward(replace(good_batch(), **{field: value}))


@pytest.mark.parametrize("embed_rows", [ints(3, 1), ints(1, 1), ints(1)])
def test_embeddings_that_fit_no_rows_are_refused(runner, embed_rows):
    """Each is of one row, in order."""
    embeds = np.zeros((2, runner.spec.hidden_size), np.float32)
    with pytest.raises(ValueError, match="embed"):
        runner.forward(replace(good_batch(), embed_rows=embed_rows, embeds=embeds))
    with pytest.raises(ValueError, match="embed"):
        runner.forward(replace(good_batch(), embed_rows=ints(1, 2), embeds=embeds[:, 1:].copy()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": ints(0, 1, 2, 4, 3, 2)}, r"positions\[3\] must follow the one before"),
        (
            {"slots": ints(12, 13, 14, 11, 4, 2)},
            r"slots\[3\] must lie in the block of its position",
        ),
        (
            {
                "slots": ints(12, 13, 14, 15, 4, 6),
                "block_tables": np.array([[3, 1], [1, 0]], np.int32),
            },
            "block_tables has 1 twice among blocks that are written",
        ),
    ],
)
def test_rows_whose_states_would_be_mixed_up_are_refused(changes, message):
    """Harmless to attention, which only sees slots; what a convolution keeps is of one sequence, in order."""
    for shape in ("convolutions", "plain"):
        runner = make_runner(shape, "bfloat16", num_threads=2)
        runner.allocate_kv(num_blocks=4, block_size=BLOCK_SIZE)
        if shape == "plain":
            runner.forward(replace(good_batch(), **changes))
        else:
            with pytest.raises(ValueError, match=message):
                runner.forward(replace(good_batch(), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state_reads": None}, "state_reads and state_writes must have as many entries"),
        ({"state_writes": None}, "state_reads and state_writes must have as many entries"),
        ({"state_writes": ints(1)}, "state_reads and state_writes must have as many entries"),
        ({"num_state_rows": ints(1)}, "num_state_rows must have as many entries"),
        ({"num_state_rows": ints(0, 1)}, r"num_state_rows\[0\] must be from 1 to the rows of"),
        ({"num_state_rows": ints(1, 99)}, r"num_state_rows\[1\] must be from 1 to the rows of"),
        ({"state_reads": ints()}, "state_reads must not be empty"),
        ({"state_reads": ints(0, 3)}, r"state_reads\[1\] is 3; it must be from 0 to 2"),
        ({"state_reads": ints(0, -1)}, r"state_reads\[1\] is -1; it must be from 0 to 2"),
        ({"state_writes": ints(3, 1)}, r"state_writes\[0\] is 3; it must be from 0 to 2"),
        ({"state_writes": ints(1, 1)}, "state_writes has 1 twice"),
        (
            {"state_reads": ints(0, 0), "state_writes": ints(0, 1)},
            r"state_reads\[1\] must not be what another sequence writes",
        ),
        ({"positions": ints(0, 1, 2, 4, 3, 2)}, r"positions\[3\] must follow the one before"),
    ],
)
def test_slots_of_states_that_fit_no_sequences_are_refused(changes, message):
    """And a step that begins a sequence does not mind what its slot holds, or which one it reads."""
    runner = make_runner("mamba", "bfloat16", num_threads=2)
    runner.allocate_kv(num_blocks=4, block_size=BLOCK_SIZE, num_state_slots=3)
    slots = {"state_reads": ints(0, 1), "state_writes": ints(0, 1)}
    runner.forward(replace(good_batch(), **slots))
    runner.forward(replace(good_batch(), **slots | {"state_reads": ints(1, 2)}))
    with pytest.raises(ValueError, match=message):
        runner.forward(replace(good_batch(), **slots | changes))


def test_a_pool_without_slots_is_refused_where_states_are_kept():
    """When a step comes, since attention alone needs none."""
    runner = make_runner("mamba", "bfloat16")
    runner.allocate_kv(num_blocks=4, block_size=BLOCK_SIZE)
    with pytest.raises(ValueError, match="call allocate_kv with num_state_slots"):
        runner.forward(good_batch())
    for number in (-1, 2**31):
        with pytest.raises(ValueError, match="num_state_slots"):
            runner.allocate_kv(num_blocks=4, block_size=BLOCK_SIZE, num_state_slots=number)


def test_adapters_are_refused(runner):
    """Rows that should have one must not be answered as if they had none."""
    with pytest.raises(ValueError, match="adapter_ids"):
        runner.forward(replace(good_batch(), adapter_ids=np.array([1], np.int32)))


def test_a_refused_step_changes_nothing(runner):
    """The step after a refused one gives what it would have given."""
    first = runner.forward(good_batch())
    with pytest.raises(ValueError, match="slots"):
        runner.forward(replace(good_batch(), slots=ints(0, 0, 0, 0, 0, 0)))
    assert runner.forward(good_batch()).tobytes() == first.tobytes()


def test_a_step_before_the_pool_is_refused():
    """Without a pool there is nowhere to write."""
    with pytest.raises(ValueError, match="allocate_kv"):
        make_runner("plain", "float32").forward(good_batch())


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (-1, 16), (4, 0), (2**20, 2**20)])
def test_a_pool_of_impossible_size_is_refused(num_blocks, block_size):
    """Sizes are positive, and slots are int32."""
    with pytest.raises(ValueError, match=r"num_blocks|block_size"):
        make_runner("plain", "float32").allocate_kv(num_blocks=num_blocks, block_size=block_size)


small = st.integers(-2, 20)
arrays = st.lists(small, max_size=8).map(lambda values: ints(*values))
tables = st.tuples(st.integers(0, 3), st.integers(0, 3)).flatmap(
    lambda shape: st.lists(small, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]).map(
        lambda values: ints(*values).reshape(shape)
    )
)


@settings(max_examples=300, deadline=None)
@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            "token_ids": arrays,
            "positions": arrays,
            "slots": arrays,
            "query_starts": arrays,
            "block_tables": tables,
            "logit_rows": arrays,
        },
    )
)
def test_any_batch_is_computed_or_refused(changes):
    """Whatever the arrays hold, a step gives finite logits or a ValueError."""
    batch = replace(good_batch(), **changes)
    try:
        logits = FUZZED.forward(batch)
    except ValueError:
        return
    assert np.isfinite(logits).all()


FUZZED = make_runner("plain", "float32", num_threads=2)
FUZZED.allocate_kv(num_blocks=4, block_size=BLOCK_SIZE)
