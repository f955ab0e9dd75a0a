"""The error of every call on a dead engine."""

from weft.core.errors import EngineDead as EngineDeadError

__all__ = ["EngineDeadError"]
