"""What does not go with engines whose ranks are elsewhere too."""

from weft.core.config import EngineOptions
from weft.core.errors import ConfigError
from weft.core.ranks import RanksConfig


def check_elsewhere(options: EngineOptions, ranks: RanksConfig | None) -> None:
    """Refuse by name what one server alone cannot decide, and what does not reach another machine."""
    if ranks is None:
        return
    refused = {
        "--enable-elastic-ep": (
            options.enable_elastic_ep,
            "how many ranks there are is known to other servers and nodes too",
        )
    }
    if ranks.link is not None:
        refused["--weight-transfer-config"] = (
            options.weight_transfer_config is not None,
            "engines of other machines do not map the weights that one has packed",
        )
        refused["--kv-events-config"] = (
            ranks.is_headless and options.kv_events_config is not None,
            "the head publishes the events of all ranks; give it there",
        )
    for flag, (is_given, why) in refused.items():
        if is_given:
            raise ConfigError(f"{flag} does not go with ranks on other machines: {why}")
