"""What several tests look for on a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = Path(__file__).parent.parent.parent / "console-ui" / "node_modules" / "axe-core" / "axe.min.js"


def go(page: Page, address: str) -> None:
    """To another part of the console, as a link does."""
    page.evaluate("(hash) => { location.hash = hash }", address)


def accessibility_findings(page: Page) -> list[str]:
    """What axe finds, as lines."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text())
    result = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{found['id']}: {node['html'][:160]} {node['any'][:1] and node['any'][0]['message']}"
        for found in result["violations"]
        for node in found["nodes"][:3]
    ]


def is_wider_than_its_window(page: Page) -> bool:
    """Whether one must scroll the whole page sideways."""
    return bool(page.evaluate("() => document.documentElement.scrollWidth > document.documentElement.clientWidth"))
