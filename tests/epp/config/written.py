"""Writes configurations of the picker for tests."""

import json
from typing import Any

# A type, with its parameters, with its name.
Plugin = str | tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], str]


def config(
    *plugins: Plugin, version: str = "v1alpha1", profiles: dict[str, str] | None = None, **rest: Any
) -> str:
    """A file. A profile is a line of plugins, each with its weight behind a colon."""
    listed = [
        {"type": each}
        if isinstance(each, str)
        else dict(zip(("type", "parameters", "name"), each, strict=False))
        for each in plugins
    ]
    placed = [
        {"name": name, "plugins": [
            {"pluginRef": ref, **({"weight": float(weight)} if weight else {})}
            for ref, _, weight in (word.partition(":") for word in line.split())
        ]}
        for name, line in (profiles or {}).items()
    ]  # fmt: skip
    head = {"apiVersion": f"llm-d.ai/{version}", "kind": "EndpointPickerConfig"}
    places = {"schedulingProfiles": placed} if placed else {}
    return json.dumps({**head, "plugins": listed, **places, **rest})
