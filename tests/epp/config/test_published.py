"""Configurations of llm-d's guides as they are published, read from a directory that `WEFT_GUIDES` names.

`WEFT_GUIDES=/path/to/llm-d/guides pytest tests/epp/config/test_published.py`; docs/picker.md has the last outcome.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.epp.pools import opened
from weft.epp.config.options import PickerOptions

DIRECTORY = os.environ.get("WEFT_GUIDES")
KIND = "kind: EndpointPickerConfig"


def _texts(value: Any) -> Iterator[str]:
    """Each configuration in the values of a chart, or in a ConfigMap."""
    if isinstance(value, str):
        if KIND in value:
            yield value
    elif isinstance(value, dict):
        if value.get("kind") == "EndpointPickerConfig":
            yield yaml.safe_dump(value)
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _published() -> Iterator[Any]:
    root = Path(DIRECTORY or "/nonexistent")
    for path in sorted(root.rglob("*.yaml")):
        text = path.read_text()
        if KIND not in text or "{{" in text:  # the latter is a template of a chart
            continue
        for number, found in enumerate(_texts(list(yaml.safe_load_all(text)))):
            yield pytest.param(found, id=f"{path.relative_to(root)}:{number}")


@pytest.mark.skipif(DIRECTORY is None, reason="needs the guides, at the path in WEFT_GUIDES")
@pytest.mark.parametrize("text", list(_published()))
async def test_a_published_configuration_starts(text: str, tmp_path: Path):
    """As a picker that is opened: every plugin is built, and everything closes."""
    (tmp_path / "endpoints.yaml").write_text("endpoints: []\n")
    for path in ("/etc/endpoints.yaml", "/etc/epp/endpoints.yaml"):
        text = text.replace(path, f"{tmp_path}/endpoints.yaml")
    text = text.replace("tcp://0.0.0.0:5557", "tcp://127.0.0.1:*").replace(
        "tcp://*:5557", "tcp://127.0.0.1:*"
    )
    endpoints = () if "file-discovery" in text else ("10.0.0.1:8000",)
    options = PickerOptions(config_text=text, endpoints=endpoints, allow_experimental_plugins=True)
    async with opened(options) as picker:
        assert picker.assembly.plugins
