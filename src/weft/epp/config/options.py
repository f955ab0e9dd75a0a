"""`PickerOptions`: what the person who starts a picker can say beyond the configuration file."""

from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import ConfigError

DEFAULT_NAME = "default"
DEFAULT_POOL_GROUP = "inference.networking.k8s.io"
GRPC_ENGINE = (
    "vllm-grpc"  # load and prefix-cache events over VllmEngine instead of /metrics and ZMQ
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerOptions:
    """How to start. At most one of the two configs; neither is the built-in default."""

    config_file: Path | None = None
    config_text: str | None = None
    endpoints: tuple[str, ...] = ()  # "host:port[,key=value...]"; see `parse_endpoint`
    objects: tuple[
        Path, ...
    ] = ()  # files or directories of InferenceObjective, InferenceModelRewrite
    pool_name: str = DEFAULT_NAME
    pool_namespace: str = DEFAULT_NAME
    pool_group: str = DEFAULT_POOL_GROUP
    refresh_metrics_interval_s: float = 1.0
    metrics_staleness_threshold_s: float = 2.0
    default_engine: str | None = (
        None  # None: the extractor's; for endpoints without an engine label
    )
    default_model: str = ""  # of requests that name none; "": they are refused
    allow_experimental_plugins: bool = False
    disable_endpoint_subset_filter: bool = False
    emit_endpoint_scores: bool = False  # totals of the deciding profile, in dynamic metadata
    track_responses: bool = False  # follow every response, for the metrics of section "requests"
    ticket_ttl_s: float = 3600.0  # a tracked request whose end never came is forgotten after this
    unseen_ttl_s: float = 10.0  # a pick counts as load this long where the server tells nothing
    num_kept_decisions: int = 1000
    engine_api_key: str | None = None  # of endpoints that speak VllmEngine
    engine_control_api_key: str | None = None  # the same, for their events

    @property
    def max_load_age_s(self) -> float:
        """Older load is stale. Three polls at least: one that is late or fails proves nothing."""
        return max(self.metrics_staleness_threshold_s, 3 * self.refresh_metrics_interval_s)

    def __post_init__(self) -> None:
        if self.config_file is not None and self.config_text is not None:
            raise ConfigError("--config-file and --config-text exclude each other")
        for name in ("refresh_metrics_interval_s", "metrics_staleness_threshold_s", "ticket_ttl_s",
                     "unseen_ttl_s"):  # fmt: skip
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(f"{name} must be more than 0 and less than 1e6 seconds")
        for name in ("engine_api_key", "engine_control_api_key"):
            key = getattr(self, name)
            if key is not None and not key.strip():
                raise ConfigError(f"--{name.replace('_', '-')} must not be empty")
        if not 0 <= self.num_kept_decisions <= 1_000_000:
            raise ConfigError("num_kept_decisions must be from 0 to 1000000")
