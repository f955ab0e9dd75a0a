"""Heads for multi-token prediction compute what their families' own code computes."""

import numpy as np
import pytest

from tests.compute.mtp_heads import CASES, write_head
from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from weft.compute.protocols.runner import Batch, HiddenStates
from weft.model.open import open_model

LENGTH, BLOCK_SIZE = 75, 8
TABLE = [9, 3, 5, 1, 8, 2, 7, 6, 4, 0]
COMPUTED = [(case, compute) for case in CASES for compute in ("reference", "native")]


def pairs(batch: Batch, embeds: np.ndarray, hidden: np.ndarray) -> Batch:
    """The batch with these pairs as rows."""
    rows = {"embed_rows": np.arange(len(embeds), dtype=np.int32)}
    joined = np.concatenate([embeds, hidden], axis=1)
    fields = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
    return Batch(**fields | rows | {"embeds": joined})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("case", "compute"), COMPUTED)
def test_a_head_gives_the_states_of_its_familys_own_layer(case, compute, tmp_path):
    """In chunks and scattered blocks: pairs of the model's last states and next embeddings go through that layer."""
    head = write_head(*CASES[case], tmp_path)
    token_ids = np.random.default_rng(3).integers(0, 320, LENGTH).tolist()
    states, expected = (part.numpy() for part in head.states(token_ids))
    checkpoint = open_model(head.path)
    assert checkpoint.find_mtp is not None
    runner, mtp = (
        load_runner(found, max_model_len=200, compute=compute)
        for found in (checkpoint, checkpoint.find_mtp())
    )
    for one in (runner, mtp):
        one.allocate_kv(num_blocks=10, block_size=BLOCK_SIZE, num_state_slots=1)
    assert isinstance(runner, HiddenStates)
    part = Part(token_ids, LENGTH, TABLE, 0, LENGTH)
    plain = runner.forward(step([part], BLOCK_SIZE, [3, 70]))
    logits, hidden = runner.forward_hidden(step([part], BLOCK_SIZE, [3, 70]))
    assert logits.tobytes() == plain.tobytes()
    assert runner.logits(hidden[[3, 70]]).tobytes() == plain.tobytes()
    tolerance = 2e-3 if case.startswith("qwen") else 2e-4
    assert np.abs(hidden - states).max() <= tolerance

    embeds = runner.embed(np.array(token_ids[1:], np.int32))
    given = []
    for start, end in ((0, 40), (40, 41), (41, LENGTH - 1)):
        batch = step([Part(token_ids, LENGTH, TABLE, start, end)], BLOCK_SIZE)
        given.append(mtp.forward(pairs(batch, embeds[start:end], hidden[start:end])))
    assert np.abs(np.concatenate(given) - expected).max() <= tolerance
    assert expected.std() > 0.3
