"""The page of ``nvgraft explain --html`` in a browser: it loads nothing, filters, and needs no
mouse.

The page comes from the installed program, confined as for users.
"""

import json
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from bundles import EVERYTHING, make_bundle
from harness import Installed

pytestmark = pytest.mark.requires("root", "chromium")

#: Text that a hostile image would like to get into a page.
HOSTILE = "/data/</script><img src=x onerror=alert(1)>\"'\u202egnp.exe"

#: Elements whose text has too little contrast with its background (WCAG AA: 4.5, large text 3).
CONTRAST = """
const light = (colour) => {
  const parts = colour.match(/[\\d.]+/g).map((part) => part / 255);
  const [r, g, b] = parts.map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let node = element; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !element.checkVisibility()) continue;
  const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
  const large = parseFloat(getComputedStyle(element).fontSize) >= 24;
  const text = `${element.tagName} ${element.className}: ${element.textContent.slice(0, 40)}`;
  if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) found.push(text);
}
return found;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One headless browser for the module."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    profile = tmp_path_factory.mktemp("profile")
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--force-prefers-reduced-motion",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_window_size(1400, 1000)
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, installed: Installed) -> str:
    """The page of a container that gets everything, from an image with hostile names."""
    place = tmp_path_factory.mktemp("page")
    bundle = make_bundle(place / "b", *EVERYTHING, mounts=(HOSTILE,))
    page = place / "page.html"
    command: list[str | Path] = [
        installed.cli,
        "explain",
        "--bundle",
        bundle,
        "--host",
        "runfile-a10x2",
        "--html",
        page,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in place.iterdir() if path.name.startswith("page")] == ["page.html"]
    return page.as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """The page, newly loaded, with nothing logged yet."""
    browser.get("about:blank")
    log(browser, "browser")
    log(browser, "performance")
    browser.get(address)
    return browser


def log(page: webdriver.Chrome, kind: str) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = page.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


def shown(page: webdriver.Chrome, selector: str) -> list[str]:
    found: list[str] = page.execute_script(
        "return [...document.querySelectorAll(arguments[0])].filter((e) => "
        "e.checkVisibility()).map((e) => e.textContent.trim())",
        selector,
    )
    return found


def focused(page: webdriver.Chrome) -> str:
    """Return the tag and the text of the element with the keyboard's focus."""
    text: str = page.execute_script(
        "const e = document.activeElement; return e.tagName + ' ' + (e.value || e.textContent)"
    )
    return text


def press(page: webdriver.Chrome, *keys: str) -> None:
    for key in keys:
        webdriver.ActionChains(page).send_keys(key).perform()


