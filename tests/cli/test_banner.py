"""The ready block of `weft serve`."""

from dataclasses import replace

import msgspec

from tests.cli.running import SMALL
from weft.cli.banner import Address, Ready, ready_block
from weft.cli.finding import find
from weft.cli.options import ServeOptions


def test_a_model_without_kv_has_no_pool_to_show():
    """Blocks of no bytes say nothing: an encoder's memory is its weights."""
    found = find(SMALL, ServeOptions())
    cache = msgspec.structs.replace(found.config.cache_config, block_bytes=0)
    ready = Ready(
        card=replace(found.checkpoint.card, weight_bytes=3 << 20),
        config=msgspec.structs.replace(found.config, cache_config=cache),
        computed="",
        free_bytes=2 << 30,
        http=Address(host_port="127.0.0.1:1", has_tls=False),
        grpc=None,
        has_keys=False,
        load_s=0.0,
    )
    assert "  memory  weights 3 MiB, of 2 GiB free" in ready_block(ready).splitlines()
