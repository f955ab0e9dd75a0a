"""weft.core.engine_info"""

import json

from tests.doubles.stepping import make_config
from weft.core.checks.validate import Limits
from weft.core.config.engine import PoolerConfig
from weft.core.engine_info import EngineInfo
from weft.core.values.types import PoolingKind


def test_an_engine_tells_what_its_configuration_says():
    """Limits are those that it checks by, and the settings are all of it."""
    config = make_config(policy="priority", block_size=8, num_blocks=32)
    info = EngineInfo.of(config)
    assert info.limits == Limits.of(config)
    assert (info.policy, info.block_size, info.tasks) == ("priority", 8, ("generate",))
    settings = json.loads(json.dumps(info.settings))
    assert settings["cache_config"]["num_blocks"] == 32


def test_a_pooling_engine_does_its_poolers_tasks():
    """And generates nothing."""
    kinds = {"embed": PoolingKind.LAST, "token_embed": PoolingKind.EACH}
    pooler = PoolerConfig(kinds=kinds, normalize=True, embedding_size=8)
    info = EngineInfo.of(make_config(pooler_config=pooler))
    assert info.tasks == ("embed", "token_embed")
