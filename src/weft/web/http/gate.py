"""`Gate`: decides who may call an endpoint, by key, Host header and origin."""

from collections.abc import Mapping
from typing import Final

from weft.core.callers import HostRule, KeyRing, bearer_key, host_refusal
from weft.core.errors import Unauthenticated
from weft.core.headers import RESUME
from weft.core.tenants import ApiKeys
from weft.web.http.endpoint import Access, Endpoint
from weft.web.http.exchange import Exchange
from weft.web.http.options import HttpOptions
from weft.web.http.problem import HttpError

_KEY_ADVICE: Final = "a key is needed: send the header Authorization: Bearer KEY, or x-api-key: KEY"
_MAX_HEADER_CHARS: Final = 500


class Gate:
    """The keys of one server, and the origins whose web pages may read its responses.

    Access is decided by the raw path, before the request is read; the default is to deny.
    """

    def __init__(self, options: HttpOptions) -> None:
        self._api = ApiKeys(options.api_keys, options.api_key_file, salts=options.salt_by_key)
        self._control = KeyRing(options.control_api_keys)
        self._origins = frozenset(options.allowed_origins)
        self._hosts = HostRule(options.host, options.allowed_hosts)

    def let_in(self, exchange: Exchange) -> None:
        """Refuses a caller without any valid key, or with a wrong Host header, for known and unknown paths alike."""
        if exchange.inside is not None:
            return
        if self._api:
            keys = _keys(exchange.headers)
            if not (any(map(self._api.is_valid, keys)) or any(map(self._control.is_valid, keys))):
                raise Unauthenticated(_KEY_ADVICE)
        self._check_host(exchange)

    def check(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Refuses a caller whose key does not give access to the endpoint, and counts the request for the key's
        tenant.
        """
        if exchange.inside is not None:
            exchange.tenant = self._api.tenant_named(exchange.inside.tenant)
            _count(endpoint, exchange)
            return
        match endpoint.access:
            case Access.OPEN:
                return
            case Access.PAGE:
                self._check_host(exchange)
            case Access.API:
                if self._api:
                    self._admit(endpoint, exchange)
            case Access.CONTROL:
                self._check_control(exchange, _keys(exchange.headers))

    def _admit(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Finds the tenant of the key, and counts inference requests; raises `RateLimited` beyond the tenant's
        limits.
        """
        keys = _keys(exchange.headers)
        if not any(map(self._api.is_valid, keys)):
            raise Unauthenticated(_KEY_ADVICE)
        exchange.tenant = next(filter(None, map(self._api.tenant_of, keys)), None)
        _count(endpoint, exchange)

    def _check_host(self, exchange: Exchange) -> None:
        host = exchange.headers.get("host")
        if host is not None and not self._hosts.allows(host):
            raise HttpError(403, host_refusal(host), code="host_not_allowed")

    def _check_control(self, exchange: Exchange, keys: list[bytes]) -> None:
        if not self._control:
            raise HttpError(403, "control is off: start the server with --control-api-key")
        if "origin" in exchange.headers:
            raise HttpError(403, "web pages may not call control endpoints")
        # A web page can point its own host name to this address (DNS rebinding): its Host header gives it away.
        if not self._hosts.is_own(exchange.headers.get("host", "")):
            raise HttpError(
                403,
                "for control, the Host header must be an IP address, localhost, --host or one of --allowed-hosts",
            )
        if not any(map(self._control.is_valid, keys)):
            raise Unauthenticated("a control key is needed: send Authorization: Bearer KEY")

    def cors_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Returns the CORS headers that let the requesting page read the answer; none for other pages."""
        origin = headers.get("origin")
        if origin is None or not ({origin, "*"} & self._origins):
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": f"x-request-id, request-id, retry-after, warning, {RESUME}",
            "vary": "Origin",
        }

    def check_page(self, exchange: Exchange, verb: str) -> None:
        """Refuses a form or a WebSocket from a web page of another site: in contrast to JSON, browsers send these
        without a preflight request.
        """
        headers = exchange.headers
        origin = headers.get("origin")
        is_own = origin is not None and origin.partition("://")[2] == headers.get("host")
        if origin is not None and not is_own and not self.cors_headers(headers):
            raise HttpError(
                403,
                f"web pages of this origin may not {verb}; --allowed-origins lists the origins that may",
            )

    def is_preflight(self, exchange: Exchange) -> bool:
        """True if an OPTIONS request is a browser's preflight request from an allowed origin; it has no key."""
        has_method = "access-control-request-method" in exchange.headers
        return has_method and bool(exchange.extra_headers)

    def preflight_headers(self, exchange: Exchange) -> dict[str, str]:
        """The response to a browser's preflight request."""
        wanted = exchange.headers.get("access-control-request-headers", "")
        return {
            "access-control-allow-methods": "GET, HEAD, POST, DELETE",
            "access-control-allow-headers": wanted[:_MAX_HEADER_CHARS],
            "access-control-max-age": "600",
            "content-length": "0",
        }


def _count(endpoint: Endpoint, exchange: Exchange) -> None:
    if exchange.tenant is not None and endpoint.method == "POST":
        exchange.tenant.admit()


def _keys(headers: Mapping[str, str]) -> list[bytes]:
    found = [bearer_key(headers.get("authorization", "").encode("latin-1"))]
    found.append(headers["x-api-key"].encode("latin-1") if "x-api-key" in headers else None)
    return [key for key in found if key is not None]
