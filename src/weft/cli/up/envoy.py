"""Envoy's configuration on one machine: a listener that calls the picker for each request, and clusters of workers.

`deploy/envoy.yaml` is the same configuration with its defaults, as a template for users; a test compares the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from weft.cli.up.replies import local_replies
from weft.core.callers import HOST_ADVICE
from weft.core.headers import CACHE_SOURCE, DATA_PARALLEL, DESTINATION, DROPPED_REASON
from weft.epp.server.limits import PickerLimits

_TYPE: Final = "type.googleapis.com/envoy."
PICKER: Final = "picker"
WORKERS_GRPC: Final = "workers_grpc"
WORKERS_HTTP: Final = "workers_http"
ADMIN: Final = "admin"
# Paths for probes, and the admin pages behind them. The second answers while Envoy's main thread does.
PROBE_PAGES: Final = MappingProxyType({"/ready": "/ready", "/live": "/hot_restart_version"})
# Headers that only the picker may set: removed from client requests before the picker sees them.
_STRIPPED_PREFIXES: Final = ("x-gateway-", "x-prefiller-", "x-encoder-")
_STRIPPED_NAMES: Final = (DATA_PARALLEL, CACHE_SOURCE, DROPPED_REASON)
_UNKNOWN_HOST: Final = f"this Host is not allowed: {HOST_ADVICE}"
ROUTING_PORT: Final = "x-weft-routing-port"  # read by the web page, in models.js
# Timeout of requests that Envoy buffers. It is long, because a request may be queued; health checks detect a picker
# that hangs.
_HELD_TIMEOUT_S: Final = 3600.0
_NO_HTTP: Final = "these workers speak gRPC only (vllm.grpc.engine.VllmEngine)"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyPlan:
    """Inputs of Envoy's configuration. An address is a host and a port."""

    listen: tuple[str, int] = ("127.0.0.1", 8080)
    picker: tuple[str, int] = ("127.0.0.1", 9002)
    grpc_workers: Sequence[tuple[str, int]] = (("127.0.0.1", 50051), ("127.0.0.1", 50052))
    http_workers: Sequence[tuple[str, int]] = ()
    # Path of the health check that succeeds once a worker can answer; a loading worker accepts connections earlier.
    # None: check that it accepts connections.
    http_health_path: str | None = "/health"
    # Address of Envoy's admin pages; a path means a socket, which web pages cannot reach.
    admin: tuple[str, int] | Path | None = None
    # Address of two of the admin pages, for Kubernetes' probes: `/ready`, which fails while Envoy drains, and `/live`.
    # None: no such pages.
    probes: tuple[str, int] | None = None
    host_pattern: str | None = None  # pattern of allowed Host headers; None allows any
    routing_port: int | None = None  # port of the picker's web page, which workers' pages link to
    # Without the picker, requests are sent round robin if True, and fail if False.
    is_fail_open: bool = True
    picker_timeout_s: float = 10.0  # timeout of the picker's answer to a request without a body
    # Maximum size of a body that Envoy buffers until the picker has answered; None: the picker buffers bodies.
    buffered_bytes: int | None = None
    health_interval_s: float = 1.0


def envoy_config(plan: EnvoyPlan) -> dict[str, Any]:
    """Returns the complete configuration; Envoy reads it as YAML or JSON."""
    clusters = [
        _picker_cluster(plan),
        _workers(WORKERS_GRPC, plan.grpc_workers, plan, is_grpc=True),
    ]
    if plan.http_workers:
        clusters.append(_workers(WORKERS_HTTP, plan.http_workers, plan, is_grpc=False))
    listeners = [_listener(plan)]
    if plan.probes is not None:
        assert isinstance(plan.admin, tuple), "the pages for probes are admin pages"
        listeners.append(_probe_listener(plan.probes))
        clusters.append(_admin_cluster(plan.admin))
    config: dict[str, Any] = {"static_resources": {"listeners": listeners, "clusters": clusters}}
    if plan.admin is not None:
        config["admin"] = {"address": _address(plan.admin)}
    return config


def _listener(plan: EnvoyPlan) -> dict[str, Any]:
    manager = _extension(
        "filters.network.http_connection_manager",
        "HttpConnectionManager",
        stat_prefix="weft",
        codec_type="AUTO",  # accepts HTTP/1.1, HTTP/2 and gRPC on one port
        # A stream may be silent while its worker computes a long prompt.
        stream_idle_timeout="600s",
        route_config={
            "name": "workers",
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": _routes(plan)}],
        },
        local_reply_config=local_replies(),
        http_filters=[
            _strip_filter(),
            _picker_filter(plan),
            _extension("filters.http.router", "Router"),
        ],
    )
    bounds: dict[str, Any] = {}
    if plan.buffered_bytes is not None:
        bounds["per_connection_buffer_limit_bytes"] = plan.buffered_bytes
    return {
        "name": "weft",
        "address": _address(plan.listen),
        **bounds,
        "filter_chains": [{"filters": [manager]}],
    }


