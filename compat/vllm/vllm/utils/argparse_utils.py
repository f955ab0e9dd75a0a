"""vLLM's parser of command lines."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that accepts flags with underscores too: `--max_model_len` is `--max-model-len`."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parses the arguments; those of the process if `args` is None."""
        given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args([_with_dashes(one) for one in given], namespace)


def _with_dashes(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value
