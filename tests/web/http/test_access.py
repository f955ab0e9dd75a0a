"""Who gets in: every route with every way to come without a key."""

import pytest

from tests.web.http.serving import GENERATE, make_state, serving
from weft.web.http.endpoint import Access
from weft.web.page.assets import STATIC
from weft.web.page.files import PAGES
from weft.web.routes import all_endpoints

KEYS = {"api_keys": ("first", "sécond"), "control_api_keys": ("control",)}


@pytest.fixture
async def guarded():
    """A server with keys, and a client without one."""
    async with serving(**KEYS) as site:
        yield site


GUARDED = [
    endpoint
    for endpoint in (*all_endpoints(make_state()), *GENERATE)
    if endpoint.access is not Access.OPEN
]
WAYS = {
    "no key": ("{}", ""),
    "wrong key": ("{}", "Authorization: Bearer wrong\r\n"),
    "empty key": ("{}", "Authorization: Bearer \r\n"),
    "no scheme": ("{}", "Authorization: first\r\n"),
    "other scheme": ("{}", "Authorization: Basic first\r\n"),
    "twice": ("{}", "Authorization: Bearer first\r\nAuthorization: Bearer first\r\n"),
    "other header": ("{}", "X-Key: first\r\n"),
    "two slashes": ("/{}", ""),
    "dots": ("/v1/..{}", ""),
    "open first": ("/health/..{}", ""),
    "open after": ("{}/../health", ""),
    "encoded dot": ("/%2e{}", ""),
    "encoded probe": ("/%68ealth", ""),
    "open query": ("{}?/health", ""),
    "open fragment": ("{}#/health", ""),
    "absolute": ("http://localhost{}", ""),
    "websocket": ("{}", "Connection: Upgrade\r\nUpgrade: websocket\r\n"),
}


@pytest.mark.parametrize("way", WAYS)
async def test_no_route_answers_without_a_key(guarded, way: str):
    """Default-deny: 401 for all that exists and all that does not, decided by the raw path."""
    target, extra = WAYS[way]
    statuses = set()
    for endpoint in GUARDED:
        path = target.format(endpoint.path.replace("{model:path}", "x"))
        for host in ("x", "x/?"):
            # Closed after the answer, which an upgrade would else keep from happening.
            head = f"{endpoint.method} {path} HTTP/1.1\r\nHost: {host}\r\n{extra}"
            answer = await guarded.exchange(head.encode() + b"Connection: close\r\n\r\n")
            statuses.add(answer.split()[1])
    assert statuses == {b"401"}