def _probe_listener(address: tuple[str, int]) -> dict[str, Any]:
    """Serves two of the admin pages, and no other."""
    routes = [
        {"match": {"path": path}, "route": {"cluster": ADMIN, "prefix_rewrite": page}}
        for path, page in PROBE_PAGES.items()
    ]
    manager = _extension(
        "filters.network.http_connection_manager",
        "HttpConnectionManager",
        stat_prefix="probes",
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        http_filters=[_extension("filters.http.router", "Router")],
    )
    return {
        "name": "probes",
        "address": _address(address),
        "filter_chains": [{"filters": [manager]}],
    }


def _admin_cluster(address: tuple[str, int]) -> dict[str, Any]:
    return {"name": ADMIN, "type": "STATIC", "load_assignment": _assignment(ADMIN, [address])}


def _extension(name: str, message: str, **config: Any) -> dict[str, Any]:
    """Returns an Envoy extension with the configuration message `message`."""
    kind = f"{_TYPE}extensions.{name}.v3.{message}"
    return {"name": f"envoy.{name}", "typed_config": {"@type": kind, **config}}


def _routes(plan: EnvoyPlan) -> list[dict[str, Any]]:
    routes = [] if plan.host_pattern is None else [_strangers(plan.host_pattern)]
    routes.append({"match": {"prefix": "/", "grpc": {}}, "route": _route(WORKERS_GRPC)})
    if plan.http_workers:
        to_workers: dict[str, Any] = {"match": {"prefix": "/"}, "route": _route(WORKERS_HTTP)}
        if plan.routing_port is not None:
            header = {"key": ROUTING_PORT, "value": str(plan.routing_port)}
            to_workers["response_headers_to_add"] = [
                {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            ]
        return [*routes, to_workers]
    return [*routes, {"match": {"prefix": "/"}, **_refusal(404, _NO_HTTP)}]


def _strangers(pattern: str) -> dict[str, Any]:
    """Refuses requests whose Host header does not match `pattern`: such a request comes from a web page with a domain
    name that resolves to this machine (DNS rebinding).
    """
    other_host = {
        "name": ":authority",
        "string_match": {"safe_regex": {"regex": pattern}},
        "invert_match": True,
    }
    return {"match": {"prefix": "/", "headers": [other_host]}, **_refusal(403, _UNKNOWN_HOST)}


def _refusal(status: int, body: str) -> dict[str, Any]:
    """Returns a route that Envoy answers itself, without a call to the picker."""
    return {
        "direct_response": {"status": status, "body": {"inline_string": body}},
        "typed_per_filter_config": {
            "envoy.filters.http.ext_proc": {
                "@type": f"{_TYPE}extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
                "disabled": True,
            }
        },
    }


def _route(cluster: str) -> dict[str, Any]:
    return {
        "cluster": cluster,
        # Workers get their own name as Host: Envoy decides which Host headers clients may send.
        "auto_host_rewrite": True,
        "timeout": "0s",  # the default of 15 s would cut long responses
        # A request that could not reach its worker was not sent, so another worker may get it.
        "retry_policy": {
            "retry_on": "connect-failure",
            "num_retries": 2,
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": f"{_TYPE}extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                    },
                }
            ],
            "host_selection_retry_max_attempts": 5,
        },
    }


def _strip_filter() -> dict[str, Any]:
    removals: list[dict[str, Any]] = [
        {"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in _STRIPPED_PREFIXES
    ]
    removals += [{"remove": name} for name in _STRIPPED_NAMES]
    mutations = {"request_mutations": removals}
    return _extension("filters.http.header_mutation", "HeaderMutation", mutations=mutations)


def _picker_filter(plan: EnvoyPlan) -> dict[str, Any]:
    """Returns the ext_proc filter that calls the picker. If the picker dies, Envoy loses the request whose body it is
    streaming to the picker; with buffering, Envoy still sends the request to a worker.
    """
    is_buffered = plan.buffered_bytes is not None
    return _extension(
        "filters.http.ext_proc",
        "ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": PICKER}},
        failure_mode_allow=plan.is_fail_open,
        message_timeout=_seconds(_HELD_TIMEOUT_S if is_buffered else plan.picker_timeout_s),
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": "BUFFERED" if is_buffered else "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            # Envoy keeps each piece until the picker has answered, so a response outlives the picker that follows it.
            "response_body_mode": "STREAMED",
            "response_trailer_mode": "SEND",
        },
        # Without this, Envoy drops the picker's choice, which is sent as metadata too.
        metadata_options={"receiving_namespaces": {"untyped": ["envoy.lb"]}},
    )


