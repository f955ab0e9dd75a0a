"""/docs as its readers use it: in Chromium, on real servers."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, Server, clean_environment, running, with_every_call
from tests.web.page.browser import NEEDS_CHROMIUM, Browser

KEY, CONTROL_KEY = "the-key", "the-control-key"
KEYS = ("--api-key", KEY, "--control-api-key", CONTROL_KEY)
# Lines that need something to be there first: a stored object, a file, a directory with an adapter, a classifier,
# weights that were sent, a context in which a summary has room; and WebSockets, which curl does not open.
NEEDY = {
    "post-v1-audio-transcriptions",
    "post-v1-audio-translations",
    "post-classify",
    "post-v1-load-lora-adapter",
    "post-v1-unload-lora-adapter",
    "post-update-weights",
    "post-finish-weight-update",
    "post-v1-responses-compact",
    "post-v1-files",
    "post-v1-batches",
    "get-v1-responses",
    "get-v1-realtime",
} | {
    f"{method}-v1-responses-response-id-{rest}"
    for method, rest in (("get", ""), ("delete", ""), ("post", "cancel"), ("get", "input-items"))
} | {
    f"{method}-v1-{kind}-{rest}"
    for kind, rests in (
        ("files", ("get-file-id-", "delete-file-id-", "get-file-id-content")),
        ("batches", ("get-batch-id-", "post-batch-id-cancel")),
        ("messages-batches", (
            "get-message-batch-id-", "delete-message-batch-id-", "post-message-batch-id-cancel",
            "get-message-batch-id-results",
        )),
        ("conversations", (
            "get-conversation-id-", "post-conversation-id-", "delete-conversation-id-",
            "get-conversation-id-items", "post-conversation-id-items",
            "get-conversation-id-items-item-id-", "delete-conversation-id-items-item-id-",
        )),
    )
    for method, rest in (rest.split("-", 1) for rest in rests)
}  # fmt: skip
POOLING = {
    f"post-{path}"
    for path in (
        "v1-embeddings",
        "pooling",
        "score",
        "v1-score",
        "rerank",
        "v1-rerank",
        "v2-rerank",
        "v2-embed",
        "api-embed",
        "api-embeddings",
    )
}
GENERATING = (
    {"post-v1-messages", "post-v1-responses", "post-invocations", "post-generate"}
    | {
        f"post-{path}{rest}"
        for path in ("v1-chat-completions", "v1-completions")
        for rest in ("", "-render")
    }
    | {"post-inference-v1-generate", "post-api-generate", "post-api-chat"}
    | {"post-v1-decisions", "post-v1-systemone", "post-generative-scoring"}
    | {"post-v1-responses-input-tokens", "post-v1-responses-render", "post-v1-messages-render"}
    | {"post-v1-chat-completions-batch"}
    | {"post-v2-chat", "post-cohere-v2-chat", "post-cohere-v2-chat-render"}
)

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that generates, with keys."""
    with running(SMALL, "--no-grpc", *KEYS) as server:
        yield server


@pytest.fixture
def page(server: Server, window: Browser) -> Iterator[Browser]:
    """The page with a key; nothing may have been blocked or have failed in it, or come from elsewhere."""
    open_docs(window, server, KEY)
    yield window
    loaded = window.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert loaded
    assert [name for name in loaded if not name.startswith(server.http)] == []
    assert window.complaints() == []


def open_docs(browser: Browser, server: Server, key: str) -> None:
    """The page in a tab that has this key."""
    browser.open(f"{server.http}/livez")
    browser.run("sessionStorage.setItem('weft.key', arguments[0])", key)
    browser.complaints()
    browser.open(f"{server.http}/docs")
    browser.until("document.querySelectorAll('.operation').length")


def listed(browser: Browser, selector: str, what: str) -> list[str]:
    """A property of all that a selector finds."""
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one[arguments[1]])"
    return list(browser.run(script, selector, what))


def opened(page: Browser, operation: str) -> str:
    """The selector of an endpoint whose form is shown."""
    # Browsers allow about 200 changes in ten seconds: the hash is cleared only if it is this one.
    clear = "if (location.hash === '#' + arguments[0]) location.hash = ''; "
    page.run(f"{clear}location.hash = arguments[0]", operation)
    page.until(f"document.querySelector('#{operation} .curl')")
    return f"#{operation}"