# By hand, and not from the table of endpoints: who opens another one has to say so here too.
OPEN = {
    ("GET", "/health"),
    ("GET", "/ping"),
    ("POST", "/ping"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/startupz"),
}
# Scripts, styles and pictures of the pages hold no data; the page of routing is a picker's.
FILES = {("GET", "/"), ("GET", "/docs")} | {
    ("GET", f"/page/{file.name}")
    for file in STATIC.iterdir()
    if file.suffix in (".js", ".css", ".svg") and file.name != "routing.js"
}
CONTROL = {
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/reset_mm_cache"),
    ("POST", "/reset_encoder_cache"),
    ("POST", "/start_profile"),
    ("POST", "/stop_profile"),
    ("POST", "/collective_rpc"),
    ("POST", "/abort_requests"),
    ("POST", "/inference/v1/abort_requests"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/init_weight_transfer_engine"),
    ("POST", "/start_weight_update"),
    ("POST", "/update_weights"),
    ("POST", "/finish_weight_update"),
    ("GET", "/get_world_size"),
    # Not offered, which is for holders of that key to learn.
    ("POST", "/scale_elastic_ep"),
    ("POST", "/is_scaling_elastic_ep"),
    ("POST", "/drain"),
    ("POST", "/undrain"),
}


async def statuses_with(headers: dict[str, str]) -> dict[tuple[str, str], int]:
    """What every endpoint says to a request with these headers and without a body."""
    found = {}
    async with serving(has_page=True, **KEYS) as site:
        for endpoint in (*all_endpoints(make_state()), *PAGES):
            path = endpoint.path.replace("{model:path}", "x").replace("{response_id}", "x")
            answer = await site.http.request(endpoint.method, path, headers=headers)
            found[endpoint.method, endpoint.path] = answer.status_code
    return found


async def test_these_routes_are_open_and_no_others():
    """Without a key: probes and the page's own files, and nothing that knows of a model."""
    statuses = await statuses_with({})
    assert {route for route, status in statuses.items() if status != 401} == OPEN | FILES
    assert len(statuses) > 40


async def test_these_routes_take_the_control_key_and_no_other():
    """A key for the API does not reach them; the control key reaches nothing else."""
    with_api_key = await statuses_with({"x-api-key": "first"})
    with_control_key = await statuses_with({"x-api-key": "control"})
    assert {route for route, status in with_api_key.items() if status in (401, 403)} == CONTROL
    assert {r for r, status in with_control_key.items() if status != 401} == CONTROL | OPEN | FILES


@pytest.mark.parametrize(
    "path",
    ["/v1/models/", "//v1/models", "/v1//models", "///v1///models///", "/v1/models/fake-model/"],
)
async def test_slashes_too_many_lead_to_the_same_api(guarded, path: str):
    """An address that ends in one is joined with a path that begins with one; the key is wanted all the same."""
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    denied = await guarded.exchange(f"{head}\r\n".encode())
    opened = await guarded.exchange(f"{head}Authorization: Bearer first\r\n\r\n".encode())
    assert (denied.split()[1], opened.split()[1]) == (b"401", b"200")


async def test_an_api_takes_a_body_at_a_path_with_slashes_too_many(site):
    """A redirect would lose it with some clients."""
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    answer = await site.http.post("/v1//chat/completions/", json=body)
    assert answer.status_code == 200


@pytest.mark.parametrize("way", ["two slashes", "dots", "open first", "encoded dot"])
async def test_a_path_is_what_it_says(guarded, way: str):
    """Nothing is decoded, and nothing but /v1 tidied: with a key such a path is unknown, and never another one's."""
    answer = await guarded.exchange(
        f"GET {WAYS[way][0].format('/version')} HTTP/1.1\r\nHost: localhost\r\n"
        "Authorization: Bearer first\r\nConnection: close\r\n\r\n".encode()
    )
    assert answer.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first"},
        {"authorization": "bearer first"},
        {"x-api-key": "first"},
        {"authorization": "Bearer sécond".encode()},
        {"authorization": "Bearer wrong", "x-api-key": "first"},
    ],
    ids=range(5),
)
async def test_a_key_opens(guarded, headers):
    """Either header, for every API: clients of both makers send their own."""
    answer = await guarded.http.get("/v1/models", headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ping", "/livez", "/readyz", "/startupz"])
async def test_probes_need_no_key(guarded, path: str):
    """Orchestrators have none. They learn that the server is there, and no more."""
    assert (await guarded.http.get(path)).status_code == 200
    assert (await guarded.http.head(path)).status_code == 200


async def control(headers: dict[str, str], **keys) -> int:
    """The status of a control call."""
    async with serving(**keys) as site:
        return (await site.http.post("/resume", headers=headers)).status_code


async def test_control_is_off_without_a_key_of_its_own():
    """Not even with an API key, and not even where none is needed."""
    assert await control({"x-api-key": "first"}, api_keys=("first",)) == 403
    assert await control({}) == 403


async def test_control_takes_its_own_key_alone():
    """An API key is for inference."""
    assert await control({"x-api-key": "control"}, **KEYS) == 200
    assert await control({"x-api-key": "first"}, **KEYS) == 401
    assert await control({}, control_api_keys=("control",)) == 401


async def test_a_control_key_is_no_api_key(guarded):
    """Each key opens what it was given for."""
    answer = await guarded.http.get("/v1/models", headers={"x-api-key": "control"})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "headers", [{"origin": "http://localhost"}, {"host": "evil.example"}, {"host": ""}]
)
async def test_control_is_not_for_web_pages(headers):
    """Nor for names that were pointed at this machine."""
    assert await control({"x-api-key": "control", **headers}, **KEYS) == 403


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "10.0.0.7:80"])
async def test_control_takes_addresses(host: str):
    """What cannot have been looked up."""
    assert await control({"x-api-key": "control", "host": host}, **KEYS) == 200


