"""Builds the package, unless vLLM itself is installed where it would go: it would take its files away."""

import sysconfig
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable",
    "get_requires_for_build_sdist", "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel",
]  # fmt: skip


def build_wheel(*given: Any, **options: Any) -> str:
    """A wheel."""
    _check()
    return build_meta.build_wheel(*given, **options)


def build_editable(*given: Any, **options: Any) -> str:
    """A wheel that points here."""
    _check()
    return build_meta.build_editable(*given, **options)


def _check() -> None:
    for kind in ("purelib", "platlib"):
        for found in Path(sysconfig.get_path(kind)).glob("vllm-*.dist-info"):
            raise SystemExit(
                f"vLLM itself is installed ({found}); weft-vllm would take its place. "
                "Use an environment of its own, or: pip uninstall vllm"
            )
