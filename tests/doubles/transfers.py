"""How the engines of tests take part in transfers."""

import msgspec

from tests.busy import PATIENCE_S
from tests.doubles.secret_file import secret_file
from weft.core.values.kv_transfer import KvConnector, KvRole, KvTransferConfig
from weft.engine.transfer.settings import LOOPBACK

# Beside connector and role, as a user writes them, of an engine on a port that is free.
WITH_SECRET = {"kv_port": 0, "kv_connector_extra_config": {"secret_file": secret_file()}}


def transfer(role: KvRole, **changes) -> KvTransferConfig:
    """Of an engine on a port that is free, whose leases do not run out."""
    config = KvTransferConfig(
        connector=KvConnector.TCP,
        role=role,
        engine_id="e",
        host="127.0.0.1",
        port=0,
        peers=LOOPBACK,
        secret_path=secret_file(),
        lease_s=PATIENCE_S * 10,
        fetch_timeout_s=PATIENCE_S * 10,
        fails_requests=False,
    )
    return msgspec.structs.replace(config, **changes)


def computed_at(port: int) -> dict[str, object]:
    """`kv_transfer_params` of a prompt whose first block an engine `e` has, here."""
    return {
        "do_remote_prefill": True,
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_block_ids": [[1]],
        "remote_host": "127.0.0.1",
        "remote_port": port,
    }