@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/server_info", "/openapi.json", "/none"]
)
@pytest.mark.parametrize("keys", [{}, KEYS], ids=["open", "keys"])
async def test_a_strange_name_gets_nothing(path: str, keys):
    """A web page may have its own name looked up as this machine's, and would read the answer."""
    async with serving(headers={"x-api-key": "first"}, **keys) as site:
        answer = await site.http.get(path, headers={"host": "evil.example:8000"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")
    assert "--allowed-hosts" in answer.json()["error"]["message"]


async def test_a_strange_name_is_refused_as_each_api_refuses(site):
    """Before anything of the body is read."""
    strange = {"host": "evil.example"}
    openai = await site.http.post("/test/chat/completions", json={}, headers=strange)
    anthropic = await site.http.post("/v1/messages/test", json={}, headers=strange)
    assert (openai.status_code, openai.json()["error"]["type"]) == (403, "permission_error")
    assert (anthropic.status_code, anthropic.json()["type"]) == (403, "error")


async def test_names_can_be_allowed():
    """Those of a proxy before the server; nobody else's."""
    async with serving(allowed_hosts=("llm.example",)) as site:
        statuses = [
            (await site.http.get("/v1/models", headers={"host": host})).status_code
            for host in ("llm.example", "LLM.example:443", "localhost", "other.example")
        ]
    assert statuses == [200, 200, 200, 403]


async def test_a_server_for_other_machines_takes_any_name():
    """It is known by names that nobody told it."""
    async with serving(host="0.0.0.0") as site:
        answer = await site.http.get("/v1/models", headers={"host": "llm.example"})
    assert answer.status_code == 200


async def test_probes_take_any_name(site):
    """Supervisors and gateways ask by names of their own, and learn only that the server is there."""
    answer = await site.http.get("/health", headers={"host": "workers_http"})
    assert answer.status_code == 200


async def test_pages_of_other_origins_get_nothing_by_default(site):
    """No header that would let them read, and no answer to their question."""
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    answer = await site.http.options("/v1/models", headers=headers)
    assert answer.status_code == 405
    assert "access-control-allow-origin" not in answer.headers


async def test_pages_of_allowed_origins_may_read():
    """A browser's question needs no key; the request itself does."""
    async with serving(allowed_origins=("https://a.example",), **KEYS) as site:
        headers = {
            "origin": "https://a.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type",
        }
        asked = await site.http.options("/test/chat/completions", headers=headers)
        refused = await site.http.get("/v1/models", headers={"origin": "https://a.example"})
        other = await site.http.options(
            "/v1/models", headers={**headers, "origin": "https://b.example"}
        )
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == "https://a.example"
    assert asked.headers["access-control-allow-headers"] == "authorization, content-type"
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://a.example"
    shown = refused.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "request-id", "retry-after"} <= {*shown}  # what clients read
    assert (other.status_code, "access-control-allow-origin" in other.headers) == (401, False)


async def test_a_path_is_not_decoded_before_it_is_matched():
    """An encoded letter leads nowhere, though what it decodes to is there."""
    async with serving(**KEYS, headers={"x-api-key": "first"}) as site:
        plain, encoded = await site.http.get("/version"), await site.http.get("/%76ersion")
    assert (plain.status_code, encoded.status_code) == (200, 404)


async def test_a_connection_goes_on_behind_a_preflight():
    """A browser sends its request on the connection on which it asked whether it may."""
    origin = b"Origin: https://a.example\r\nHost: x\r\n"
    ask = b"OPTIONS /v1/models HTTP/1.1\r\nAccess-Control-Request-Method: GET\r\n" + origin
    get = b"GET /health HTTP/1.1\r\nConnection: close\r\n" + origin
    async with serving(allowed_origins=("https://a.example",), **KEYS) as site:
        answer = await site.exchange(ask + b"\r\n" + get + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 204 ")
    assert answer.count(b"HTTP/1.1 200 ") == 1
