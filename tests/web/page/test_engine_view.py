"""What the page shows of an engine at work: in Chromium, on real servers."""

import asyncio
import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import Server
from tests.web.page.browser import KEY, NEEDS_CHROMIUM, Browser, open_page
from tests.web.page.test_browser import QUESTION, ask

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


def test_the_engine_is_looked_at_once_a_second_while_seen(page: Browser):
    """Never sooner, and not at all from another view."""
    ask(page)
    page.click("#to-engine")
    page.until("document.querySelector('#totals').textContent.includes(' stop')")
    loads = "performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/load'))"
    starts = page.until(f"{loads}.length >= 3 && {loads}.map((e) => e.startTime)")
    assert all(later - sooner >= 990 for sooner, later in itertools.pairwise(starts))
    assert page.run("return document.querySelectorAll('.panel').length") > 6
    page.click("#to-chat")
    before = page.run(f"return {loads}.length")
    ask(page)
    page.run("return new Promise((resolve) => setTimeout(resolve, 2500))")
    assert page.run(f"return {loads}.length") <= before + 1  # one may have been on its way


def test_requests_are_bars_and_their_blocks_are_coloured(server: Server, page: Browser):
    """While they are under way, each with its phase and what it holds; then among those that are over."""
    page.click("#to-engine")
    body = {"prompt": QUESTION * 20, "max_tokens": 1500, "ignore_eos": True, "n": 2}
    url, headers = f"{server.http}/v1/completions", {"x-api-key": KEY}
    is_seen = threading.Event()

    def keep_busy() -> None:
        while not is_seen.is_set():
            answer = httpx2.post(url, json=body, headers=headers, timeout=PATIENCE_S)
            assert answer.status_code == 200

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(keep_busy)
        try:
            page.until("document.querySelectorAll('.requests li:not(.over)').length === 2")
            page.until(
                "document.querySelectorAll('.pool > i.own').length >= 2"
                " && document.querySelector('.pool > i.shared')"
            )
            text = page.until(
                "[...document.querySelectorAll('.requests li')].map((one) => one.textContent)"
                ".find((text) => text.includes('decode ·'))"
            )
        finally:
            is_seen.set()
        busy.result()
    assert re.match(r"#\d+decode · [\d.]+ s · \d+ prompt tokens .*generated · \d+ blocks", text)
    page.until("document.querySelectorAll('.requests li.over').length >= 2")
    page.until(
        "!document.querySelector('.pool > i.own') && document.querySelector('.pool > i.cached')"
    )


async def test_an_engine_that_lists_nothing_is_shown_all_the_same(paged, window: Browser):
    """As one behind a wire without such a call; it is said once, and asked once."""

    def look() -> list[str]:
        open_page(window, paged.url)
        window.click("#to-engine")
        window.until("document.querySelector('#ranks')?.textContent.includes('not supported')")
        loads = "performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/load'))"
        window.until(f"{loads}.length >= 3")
        names = window.run("return performance.getEntriesByType('resource').map((e) => e.name)")
        return [name for name in names if name.endswith("/requests")]

    asked = await asyncio.to_thread(look)
    await asyncio.to_thread(window.open, "about:blank")
    assert len(asked) == 1
