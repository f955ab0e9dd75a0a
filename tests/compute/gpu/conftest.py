"""The card that tests marked `gpu` run on."""

import os

import pytest


@pytest.fixture(scope="package")
def card():
    """A real card, which the environment does not replace."""
    from weft.compute.gpu.card import find_card

    assert os.environ.get("TRITON_INTERPRET") != "1", "TRITON_INTERPRET=1 hides the card"
    found = find_card()
    assert found is not None, "this machine shows no NVIDIA card (see nvidia-smi)"
    return found
