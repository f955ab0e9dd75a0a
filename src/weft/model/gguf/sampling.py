"""Sampling parameters that a GGUF file recommends, as the generation_config.json that checkpoints have."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

# By the names of llama.cpp. Others are of samplers that there are none of here.
_NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_PREFIX = "general.sampling."


def sampling_file(metadata: Mapping[str, Any]) -> bytes:
    """generation_config.json of the file's metadata."""
    found = {
        name: _shortest(metadata[_PREFIX + key])
        for key, name in _NAMES.items()
        if _PREFIX + key in metadata
    }
    return json.dumps(found).encode()


def _shortest(value: Any) -> Any:
    """A number of four bytes as it was written: 0.6, and not 0.60000002."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
