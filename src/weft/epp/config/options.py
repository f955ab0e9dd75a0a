"""`PickerOptions`: the options of a picker that are not in the configuration file."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from weft.core.errors import ConfigError
from weft.core.values.declare import Flag

DEFAULT_NAME = "default"
DEFAULT_POOL_GROUP = "inference.networking.k8s.io"
_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerOptions:
    """Options of a picker. At most one of the two configurations may be given; without either, the built-in
    configuration applies.
    """

    config_file: Annotated[
        Path | None, Flag("File with an EndpointPickerConfig for the picker.", "Configuration")
    ] = None
    watch_config_file: Annotated[
        bool,
        Flag(
            "Apply changes of the scheduling profiles in --config-file while the picker runs.",
            "Configuration",
        ),
    ] = False
    config_text: Annotated[str | None, Flag("EndpointPickerConfig as text.", "Configuration")] = (
        None
    )
    allow_experimental_plugins: Annotated[bool, Flag("Allow alpha plugins.", "Configuration")] = (
        False
    )
    objects: Annotated[
        tuple[Path, ...],
        Flag(
            "File or directory with InferenceObjective and InferenceModelRewrite objects; repeatable.",
            "Configuration",
        ),
    ] = ()
    endpoints: Annotated[
        tuple[str, ...],
        Flag(
            "Model server as HOST:PORT[,metricsPort=N][,grpcPort=N][,LABEL=VALUE...]; repeatable.",
            "Pool",
            name="endpoint",
        ),
    ] = ()
    default_engine: Annotated[
        str | None,
        Flag(
            "Engine type of endpoints that have no engine label; vllm-grpc and sglang-grpc are polled over gRPC.",
            "Pool",
        ),
    ] = None
    engine_api_key: Annotated[
        str | None,
        Flag("API key for polling endpoints, over gRPC or at /metrics.", "Pool"),
    ] = None
    engine_control_api_key: Annotated[
        str | None,
        Flag(
            "Control API key of endpoints that are polled over gRPC; needed for their cache events.",
            "Pool",
        ),
    ] = None
    default_model: Annotated[
        str, Flag("Model for requests that name none. If unset, such requests are refused.", "Pool")
    ] = ""
    pool_name: Annotated[
        str | None,
        Flag(
            "Name of the InferencePool to follow, also used as a metrics label.",
            "Pool",
        ),
    ] = None
    pool_namespace: Annotated[
        str | None, Flag("Namespace of the pool. Default in Kubernetes: the picker's own.", "Pool")
    ] = None
    pool_group: Annotated[str, Flag("API group of the InferencePool.", "Pool")] = DEFAULT_POOL_GROUP
    endpoint_selector: Annotated[
        str | None,
        Flag("Label selector of the pods to follow, if there is no InferencePool.", "Pool"),
    ] = None
    endpoint_target_ports: Annotated[
        str | None, Flag("Ports of the selected pods, 1 to 8 of them, such as 8000,8001.", "Pool")
    ] = None
    ha_enable_leader_election: Annotated[
        bool,
        Flag("Leader election: only the picker that holds the pool's Lease is ready.", "Pool"),
    ] = False
    leader_service: Annotated[
        str | None,
        Flag(
            "Name of a Service without a selector that leads to the leader; the other pickers are then ready too. "
            "Needs POD_NAME and POD_IP in the environment.",
            "Pool",
        ),
    ] = None
    refresh_metrics_interval_s: Annotated[
        float,
        Flag(
            "Interval between load polls of an endpoint; ten times shorter while requests arrive.",
            "Pool",
            is_duration=True,
            name="refresh_metrics_interval",
        ),
    ] = 1.0
    metrics_staleness_threshold_s: Annotated[
        float,
        Flag(
            "Maximum age of load data; older data counts as unknown.",
            "Pool",
            is_duration=True,
            name="metrics_staleness_threshold",
        ),
    ] = 2.0
    disable_endpoint_subset_filter: Annotated[
        bool, Flag("Ignore the subset hint of the gateway.", "Pool")
    ] = False
    track_responses: Annotated[
        bool, Flag("Follow every response, to record metrics of tokens and latency.", "Server")
    ] = False
    emit_endpoint_scores: Annotated[
        bool, Flag("Include the score of each endpoint in dynamic metadata.", "Server")
    ] = False
    ext_proc_port: int = 9002  # the port that --leader-service leads to
    ticket_ttl_s: float = 3600.0  # a tracked request without an end is dropped after this time
    # Time for which a pick counts as load if the server does not report it.
    unseen_ttl_s: float = 10.0
    num_recorded_decisions: int = 1000

    @property
    def max_load_age_s(self) -> float:
        """Age in seconds above which load data is stale: at least three poll intervals, because one poll may be late or
        fail.
        """
        return max(self.metrics_staleness_threshold_s, 3 * self.refresh_metrics_interval_s)

    def __post_init__(self) -> None:
        if self.config_file is not None and self.config_text is not None:
            raise ConfigError("--config-file and --config-text exclude each other")
        if self.watch_config_file and self.config_file is None:
            raise ConfigError("--watch-config-file needs --config-file")
        self._check_pool()
        for name in ("refresh_metrics_interval_s", "metrics_staleness_threshold_s", "ticket_ttl_s",
                     "unseen_ttl_s"):  # fmt: skip
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(f"{name} must be more than 0 and less than 1e6 seconds")
        for name in ("engine_api_key", "engine_control_api_key"):
            key = getattr(self, name)
            if key is not None and not _KEY.fullmatch(key):  # the value is sent in a header
                raise ConfigError(
                    f"--{name.replace('_', '-')} must not be empty or contain blanks or non-ASCII characters"
                )
        if not 0 <= self.num_recorded_decisions <= 1_000_000:
            raise ConfigError("num_recorded_decisions must be from 0 to 1000000")

    def _check_pool(self) -> None:
        if self.ha_enable_leader_election and (self.pool_name is None or self.endpoints):
            raise ConfigError(
                "--ha-enable-leader-election needs --pool-name and excludes --endpoint: the Lease is "
                "named after the InferencePool"
            )
        if self.leader_service is not None and not self.ha_enable_leader_election:
            raise ConfigError("--leader-service needs --ha-enable-leader-election")
        if (self.endpoint_selector is None) != (self.endpoint_target_ports is None):
            raise ConfigError("--endpoint-selector and --endpoint-target-ports need each other")
        if self.endpoint_selector is not None:
            if not self.endpoint_selector.strip():
                raise ConfigError(
                    "--endpoint-selector must not be empty: it would select every pod"
                )
            if self.pool_name is not None:
                raise ConfigError("--endpoint-selector and --pool-name exclude each other")
            if self.endpoints:
                raise ConfigError("--endpoint-selector and --endpoint exclude each other")
        for name in ("pool_name", "pool_namespace", "leader_service"):
            if getattr(self, name) == "":
                raise ConfigError(f"--{name.replace('_', '-')} must not be empty")
