"""Sampling parameters that a GGUF file recommends, in the form of generation_config.json."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

# llama.cpp's names of sampling parameters. Parameters of samplers that Weft lacks are left out.
_NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_PREFIX = "general.sampling."


def sampling_file(metadata: Mapping[str, Any]) -> bytes:
    """Returns a generation_config.json made from the file's metadata."""
    found = {
        name: _shortest(metadata[_PREFIX + key])
        for key, name in _NAMES.items()
        if _PREFIX + key in metadata
    }
    return json.dumps(found).encode()


def _shortest(value: Any) -> Any:
    """Returns a float32 value with the shortest decimal digits: 0.6, not 0.60000002."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
