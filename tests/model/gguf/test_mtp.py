"""A head for multi-token prediction in a GGUF file: `nextn`, a layer behind the last."""

import numpy as np
import pytest

from tests.compute.mtp_heads import CASES, write_head
from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from tests.compute.test_mtp import pairs
from tests.model.gguf.files import write_gguf
from weft.model.open import open_model

TOKEN_IDS = np.random.default_rng(3).integers(0, 320, 30).tolist()


def states(path, compute):
    """The model's last hidden states, and what the head makes of them and of the tokens that follow."""
    checkpoint = open_model(path)
    assert checkpoint.find_mtp is not None
    model, head = (
        load_runner(found, max_model_len=64, compute=compute)
        for found in (checkpoint, checkpoint.find_mtp())
    )
    for one in (model, head):
        one.allocate_kv(num_blocks=4, block_size=8)
    whole, pairs_alone = (
        step([Part(TOKEN_IDS, len(TOKEN_IDS), [2, 0, 3, 1], 0, end)], 8)
        for end in (len(TOKEN_IDS), len(TOKEN_IDS) - 1)
    )
    _, hidden = model.forward_hidden(whole)
    embeds = model.embed(np.array(TOKEN_IDS[1:], np.int32))
    return hidden.tobytes(), head.forward(pairs(pairs_alone, embeds, hidden[:-1])).tobytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", ["native", "reference"])
def test_a_head_computes_what_that_of_the_checkpoint_does_bit_for_bit(tmp_path, compute):
    """With the embedding and head that files hold once more for it, and metadata that counts its layer."""
    path = write_head(*CASES["glm4_moe"], tmp_path / "checkpoint").path
    file = write_gguf(tmp_path / "m.gguf", tmp_path / "checkpoint")
    assert len(open_model(str(file)).spec.layers) == len(open_model(path).spec.layers) == 4
    assert states(str(file), compute) == states(path, compute)
