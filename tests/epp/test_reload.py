"""`--watch-config-file`: a running picker goes by the profiles of a changed file, and refuses any other change."""

from pathlib import Path

import pytest

from tests.epp.pools import HEAD, Bench, bench, opened, pool_of, until
from weft.core.errors import ConfigError
from weft.epp.config.config import read_config
from weft.epp.config.options import PickerOptions
from weft.epp.plugins.scorers.no_hit_lru import NoHitLruScorer
from weft.epp.resolve import ResolvedConfig, resolve

PLUGINS = """\
plugins:
- {type: queue-scorer}
- {type: prefix-cache-scorer}
- {type: no-hit-lru-scorer, parameters: {lruSize: 64}}
- {type: decode-filter}
"""
PROFILE = """\
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""
FILE = HEAD + PLUGINS + PROFILE


def options(path: Path) -> PickerOptions:
    return PickerOptions(
        config_file=path, watch_config_file=True, endpoints=("10.0.0.1:8000", "10.0.0.2:8000")
    )


def resolved(text: str) -> ResolvedConfig:
    return resolve(read_config(HEAD + text, "test"), allow_experimental=True)


@pytest.fixture
def made() -> Bench:
    return bench(PLUGINS + PROFILE, pool_of(2))


async def test_a_changed_file_changes_the_profiles(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A file that is wrong changes nothing, and the log says what is wrong; the next good one is read."""
    path = tmp_path / "picker.yaml"
    path.write_text(FILE, encoding="utf-8")
    async with opened(options(path)) as picker:
        path.write_text(FILE.replace("weight: 2", "weight: two"), encoding="utf-8")
        await until(lambda: "the present profiles are kept" in caplog.text)
        assert "plugins[0].weight" in caplog.text
        assert picker.assembly.config.profiles[0].scorers[0] == ("queue-scorer", 2.0)
        path.write_text(FILE.replace("weight: 2", "weight: 20"), encoding="utf-8")
        await until(lambda: picker.assembly.config.profiles[0].scorers[0] == ("queue-scorer", 20.0))


def test_decisions_go_by_the_new_profiles(made: Bench):
    """From the next request on."""
    home = made.host(*range(128))
    assert made.host(*range(128)) == home
    made.assembly.replace(resolved(PLUGINS + PROFILE.replace("weight: 3", "weight: 0")))
    made.director.use_profiles(made.assembly.parts())
    assert made.host(*range(128)) != home  # which has the requests


def test_what_did_not_change_keeps_its_state(made: Bench):
    """Other parameters make a plugin anew; the rest of them stay the same objects."""
    before = dict(made.assembly.plugins)
    made.assembly.replace(resolved(PLUGINS.replace("64", "65") + PROFILE))
    changed = {name for name, plugin in made.assembly.plugins.items() if plugin is not before[name]}
    assert changed == {"no-hit-lru-scorer"}
    assert isinstance(made.assembly.plugins["no-hit-lru-scorer"], NoHitLruScorer)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (PLUGINS + "- {type: openai-parser}\n" + PROFILE, "plugin 'openai-parser'"),
        (PLUGINS.replace("decode-filter", "inflight-load-producer") + PROFILE, "inflight-load-producer"),
        (PLUGINS + PROFILE + "featureGates: [flowControl]\n", "plugin|flow"),
        (PLUGINS + "- {type: anthropic-parser}\n" + PROFILE
         + "requestHandler: {parsers: [{pluginRef: anthropic-parser}]}\n", "anthropic-parser"),
    ],
)  # fmt: skip
def test_any_other_change_is_refused_whole(made: Bench, text: str, named: str):
    """By the name of what changed: the profiles of such a file do not apply either."""
    before = dict(made.assembly.plugins)
    with pytest.raises(ConfigError, match=rf"{named}.*needs a restart"):
        made.assembly.replace(resolved(text.replace("weight: 2", "weight: 9")))
    assert made.assembly.plugins == before
    assert made.assembly.config.profiles[0].scorers[0] == ("queue-scorer", 2.0)


def test_the_flag_needs_a_file():
    """Else there is nothing to watch."""
    with pytest.raises(ConfigError, match="--watch-config-file needs --config-file"):
        PickerOptions(watch_config_file=True)
