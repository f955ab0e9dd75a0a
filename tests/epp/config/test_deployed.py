"""What the reference's guides, charts and samples deploy starts here, or is refused with the reason."""

import asyncio
from pathlib import Path

import pytest

from tests.epp.config.deployed import (
    ALSO_REFUSED,
    ALSO_STARTING,
    STARTING,
    followed,
)
from tests.epp.config.written import config
from tests.epp.pools import opened
from weft.core.errors import ConfigError
from weft.epp.build import load_config
from weft.epp.config.options import PickerOptions


def options(text: str) -> PickerOptions:
    return PickerOptions(
        config_text=text, allow_experimental_plugins=True, endpoints=("10.0.0.1:8000",)
    )


@pytest.mark.parametrize(("kind", "count"), [("charts", 3), ("guides", 21), ("samples", 19)])
def test_every_deployed_configuration_is_here_once(kind: str, count: int):
    """All of them start."""
    assert len({name for name in STARTING if name.startswith(f"{kind}/")}) == count
    assert len(STARTING) == 43


@pytest.mark.parametrize("name", STARTING | ALSO_STARTING)
def test_a_deployed_configuration_starts(name: str, tmp_path: Path):
    """As a picker that is opened: every plugin is built, and everything closes."""
    (tmp_path / "endpoints.yaml").write_text("endpoints: []\n")
    text = (STARTING | ALSO_STARTING)[name].replace(
        "/etc/endpoints.yaml", f"{tmp_path}/endpoints.yaml"
    )

    async def open_and_close() -> int:
        async with opened(
            options(text.replace("tcp://0.0.0.0:5557", "tcp://127.0.0.1:*"))
        ) as picker:
            return len(picker.assembly.plugins)

    assert asyncio.run(open_and_close()) > 2


@pytest.mark.parametrize("name", ALSO_REFUSED)
def test_what_cannot_be_done_is_refused_with_its_reason(name: str):
    """Never started with a part of it left out."""
    text, words = ALSO_REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        load_config(options(text))


def test_keys_without_effect_are_reported():
    """A file may have them, but nobody is to believe that they do something."""
    warnings = load_config(options(STARTING["samples/sim-epp-kvcache"])).warnings
    assert [warning.partition(": ")[0].rpartition(".")[2] for warning in warnings] == [
        "podCacheSize", "metricsLoggingInterval",
    ]  # fmt: skip


def test_a_profile_may_list_plugins_of_any_kind():
    """Others than filters, scorers and pickers do what they do without it, and a warning says so."""
    config_ = load_config(options(STARTING["charts/latency-predictor"]))
    (profile,) = config_.profiles
    assert profile.filters == (
        "strict-affinity-filter", "slo-headroom-tier-filter", "loose-affinity-filter",
    )  # fmt: skip
    (warning,) = config_.warnings
    assert "schedulingProfiles[0].plugins[0].pluginRef: 'predicted-latency-producer'" in warning


def test_an_extractor_of_notifications_must_exist():
    """Plugins follow the pool without one, and still a name must mean something."""
    text = config(
        "endpoint-notification-source", "metrics-data-source", "core-metrics-extractor",
        dataLayer=followed("absent"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"sources\[1\]\.extractors\[0\]\.pluginRef: no plugin"):
        load_config(options(text))
