"""Warnings at startup about settings or properties of this machine that a user may want to change."""

import os
from collections.abc import Iterator
from pathlib import Path

from weft.cli.hardware import check_cpu, check_cpu_quota, check_huge_pages, check_numa
from weft.compute.backends import backend_of
from weft.core.config.ranks import local_ranks
from weft.engine.start.fit import Fitted


def cautions(found: Fitted, root: Path = Path("/"), num_cpus: int | None = None) -> Iterator[str]:
    """Yields one sentence per warning. `root` is the directory that contains /proc and /sys."""
    compute, cache = found.config.compute_config, found.config.cache_config
    if compute is None or not found.checkpoint.card.num_parameters:
        return
    if backend_of(found.config).is_on_host:
        yield from _of_cpus(found, root, num_cpus or os.cpu_count() or 1, compute.num_threads)
    longest = found.config.model_config.max_model_len
    if cache.block_bytes and cache.max_total_tokens < 2 * longest:
        yield (
            f"memory: the KV pool holds one context of full length ({longest:,} tokens) at a time; "
            "--max-model-len or --quantization int8 makes room for more"
        )


def _of_cpus(found: Fitted, root: Path, num_cpus: int, num_threads: int) -> Iterator[str]:
    for check in (
        *check_cpu(root),
        check_huge_pages(root),
        check_cpu_quota(root),
        check_numa(root),
    ):
        if check.mend is not None:
            yield f"{check.area}: {check.found}"
    num_threads *= len(local_ranks(found.config))
    if num_threads < num_cpus:
        yield f"threads: only {num_threads} compute threads for the {num_cpus} CPUs of this machine"
