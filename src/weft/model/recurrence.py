"""Layers that keep a state of a fixed size for each sequence, in place of keys and values."""

from typing import TypeAlias

from weft.model.mamba import Mamba2Spec

Recurrence: TypeAlias = Mamba2Spec
