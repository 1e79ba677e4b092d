"""What the console's page costs in a browser: bytes of a first visit, time until it can be used, long tasks.

    ./run python benchmarks/console_page.py [--url URL] [--replicas 64] [--conversations 5000]

Without ``--url`` the page is fed with made-up data; with it, by a running warden. Tasks are counted by the CPU time of
the page's main thread (Chromium's own trace), so that what else runs on the machine does not lengthen them; times until
something is seen are real ones: take the best of a few runs. Needs what ``./run test-page`` installs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
WATCH_S = 20
ROW_PX = 34
LONG_MS = 50
"""Above this a task of the main thread is felt: a key or a click waits for it."""
TRACED = ["disabled-by-default-devtools.timeline", "devtools.timeline", "__metadata"]


def main() -> None:
    """Measure and print."""
    from playwright.sync_api import sync_playwright
    from tests.page.made_up import World
    from tests.page.mock_console import MockConsole

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running console (default: made-up data)")
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--conversations", type=int, default=5000)
    options = parser.parse_args()
    mock = None if options.url else MockConsole(World(options.replicas, options.conversations))
    url = options.url or (mock.start() if mock else "")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for _ in range(3):
            first_visit(browser, url)
        long_tasks(browser, url)
        browser.close()
    if mock:
        mock.stop()


def first_visit(browser: Any, url: str) -> None:
    """With an empty cache."""
    page = browser.new_context().new_page()
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    sizes: dict[str, float] = {}
    names: dict[str, str] = {}
    network.on("Network.responseReceived", lambda event: names.update({event["requestId"]: event["response"]["url"]}))
    network.on("Network.loadingFinished", lambda event: sizes.update({event["requestId"]: event["encodedDataLength"]}))
    page.goto(url)
    page.wait_for_selector(".model-card")
    usable_ms = page.evaluate("() => performance.now()")
    paint_ms = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
    page.wait_for_timeout(500)
    page_bytes = sum(size for request, size in sizes.items() if "/api/" not in names.get(request, "/api/"))
    times = f"first paint {paint_ms:.0f} ms, figures at {usable_ms:.0f} ms"
    print(f"first visit: {page_bytes / 1000:.1f} kB for the page; {times}")
    page.context.close()


def long_tasks(browser: Any, url: str) -> None:
    """On the pages that have the most to draw."""
    for name, address, loaded in (
        ("overview", "#/", ".model-card"),
        ("model", None, ".replicas tbody tr"),
        ("stats", "#/stats", ".canvas canvas"),
        ("conversations, scrolled", "#/conversations?state=all", ".virtual tbody tr"),
        ("requests, scrolled", "#/requests", ".virtual tbody tr"),
        ("a conversation", "", ".turn"),
    ):
        page = browser.new_context().new_page()
        if address == "":  # the one with the most turns
            page.goto(f"{url}/#/conversations?state=all&sort=turns")
            page.wait_for_selector(".virtual tbody a")
            address = page.locator(".virtual tbody a").first.get_attribute("href")
        browser.start_tracing(page=page, categories=TRACED)
        page.goto(f"{url}/{address or '#/'}")
        if address is None:
            page.locator(".model-card h2 a").first.click()
        page.wait_for_selector(loaded)
        page.wait_for_timeout(1000)
        loading = tasks_ms(browser.stop_tracing())
        browser.start_tracing(page=page, categories=TRACED)
        for _ in range(WATCH_S * 2):
            page.evaluate("() => document.querySelector('.virtual')?.scrollBy(0, 900)")
            page.wait_for_timeout(500)
        later = tasks_ms(browser.stop_tracing())
        rows = page.evaluate("() => document.querySelector('.virtual')?.scrollHeight ?? 0") // ROW_PX
        heap_mb = page.evaluate("() => performance.memory.usedJSHeapSize") / 1e6
        listed = f"; {rows} rows" if rows else ""
        print(
            f"{name}: longest tasks while loading {shown(loading)}; in the {WATCH_S} s after it {shown(later)},"
            f" {sum(task > LONG_MS for task in later)} above {LONG_MS} ms; heap {heap_mb:.0f} MB{listed}"
        )
        page.context.close()


def tasks_ms(trace: bytes) -> list[float]:
    """CPU time of the tasks of the page's main thread, the longest first."""
    events = json.loads(trace)["traceEvents"]
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = (event for event in events if event["name"] == "RunTask" and (event["pid"], event["tid"]) in main)
    return sorted((task.get("tdur", 0) / 1000 for task in tasks), reverse=True)


def shown(tasks: list[float]) -> str:
    return ", ".join(f"{task:.0f}" for task in tasks[:3]) + " ms"


if __name__ == "__main__":
    main()
