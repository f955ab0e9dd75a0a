"""Whose Envoy it is that tests go through."""

import pytest

from tests.e2e import scenes


@pytest.fixture(
    params=[None, pytest.param(scenes.MAX_BODY_BYTES, marks=pytest.mark.slow)],
    ids=["streamed", "buffered"],
)
def body_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenes whose Envoy streams bodies to the picker, and those whose Envoy holds them itself."""
    monkeypatch.setattr(scenes, "buffered_bytes", request.param)
