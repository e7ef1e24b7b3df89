"""A headless browser for the tests of pages, and what it tells of a page."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from harness import CHECKOUT

_AXE = CHECKOUT / ".cache/axe/axe_playwright_python/axe.min.js"


@contextmanager
def browser_with(profile: Path) -> Iterator[webdriver.Chrome]:
    """Run a browser with an empty directory for its profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    words = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage"
    for word in f"{words} --force-prefers-reduced-motion".split():
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_window_size(1400, 1000)
        yield driver
    finally:
        driver.quit()


@contextmanager
def shown_on(page: webdriver.Chrome, scheme: str, width: int) -> Iterator[None]:
    """Show the page in a colour scheme, ``light`` or ``dark``; of 390 columns as on a telephone."""
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == 390},
    )
    try:
        yield
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def serious_findings(page: webdriver.Chrome) -> list[Any]:
    """Return what axe-core finds on the page that is serious or worse."""
    page.execute_script(_AXE.read_text())
    found = page.execute_async_script(
        "const done = arguments[0]; axe.run().then((r) => done(r.violations.map("
        "(v) => [v.impact, v.id, v.nodes.map((n) => n.html.slice(0, 120))])))"
    )
    return [one for one in found if one[0] in {"serious", "critical"}]


def log(page: webdriver.Chrome, kind: str) -> list[dict[str, str]]:
    """Return the entries of a log of the browser since the last call."""
    entries: list[dict[str, str]] = page.get_log(kind)  # type: ignore[no-untyped-call]
    return entries