def test_nothing_is_loaded_and_nothing_complains(page: webdriver.Chrome, address: str) -> None:
    """The page itself is the only request, and the console stays empty."""
    messages = [json.loads(entry["message"])["message"] for entry in log(page, "performance")]
    requests = [
        one["params"]["request"]["url"]
        for one in messages
        if one["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert log(page, "browser") == []
    assert page.execute_script("return document.querySelectorAll('main h2').length") == 9


def test_the_page_forbids_connections_and_foreign_code(page: webdriver.Chrome) -> None:
    """The page's policy stops connections, foreign scripts and foreign styles."""
    blocked = page.execute_async_script(
        """
        const done = arguments[0], found = [];
        document.addEventListener("securitypolicyviolation", (event) => found.push(event.effectiveDirective));
        document.body.append(Object.assign(new Image(), {src: "http://127.0.0.1:9/x.png"}));
        document.body.append(Object.assign(document.createElement("script"), {textContent: "document.title = 'run'"}));
        document.body.append(Object.assign(document.createElement("style"), {textContent: "body { display: none }"}));
        fetch("http://127.0.0.1:9/").catch(() => setTimeout(() => done(found.sort()), 100));
        """
    )
    assert blocked == ["connect-src", "img-src", "script-src-elem", "style-src-elem"]
    assert page.title != "run"


def test_hostile_names_are_text(page: webdriver.Chrome) -> None:
    """Hostile names are shown with deceiving characters spelled out, end no script, and make no
    element.
    """
    assert page.execute_script("return [document.scripts.length, document.images.length]") == [2, 0]
    volume = next(text for text in shown(page, "#place dd code") if text.startswith("/data"))
    assert volume == HOSTILE.replace("\u202e", "\\u202e")
    document = json.loads(page.execute_script("return document.getElementById('data').textContent"))
    place = next(step for step in document["steps"] if step["id"] == "place")
    assert HOSTILE in [fact["value"] for fact in place["facts"]]


def test_the_filter_shows_one_capability(page: webdriver.Chrome) -> None:
    """The filter works in steps and tree, hides empty directories, says how much is left, and can
    be reset.
    """
    everything = shown(page, "#files summary code")
    page.find_element(By.CSS_SELECTOR, "input[value=video]").click()
    files = shown(page, "#files summary code")
    assert len(files) == 4
    assert all(
        "nvcuvid" in name or "encode" in name or "opticalflow" in name or "vdpau" in name
        for name in files
    )
    assert shown(page, "#files h3") == [
        text for text in shown(page, "#files h3") if text.startswith("video")
    ]
    tree = shown(page, "#after summary code")
    assert tree[:4] == ["/", "usr/", "lib/", "x86_64-linux-gnu/"]
    assert {name.split(".so")[0] for name in tree[4:]} == {
        "libnvcuvid",
        "libnvidia-encode",
        "libnvidia-opticalflow",
        "libvdpau_nvidia",
    }
    assert page.find_element(By.ID, "status").text.startswith(f"4 of {len(everything)} mounted, ")
    page.find_element(By.CSS_SELECTOR, "input[value='']").click()
    assert shown(page, "#files summary code") == everything


def test_the_keyboard_reaches_and_opens_everything(page: webdriver.Chrome) -> None:
    """A link to the story comes first; arrows change the filter, Enter and space open a reason, and
    the focus is visible.
    """
    press(page, Keys.TAB)
    assert focused(page) == "A Skip to the story"
    assert page.execute_script("return document.activeElement.getBoundingClientRect().left") >= 0
    press(page, Keys.ENTER)
    assert page.execute_script("return document.activeElement.id") == "story"
    page.execute_script("document.querySelector('input[name=capability]').focus()")
    press(page, Keys.ARROW_DOWN)
    assert focused(page) == "INPUT utility"
    assert all(text.startswith("utility") for text in shown(page, "#files h3"))
    press(page, Keys.TAB)
    assert focused(page) == "BUTTON Open all reasons"
    outline = page.execute_script(
        "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, "
        "s.outlineWidth]"
    )
    assert outline == ["solid", "3px"]
    page.execute_script("document.querySelector('#files details:not([hidden]) summary').focus()")
    reason = "#files details[open] dd"
    for key in (Keys.ENTER, Keys.SPACE):
        page.execute_script(
            "for (const e of document.querySelectorAll('#files details')) e.open = false"
        )
        assert shown(page, reason) == []
        press(page, key)
        assert shown(page, reason)[-1] == "utility"


def test_one_button_opens_all_reasons(page: webdriver.Chrome) -> None:
    """The button opens and closes all reasons, keeps directories open, and tells its state."""
    button = page.find_element(By.ID, "reasons")
    for state, count in (("true", 0), ("false", None)):
        button.click()
        closed = page.execute_script(
            "return document.querySelectorAll('details.entry:not([open])').length"
        )
        every = page.execute_script("return document.querySelectorAll('details.entry').length")
        assert (button.get_attribute("aria-pressed"), closed) == (
            state,
            every if count is None else count,
        )
    assert (
        page.execute_script(
            "return document.querySelectorAll('details.directory:not([open])').length"
        )
        == 0
    )


def test_everything_interactive_has_a_name(page: webdriver.Chrome) -> None:
    """Everything has a name for assistive technology; landmarks exist, and no heading skips a
    level.
    """
    page.execute_cdp_cmd("Accessibility.enable", {})
    nodes: list[dict[str, Any]] = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            roles.setdefault(node["role"]["value"], []).append(
                node.get("name", {}).get("value", "")
            )
    for role in ("link", "button", "radio", "DisclosureTriangle"):
        assert roles[role], role
        assert all(name.strip() for name in roles[role]), role
    assert {"banner", "navigation", "main", "contentinfo", "form", "status"} <= set(roles)
    assert all(roles["region"])
    levels = page.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3,h4')].map((e) => +e.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.execute_script("return document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(scheme: str, page: webdriver.Chrome) -> None:
    """Every text has the contrast of WCAG AA, with open reasons, in both colour schemes, which
    differ.
    """
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    page.find_element(By.ID, "reasons").click()
    assert page.execute_script(CONTRAST) == []
    paper = page.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert paper == {"light": "rgb(251, 250, 247)", "dark": "rgb(20, 24, 27)"}[scheme]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_telephone_shows_all_of_it(page: webdriver.Chrome) -> None:
    """At 320 pixels nothing is wider than the screen, not even the longest path."""
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 320, "height": 640, "deviceScaleFactor": 1, "mobile": True},
    )
    page.find_element(By.ID, "reasons").click()
    assert page.execute_script("return document.documentElement.scrollWidth") == 320
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_without_its_script_it_is_still_read(page: webdriver.Chrome, address: str) -> None:
    """Without its script the page offers no filter, and reasons still open."""
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.get(address)
        assert not page.find_element(By.ID, "controls").is_displayed()
        page.find_element(By.CSS_SELECTOR, "#files summary").click()
        assert page.find_element(By.CSS_SELECTOR, "#files details[open] dd").is_displayed()
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_printing_opens_the_reasons(page: webdriver.Chrome) -> None:
    """Reasons are open in print, because nothing can be opened on paper."""
    assert page.find_elements(By.CSS_SELECTOR, "details.entry[open]") == []
    page.execute_cdp_cmd("Page.printToPDF", {})
    assert page.find_elements(By.CSS_SELECTOR, "details.entry:not([open])") == []
