"""The page's files over HTTP: what they are sent with, and what they may never hold."""

import re

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, running
from tests.web.http.serving import serving
from weft.web.page import assets
from weft.web.page.assets import POLICY, ROUTING, STATIC, path_of
from weft.web.page.files import DOCS, PAGES

PATHS = [endpoint.path for endpoint in PAGES]
TEXTS = {file.name: file.read_text("utf-8") for file in sorted(STATIC.iterdir())}
MAX_BYTES = 300_000
# The namespaces of SVG and MathML, which are names and are never fetched.
NAMES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML")
# What makes markup or code of text, or reaches for storage that outlives the tab.
SINKS = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage|\.cookie"
STORAGE = "store.js"  # keeps chats; nothing else may reach for what outlives the tab


@pytest.mark.parametrize("path", PATHS)
async def test_a_file_comes_with_its_type_and_the_policy(path: str):
    """Before the model is there and without a key; nothing else may be loaded by it."""
    async with serving(has_page=True, api_keys=("key",), is_open=False) as site:
        answer = await site.http.get(path)
        head = await site.http.head(path)
    assert answer.status_code == head.status_code == 200
    assert head.content == b""
    headers = answer.headers
    kind = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    expected = kind.get(path.rpartition(".")[2], "text/html")
    assert headers["content-type"].split(";")[0] == expected
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"


def test_the_policy_allows_this_server_and_nothing_that_is_inline():
    """Nothing by default; then only files of the same origin."""
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    fetched = {name: value for name, value in rules.items() if name.endswith("-src")}
    assert set(fetched.values()) == {"'none'", "'self'"}
    assert {rules[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}


async def test_a_file_that_is_known_is_not_sent_again(paged):
    """Its entity tag is of its bytes: 304 without a body, and 200 for any other tag."""
    tag = (await paged.http.get("/")).headers["etag"]
    known = await paged.http.get("/", headers={"if-none-match": f'"other", W/{tag}'})
    other = await paged.http.get("/", headers={"if-none-match": '"other"'})
    assert (known.status_code, known.content) == (304, b"")
    assert known.headers["etag"] == tag
    assert (other.status_code, other.headers["etag"]) == (200, tag)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_the_page_answers_get_alone(paged, method: str):
    """405, which says what there is."""
    answer = await paged.http.request(method, "/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", PATHS)
async def test_the_page_comes_by_allowed_names_alone(paged, path: str):
    """Where a name may point here that is none of ours, the page is not to be had by it."""
    refused = await paged.http.get(path, headers={"host": "evil.example"})
    taken = await paged.http.get(path, headers={"host": "localhost"})
    assert (refused.status_code, taken.status_code) == (403, 200)
    assert refused.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize("path", ["/page", "/page/", "/page/../app.js", "/page/files.py", "//"])
async def test_nothing_beside_the_files_is_there(path: str):
    """Paths are looked up whole: with a key 404, and without one 401 as for any other."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
    async with serving(has_page=True, api_keys=("key",)) as site:
        keyed = await site.exchange(request + b"Authorization: Bearer key\r\n\r\n")
        bare = await site.exchange(request + b"\r\n")
    assert keyed.startswith(b"HTTP/1.1 404 ")
    assert bare.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_names_no_other_server(name: str):
    """No address with a scheme or without, but the names of namespaces; nothing to make markup of text with."""
    text = TEXTS[name]
    for known in NAMES:
        text = text.replace(known, "")
    assert re.findall(r"\w+://|[\"'(]//\w|\bdata:", text.replace('"data:"', "")) == []
    assert re.findall(SINKS, text) == []
    assert "indexedDB" not in text or name == STORAGE


def test_what_the_page_refers_to_is_there():
    """By relative paths, which work behind a path of a proxy too; every file is used."""
    assert needed("index.html") | needed("docs.html") | {"/", "/docs"} == set(PATHS)
    assert {"/docs", *needed("docs.html")} == {endpoint.path for endpoint in DOCS}
    assert {"/", *needed("routing.html")} == {path_of(name) for name in ROUTING}
    assert "/page/app.js" in PATHS


def needed(page: str) -> set[str]:
    """The paths of the files that a page loads, and of those that these load."""
    found, unread = set(), re.findall(r'(?:src|href)="page/([^"]+)"', TEXTS[page])
    while unread:
        name = unread.pop()
        if name not in found:
            found.add(name)
            unread += re.findall(r'^import .*? from "\./(.*?)";$', TEXTS[name], re.MULTILINE)
    return {f"/page/{name}" for name in found}


def test_the_page_is_small():
    """All its files together, uncompressed."""
    assert sum(len(text.encode()) for text in TEXTS.values()) < MAX_BYTES
    assert set(TEXTS) == {*ROUTING, *assets.PAGES}


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("index.html", "/v1/chat/completions"),
        ("docs.html", "openapi.json"),
        ("routing.html", "weft epp explain"),
    ],
)
def test_without_scripts_the_page_says_what_is_missing(name: str, instead: str):
    """In place of an empty screen, with what there is instead."""
    (text,) = re.findall(r"<noscript>(.*?)</noscript>", TEXTS[name], re.DOTALL)
    assert "JavaScript" in text
    assert instead in text


@pytest.mark.parametrize(("flags", "status"), [((), 200), (("--no-ui",), 404)])
def test_a_flag_turns_the_page_off(flags: tuple[str, ...], status: int):
    """Then its paths are like any that lead nowhere, and the ready block is silent about it; /docs stays."""
    with (
        running(SMALL, "--no-grpc", *flags) as server,
        httpx2.Client(base_url=server.http, timeout=PATIENCE_S) as client,
    ):
        for path in ("/docs", *needed("docs.html")):
            assert client.get(path).status_code == 200
        answers = [client.get(path) for path in ("/", "/page/app.js")]
        assert client.get("/version").status_code == 200
    assert [answer.status_code for answer in answers] == [status, status]
    assert ("for a browser" in server.banner) == (status == 200)
