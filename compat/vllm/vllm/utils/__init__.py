"""Small functions that programs import."""

import itertools
import uuid

from vllm.utils.argparse_utils import FlexibleArgumentParser

__all__ = ["Counter", "FlexibleArgumentParser", "random_uuid"]


class Counter(itertools.count):  # type: ignore[type-arg]
    """Counts up; `next(counter)` is the next number."""


def random_uuid() -> str:
    """Returns a random id of 32 hexadecimal digits."""
    return uuid.uuid4().hex
