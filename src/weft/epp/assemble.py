"""Builds the plugins of a resolved configuration and puts them in their places."""

from typing import Any

from weft.epp.decision.director import Parts, ProducerStep
from weft.epp.decision.plugin import FollowsResponse, Kind, Learner, Preparer, Surroundings
from weft.epp.decision.profile import FilterStep, PickerStep, SchedulingProfile, ScorerStep
from weft.epp.metrics.series import PickerMetrics, Timer
from weft.epp.pool.pool import Pool
from weft.epp.resolve import ResolvedConfig, ResolvedProfile


class Assembly:
    """The plugins of one picker, by name."""

    def __init__(
        self, config: ResolvedConfig, pool: Pool, metrics: PickerMetrics, max_load_age_s: float
    ) -> None:
        self.config = config
        self.pool = pool
        self.metrics = metrics
        self.plugins: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {
            plugin.name: plugin.parameters for plugin in config.plugins
        }
        self._types = {plugin.name: plugin.row.type_name for plugin in config.plugins}
        for plugin in config.plugins:
            surroundings = Surroundings(plugin.name, pool, metrics, max_load_age_s, self.plugins)
            self.plugins[plugin.name] = plugin.row.build(plugin.parameters, surroundings)

    def parts(self) -> Parts:
        """What the director works with."""
        producers = [
            ProducerStep(
                plugin.name, self.plugins[plugin.name], self._timer(plugin.name, "produce")
            )
            for plugin in self.config.plugins
            if plugin.is_a(Kind.PRODUCER)
        ]
        return Parts(
            pool=self.pool,
            producers=producers,
            profiles={profile.name: self._profile(profile) for profile in self.config.profiles},
            handler=self.plugins[self.config.handler],
            detector=self.plugins[self.config.detector],
            detector_name=self.config.detector,
            metrics=self.metrics,
            preparers=[plugin for plugin in self.plugins.values() if isinstance(plugin, Preparer)],
            learners=[plugin for plugin in self.plugins.values() if isinstance(plugin, Learner)],
            followers=[
                plugin for plugin in self.plugins.values() if isinstance(plugin, FollowsResponse)
            ],
        )

    def _profile(self, profile: ResolvedProfile) -> SchedulingProfile:
        named = self.plugins
        return SchedulingProfile(
            profile.name,
            [
                FilterStep(name, named[name], self._timer(name, "filter"))
                for name in profile.filters
            ],
            [
                ScorerStep(name, named[name], self._timer(name, "scorer"), weight)
                for name, weight in profile.scorers
            ],
            PickerStep(
                profile.picker, named[profile.picker], self._timer(profile.picker, "picker")
            ),
        )

    def _timer(self, name: str, place: str) -> Timer:
        return self.metrics.plugin_duration.labels(place, self._types[name], name)