def test_a_key_is_requested_and_curl_lines_then_name_it(server: Server, window: Browser):
    """The page comes without one; what it shows does not."""
    window.open(f"{server.http}/docs")
    window.run("sessionStorage.clear()")
    window.open(f"{server.http}/docs")
    window.until("document.querySelector('#key-dialog').open")
    assert window.run("return document.querySelectorAll('.operation').length") == 0
    window.type("#key", f"{KEY}\n")
    window.until("document.querySelectorAll('.operation').length")
    assert KEY not in window.run("return document.documentElement.outerHTML")
    curl = f"{opened(window, 'get-v1-models')} .curl"
    assert '-H "Authorization: Bearer $WEFT_API_KEY"' in window.text(curl)


def test_endpoints_stand_under_their_apis_and_are_found_by_a_word(page: Browser):
    """Every group has a link; the filter leaves what has the word."""
    groups = listed(page, "#apis h2", "textContent")
    assert groups == listed(page, "#groups a", "textContent")
    assert {"OpenAI", "Anthropic", "Embeddings and scores", "Control"} <= set(groups)
    assert "post-v1-messages" in listed(page, "#anthropic .operation", "id")
    page.type("#filter", "rerank")
    shown = listed(page, ".operation:not([hidden])", "id")
    assert shown == ["post-rerank", "post-v1-rerank", "post-v2-rerank"]
    assert listed(page, "section:not([hidden])", "id") == ["embeddings-and-scores"]


@pytest.mark.parametrize(("runner", "unmet"), [("generate", POOLING), ("pooling", GENERATING)])
def test_every_curl_line_works_as_it_is_shown(
    window: Browser, tmp_path: Path, runner: str, unmet: set[str]
):
    """In a shell that has the keys, for all that the model can do; the others are refused."""
    argv = (*with_every_call(tmp_path), "--no-grpc", "--runner", runner, *KEYS)
    with running(*argv) as server:
        open_docs(window, server, KEY)
        refused = set(listed(window, "#not-supported .operation", "id"))
        lines = {
            one: window.text(f"{opened(window, one)} .curl")
            for one in listed(window, ".operation", "id")
        }
        failed = {one for one, line in lines.items() if run_curl(line) != 200}
    assert failed == unmet | NEEDY | refused


def test_an_answer_is_shown_as_it_comes(page: Browser):
    """The example's, whole; then, with a changed body, a stream; then an error, as the server wrote it."""
    form = opened(page, "post-v1-chat-completions")
    assert '"choices"' in sent(page, form, "200")
    edit(
        page,
        form,
        '{"messages": [{"role": "user", "content": "a"}], "stream": true, "max_tokens": 4}',
    )
    assert "--no-buffer" in page.text(f"{form} .curl")
    assert sent(page, form, "200").rstrip().endswith("data: [DONE]")
    edit(page, form, '{"messages": 1}')
    assert "messages" in sent(page, form, "400")
    page.complaints()  # which a browser makes of every answer that is no success


def test_a_request_can_be_stopped(page: Browser):
    """The server hears of it, as of any client that hangs up."""
    form = opened(page, "post-v1-completions")
    edit(
        page,
        form,
        '{"prompt": "a", "max_tokens": 4000, "ignore_eos": true, "stream": true, "n": 8}',
    )
    page.run(f"document.querySelector('{form} button.primary').click()")
    page.until(f"document.querySelector('{form} .answer').textContent")
    page.run(
        f"[...document.querySelectorAll('{form} button')].find((b) => b.textContent === 'Stop').click()"
    )
    page.until(f"document.querySelector('{form} [role=status]').textContent === 'stopped'")


def test_what_takes_a_control_key_has_a_line_and_no_form(page: Browser):
    """A browser is not to send it."""
    form = opened(page, "post-pause")
    assert "$WEFT_CONTROL_API_KEY" in page.text(f"{form} .curl")
    assert listed(page, f"{form} .primary, {form} input", "tagName") == []


def edit(page: Browser, form: str, body: str) -> None:
    """Put a body into the form."""
    page.run(
        "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
        "field.dispatchEvent(new Event('input'))",
        f"{form} textarea",
        body,
    )


def sent(page: Browser, form: str, status: str) -> str:
    """What is shown of the answer to what the form holds, which has this status."""
    page.run(f"document.querySelector('{form} [role=status]').textContent = ''")
    page.run(f"document.querySelector('{form} button.primary').click()")
    page.until(f"document.querySelector('{form} [role=status]').textContent.startsWith('{status}')")
    return page.text(f"{form} .answer")


def run_curl(line: str) -> int:
    """The status of what a line of shell answers."""
    command = f"{line} --silent --output /dev/null --write-out '%{{http_code}}'"
    result = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        env=clean_environment(WEFT_API_KEY=KEY, WEFT_CONTROL_API_KEY=CONTROL_KEY),
    )  # fmt: skip
    return int(result.stdout)
