"""weft.epp.prefix.kv_subscriptions: whose events are followed."""

import asyncio

from tests.epp.pools import spec
from tests.epp.prefix.test_precise import make_index
from weft.cli.process.limits import raise_open_files
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.pool import Pool
from weft.epp.prefix.kv_subscriptions import KvEventsConfig, KvSubscriptions, PodDiscoveryConfig

NOBODY = 1  # a port


async def test_every_endpoint_of_a_large_pool_is_followed(caplog):
    """ZeroMQ has 1,023 sockets where nobody asks for more."""
    raise_open_files()
    events = KvEventsConfig(pod_discovery_config=PodDiscoveryConfig(socket_port=NOBODY))
    pool = Pool()
    subscriptions = KvSubscriptions(
        make_index(), events, pool, PickerMetrics(), lambda _: False, None
    )
    pool.replace("test", [(spec(number), "127.0.0.1") for number in range(1100)])
    try:
        for _ in range(3):
            await asyncio.sleep(0)
        assert not caplog.records
    finally:
        await subscriptions.close()
