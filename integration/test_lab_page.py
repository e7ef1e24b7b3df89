"""The page of `nvgraft lab --record` in a real browser."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from browsers import browser_with, log, serious_findings, shown_on
from labs import ENVIRONMENT, LAB
from nvgraft_cli.lab.phases import END, NAMES

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "ldconfig")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a run with a step back."""
    page = tmp_path_factory.mktemp("page") / "page.html"
    done = subprocess.run(
        [*LAB, "--script", "-", "--record", page],
        input="run mounts\nback\nrun end\n",
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Start one headless browser for the module."""
    with browser_with(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def texts(page: webdriver.Chrome, selector: str) -> list[str]:
    """Return the texts of elements, each in one line."""
    script = (
        "return [...document.querySelectorAll(arguments[0])]"
        ".map((e) => e.textContent.trim().replace(/\\s+/g, ' '))"
    )
    found: list[str] = page.execute_script(script, selector)
    return found


@pytest.mark.requires("chromium")
def test_the_page_shows_each_step_with_its_before_and_after(
    recorded: Path, browser: webdriver.Chrome
) -> None:
    """Every phase and the step back are there in order, each with what it has changed; the page
    loads nothing.
    """
    log(browser, "performance")
    browser.get(recorded.as_uri())
    assert log(browser, "browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in log(browser, "performance")]
    asked = [
        one["params"]["request"]["url"]
        for one in messages
        if one["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith("data:")] == [recorded.as_uri()]
    titles = texts(browser, "main h2")
    assert len(titles) == END + 3
    assert titles[6] == "7 Take back: make the targets"
    targets, back = NAMES.index("targets") + 1, 7
    assert "nvidia0 new file 0644, 0 bytes" in texts(browser, f"#step-{targets} .leaf")
    assert "nvidia0 goes file 0644, 0 bytes" in texts(browser, f"#step-{back} .leaf")
    mounts = NAMES.index("mounts") + 3
    before, after = texts(browser, f"#step-{mounts} .trees > div")
    assert "nvidia0 file 0644, 0 bytes" in before and "mounted" not in before
    assert "nvidia0 mounted tmpfs of /nvidia0 (ro,nosuid,noexec)" in after
    assert any(
        call.startswith("move_mount(") for call in texts(browser, f"#step-{mounts} .calls li")
    )
    assert "new c 195:255 rw" in texts(browser, f"#step-{mounts + 1} .rules li")
    assert "GPU 1: NVIDIA A10" in texts(browser, f"#step-{END + 2} pre")[0]
    assert "`" not in texts(browser, "main")[0]
    rows = texts(browser, "tbody tr")
    assert len(rows) == END + 2 and "+31" in rows[mounts - 1]


@pytest.mark.requires("chromium", "axe")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 390)])
def test_the_page_can_be_used_by_everybody(
    scheme: str, width: int, recorded: Path, browser: webdriver.Chrome
) -> None:
    """axe-core finds nothing serious, and nothing is wider than the screen."""
    browser.get(recorded.as_uri())
    with shown_on(browser, scheme, width):
        assert serious_findings(browser) == []
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
