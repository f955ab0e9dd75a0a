"""Creates the plugins of a configuration, and assigns them to profiles, stages and policies."""

from collections.abc import Callable
from time import monotonic
from typing import Any

from weft.core.errors import ConfigError
from weft.epp.config.parameters import Kind
from weft.epp.decision.director_parts import Parts, ProducerStep
from weft.epp.decision.plugin import FollowsResponse, Learner, Preparer, Surroundings
from weft.epp.decision.profile import FilterStep, PickerStep, SchedulingProfile, ScorerStep
from weft.epp.flow.policies import BandParts, EvictionParts, FlowParts
from weft.epp.metrics.series import PickerMetrics, Timer
from weft.epp.pool.pool import Pool
from weft.epp.resolve import ResolvedConfig, ResolvedProfile
from weft.epp.resolve_flow import ResolvedBand, ResolvedFlow
from weft.epp.resolve_plugins import ResolvedPlugin


class Assembly:
    """The plugins of one picker by name, created from its configuration."""

    def __init__(
        self,
        config: ResolvedConfig,
        pool: Pool,
        metrics: PickerMetrics,
        max_load_age_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.config = config
        self.pool = pool
        self.metrics = metrics
        self.plugins: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {
            plugin.name: plugin.parameters for plugin in config.plugins
        }
        self._types = {plugin.name: plugin.row.type_name for plugin in config.plugins}
        self._max_load_age_s = max_load_age_s
        self._clock = clock
        for plugin in config.plugins:
            self._build(plugin)

    def _build(self, plugin: ResolvedPlugin) -> None:
        around = Surroundings(
            plugin.name, self.pool, self.metrics, self._max_load_age_s, self.plugins, self._clock
        )
        self.plugins[plugin.name] = plugin.row.build(plugin.parameters, around)

    def replace(self, config: ResolvedConfig) -> None:
        """Changes to the profiles of `config`. Plugins that did not change keep their state. Raises `ConfigError` if
        more has changed than profiles, and then changes nothing.
        """
        self.config.check_profiles_alone_differ(config)
        former = dict(self.plugins)
        try:
            self._rebuild(config, former)
        except BaseException:
            self.plugins.clear()
            self.plugins.update(former)
            raise
        self.config = config
        self.parameters = {plugin.name: plugin.parameters for plugin in config.plugins}
        self._types = {plugin.name: plugin.row.type_name for plugin in config.plugins}

    def _rebuild(self, config: ResolvedConfig, former: dict[str, Any]) -> None:
        """Builds the plugins that changed, and those that refer to them."""
        known = {plugin.name: plugin for plugin in self.config.plugins}
        built: set[str] = set()
        self.plugins.clear()
        for plugin in config.plugins:
            referred = {reference.name for reference in plugin.parameters.references()}
            if plugin.is_like(known.get(plugin.name)) and not referred & built:
                self.plugins[plugin.name] = former[plugin.name]
            elif plugin.is_lasting:
                raise ConfigError(f"plugin {plugin.name!r}: a change of it needs a restart")
            else:
                self._build(plugin)
                built.add(plugin.name)

    def type_of(self, name: str) -> str:
        """Returns the type of the plugin `name`."""
        return self._types[name]

    def parts(self) -> Parts:
        """Returns the plugins by their function, as the director needs them."""
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
            identities=self._of(Kind.IDENTITY),
            admitters=self._of(Kind.ADMITTER),
            reporters=self._of(Kind.REPORTER),
            flow=None if self.config.flow is None else self._flow(self.config.flow),
        )

    def _flow(self, flow: ResolvedFlow) -> FlowParts:
        named = self.plugins

        def band(resolved: ResolvedBand) -> BandParts:
            return BandParts(
                limits=resolved.limits,
                ttl_s=resolved.ttl_s,
                fairness=named[resolved.fairness],
                ordering=named[resolved.ordering],
            )

        eviction = None
        if flow.eviction is not None:
            which, first = flow.eviction
            eviction = EvictionParts(filter=named[which], order=named[first])
        return FlowParts(
            limits=flow.limits,
            no_endpoint_ttl_s=flow.no_endpoint_ttl_s,
            bands={priority: band(each) for priority, each in flow.bands.items()},
            default_band=band(flow.default_band),
            default_negative_band=band(flow.default_negative_band),
            usage_limit=named[flow.usage_limit],
            eviction=eviction,
        )

    def _of(self, kind: Kind) -> list[Any]:
        return [self.plugins[each.name] for each in self.config.plugins if each.is_a(kind)]

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