def _picker_cluster(plan: EnvoyPlan) -> dict[str, Any]:
    """Returns the cluster of the picker. While the picker fails its health checks, requests bypass it or are refused,
    without waiting.
    """
    service = "envoy.service.ext_proc.v3.ExternalProcessor"
    return {
        "name": PICKER,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": _http2(),
        "common_lb_config": {
            "healthy_panic_threshold": {"value": 0},
            # By default, Envoy delays updates that follow an earlier one within a second.
            "update_merge_window": "0s",
        },
        # The filter has no timeout for requests that a hanging picker holds: this closes their connections.
        "close_connections_on_host_health_failure": True,
        "health_checks": [
            _health_check(plan, {"grpc_health_check": {"service_name": service}})
            | {"unhealthy_threshold": 1}
        ],
        "outlier_detection": _ejected_at_once(plan),
        "circuit_breakers": _as_many_as_the_picker_takes(),
        "load_assignment": _assignment(PICKER, [plan.picker]),
    }


def _ejected_at_once(plan: EnvoyPlan) -> dict[str, Any]:
    """Returns the outlier detection that ejects the picker at the first failed connection, until a health check
    succeeds.

    Requests whose body Envoy is sending to the picker at that moment get 500, with failure mode open or closed, unless
    Envoy buffers the body. Later requests bypass the picker.
    """
    interval = _seconds(plan.health_interval_s)
    off = ("consecutive_5xx", "consecutive_gateway_failure", "success_rate", "failure_percentage")
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 1,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        **{f"enforcing_{name}": 0 for name in off},
        "max_ejection_percent": 100,
        "interval": interval,
        "base_ejection_time": interval,
        "max_ejection_time": interval,
    }


def _as_many_as_the_picker_takes() -> dict[str, Any]:
    """Raises Envoy's own limits, so that the picker, not Envoy, refuses requests: a request beyond Envoy's limits would
    bypass the picker or be lost. Envoy's defaults are 1,024 requests per cluster and three concurrent retries; the
    death of one worker causes more retries.
    """
    bounds = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(bounds, 2 * PickerLimits().max_streams)]}


def _workers(
    name: str, workers: Sequence[tuple[str, int]], plan: EnvoyPlan, *, is_grpc: bool
) -> dict[str, Any]:
    """Returns the cluster of the workers. Envoy sends a request to the picker's choice if that worker is healthy,
    otherwise round robin.
    """
    cluster: dict[str, Any] = {
        "name": name,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        # By default, Envoy sends requests to all workers, including dead ones, if fewer than half are healthy.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "load_balancing_policy": {"policies": [{"typed_extension_config": _override_host()}]},
        "circuit_breakers": _as_many_as_the_picker_takes(),
        "load_assignment": _assignment(name, workers),
    }
    if is_grpc:
        cluster["typed_extension_protocol_options"] = _http2()
        cluster["health_checks"] = [_health_check(plan, {"grpc_health_check": {}})]
    elif plan.http_health_path is not None:
        check = {"http_health_check": {"path": plan.http_health_path}}
        cluster["health_checks"] = [_health_check(plan, check)]
    else:
        cluster["health_checks"] = [_health_check(plan, {"tcp_health_check": {}})]
    return cluster


def _override_host() -> dict[str, Any]:
    fallback = _extension("load_balancing_policies.round_robin", "RoundRobin")
    return _extension(
        "load_balancing_policies.override_host",
        "OverrideHost",
        override_host_sources=[{"header": DESTINATION}],
        fallback_policy={"policies": [{"typed_extension_config": fallback}]},
    )


def _health_check(plan: EnvoyPlan, kind: dict[str, Any]) -> dict[str, Any]:
    interval = _seconds(plan.health_interval_s)
    return {
        "timeout": "2s",
        "interval": interval,
        "no_traffic_interval": interval,  # Envoy's default of 60 s is too long after a start
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        **kind,
    }


def _http2() -> dict[str, Any]:
    return {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{_TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }


def _assignment(name: str, addresses: Sequence[tuple[str, int]]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(address)}} for address in addresses]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _address(address: tuple[str, int] | Path) -> dict[str, Any]:
    if isinstance(address, Path):
        return {"pipe": {"path": str(address), "mode": 0o600}}
    host, port = address
    return {"socket_address": {"address": host, "port_value": port}}


def _seconds(seconds: float) -> str:
    return f"{seconds:g}s"
