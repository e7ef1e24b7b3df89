"""The page of ``nvgraft explain --html`` in a real browser: it loads nothing, and needs only a
keyboard.

The installed program makes the page, confined as for users.
"""

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from browsers import browser_with, log, serious_findings, shown_on
from bundles import make_bundle
from harness import CHECKOUT, Installed

pytestmark = pytest.mark.requires("root", "chromium")

#: A volume's path by which a hostile image tries to add elements to a page.
HOSTILE = "/data/</script><img src=x onerror=alert(1)>\"'\u202egnp.exe"

#: The capabilities whose switches come first, so that a busy machine has time for them.
ASKED = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video")

#: Returns elements whose text has less contrast than WCAG AA demands: 4.5, for large text 3.
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
const faint = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !element.checkVisibility()) continue;
  const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
  const large = parseFloat(getComputedStyle(element).fontSize) >= 24;
  const text = `${element.tagName} ${element.className}: ${element.textContent.slice(0, 40)}`;
  if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) faint.push(text);
}
return faint;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Start one headless browser for the module."""
    with browser_with(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, installed: Installed) -> str:
    """Make the page of a container with hostile names; return its address."""
    place = tmp_path_factory.mktemp("page")
    bundle = make_bundle(place / "b", *ASKED, mounts=(HOSTILE,))
    page = place / "page.html"
    command: list[str | Path] = [installed.cli, "explain", "--bundle", bundle]
    command += ["--host", "runfile-a10x2", "--html", page]
    for _ in range(5):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        if "> video</label>" in page.read_text():
            break  # on a busy machine there may be no time for the switches that are tested
    assert [path.name for path in place.iterdir() if path.name.startswith("page")] == ["page.html"]
    return page.as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """Load the page anew, with empty logs."""
    browser.get("about:blank")
    log(browser, "browser")
    log(browser, "performance")
    browser.get(address)
    return browser


def visible_texts(page: webdriver.Chrome, selector: str) -> list[str]:
    """Return the texts of the visible elements that the selector matches."""
    script = (
        "return [...document.querySelectorAll(arguments[0])]"
        ".filter((e) => e.checkVisibility()).map((e) => e.textContent.trim())"
    )
    texts: list[str] = page.execute_script(script, selector)
    return texts


def focused(page: webdriver.Chrome) -> str:
    """Return tag and text of the element with the keyboard focus."""
    text: str = page.execute_script(
        "const e = document.activeElement; return e.tagName + ' ' + (e.value || e.textContent)"
    )
    return text


def press(page: webdriver.Chrome, *keys: str) -> None:
    for key in keys:
        webdriver.ActionChains(page).send_keys(key).perform()


def test_the_page_loads_nothing_and_has_no_errors(page: webdriver.Chrome, address: str) -> None:
    """Loading the page makes no other request and no message in the console."""
    messages = [json.loads(entry["message"])["message"] for entry in log(page, "performance")]
    requests = [
        one["params"]["request"]["url"]
        for one in messages
        if one["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert log(page, "browser") == []
    assert page.execute_script("return document.querySelectorAll('main h2').length") == 11


def test_the_page_forbids_connections_and_foreign_code(page: webdriver.Chrome) -> None:
    """The page's policy blocks connections, images, scripts and styles that were added to it."""
    blocked = page.execute_async_script(
        """
        const done = arguments[0], blocked = [];
        document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
        document.body.append(Object.assign(new Image(), {src: "http://127.0.0.1:9/x.png"}));
        document.body.append(Object.assign(document.createElement("script"), {textContent: "document.title = 'run'"}));
        document.body.append(Object.assign(document.createElement("style"), {textContent: "body { display: none }"}));
        fetch("http://127.0.0.1:9/").catch(() => setTimeout(() => done(blocked.sort()), 100));
        """
    )
    assert blocked == ["connect-src", "img-src", "script-src-elem", "style-src-elem"]
    assert page.title != "run"


def test_hostile_names_are_text(page: webdriver.Chrome) -> None:
    """Hostile names are text: deceiving characters are escaped, and no element is made."""
    assert page.execute_script("return [document.scripts.length, document.images.length]") == [2, 0]
    volume = next(
        text for text in visible_texts(page, "#place dd code") if text.startswith("/data")
    )
    assert volume == HOSTILE.replace("\u202e", "\\u202e")
    document = json.loads(page.execute_script("return document.getElementById('data').textContent"))
    place = next(step for step in document["steps"] if step["id"] == "place")
    assert HOSTILE in [fact["value"] for fact in place["facts"]]


def lines(page: webdriver.Chrome) -> list[str]:
    """Return the names of the visible lines of the picture."""
    script = (
        "return [...document.querySelectorAll('.picture.wide .line')]"
        ".filter((e) => getComputedStyle(e).display !== 'none').map((e) => e.ariaLabel)"
    )
    names: list[str] = page.execute_script(script)
    return names


def choose(page: webdriver.Chrome, label: str) -> None:
    """Click the switch with a label."""
    page.find_element(By.XPATH, f"//form//label[normalize-space()='{label}']/input").click()


def test_a_capability_s_switch_takes_its_mounts_away(page: webdriver.Chrome) -> None:
    """Without a capability its mounts are in no picture, list and tree, and come back with it."""
    before = lines(page), visible_texts(page, "#files summary code")
    tree = visible_texts(page, "#after summary code")
    assert page.find_element(By.ID, "status").text == f"As asked: {len(before[0])} mounts."
    assert not page.find_element(By.ID, "changed").is_displayed()
    choose(page, "video")
    gone = set(before[0]) - set(lines(page))
    assert len(gone) == 4
    assert all(name.endswith(", video") for name in gone)
    left = visible_texts(page, "#files summary code")
    parts = ("nvcuvid", "encode", "opticalflow", "vdpau")
    assert [name for name in before[1] if name not in left] == [
        name for name in before[1] if any(part in name for part in parts)
    ]
    assert not [text for text in visible_texts(page, "#files h3") if text.startswith("video")]
    assert not [name for name in visible_texts(page, "#after summary code") if "nvcuvid" in name]
    assert page.find_element(By.ID, "status").text.endswith(f" {len(before[0]) - 4} mounts.")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in page.find_element(By.ID, "command").text
    page.find_element(By.CSS_SELECTOR, "#changed button").click()
    assert (lines(page), visible_texts(page, "#files summary code")) == before
    assert visible_texts(page, "#after summary code") == tree


def test_switches_of_devices_and_mode_change_the_verdict(page: webdriver.Chrome) -> None:
    """One GPU, none and another mode: the verdict, the picture and the searches are those of it."""
    assert "GPUs 2" in visible_texts(page, ".picture.wide .box text")
    choose(page, "GPU 1")
    assert "GPUs 1" in visible_texts(page, ".picture.wide .box text")
    assert {name for name in lines(page) if "/dev/nvidia1" in name} != set()
    assert {name for name in lines(page) if "/dev/nvidia0 " in name} == set()
    assert page.find_element(By.ID, "command").text == "--env NVIDIA_VISIBLE_DEVICES=1"
    choose(page, "none")
    assert "without a GPU" in page.find_element(By.ID, "status").text
    choose(page, "all")
    assert not page.find_element(By.ID, "changed").is_displayed()
    choose(page, "jit-cdi")
    assert page.find_element(By.ID, "command").text == "--mode jit-cdi"
    assert {name for name in lines(page) if "/dev/nvidia1" in name} != set()


def test_capabilities_without_effect_are_not_offered(page: webdriver.Chrome) -> None:
    """In a mode with CDI edits their switches are off, and the page says why; with none of them
    the page names the default that counts, and a badge judges it.
    """
    default, unheeded = (page.find_element(By.ID, name) for name in ("default", "unheeded"))
    switches = page.find_elements(By.NAME, "capability")
    assert not default.is_displayed() and not unheeded.is_displayed()
    for switch in switches:
        if switch.is_selected():
            switch.click()
    assert page.find_element(By.ID, "command").text == "--env NVIDIA_DRIVER_CAPABILITIES="
    assert default.is_displayed()
    assert default.text == "With none of them the default counts: compute and utility."
    assert page.find_element(By.CSS_SELECTOR, "#status .verdict").is_displayed()
    choose(page, "jit-cdi")
    assert unheeded.is_displayed() and not default.is_displayed()
    assert not any(switch.is_enabled() for switch in switches)
    assert page.find_element(By.ID, "command").text == "--mode jit-cdi"
    choose(page, "hook")
    assert all(switch.is_enabled() for switch in switches)


def test_a_line_can_be_picked(page: webdriver.Chrome) -> None:
    """A picked line tells both paths, its capability, its reason and how it is mounted."""
    script = (
        "const e = [...document.querySelectorAll('.picture.wide .line')]"
        ".find((e) => e.ariaLabel.includes('nvidia-smi')); const b = e.querySelector('path');"
        "const p = b.getPointAtLength(b.getTotalLength() * .1).matrixTransform(b.getScreenCTM());"
        "return [p.x, p.y]"
    )
    x, y = page.execute_script(script)
    actions = webdriver.ActionChains(page)
    pointer = actions.w3c_actions.pointer_action
    pointer.move_to_location(round(x), round(y))  # type: ignore[no-untyped-call]
    actions.click().perform()
    panel = page.find_element(By.ID, "picked").text
    for words in ("/usr/bin/nvidia-smi", "utility", "nvidia-smi: PATH", "nosuid", "17 B"):
        assert words in panel, panel
    press(page, Keys.ESCAPE)
    assert not page.find_element(By.ID, "picked").is_displayed()


def test_a_box_opens_its_mounts(page: webdriver.Chrome) -> None:
    """A picked box lists its mounts, and one of the list is picked like its line."""
    box = page.find_element(By.XPATH, "//*[@data-name='programs /usr/bin']")
    box.click()
    names = [one.text for one in page.find_elements(By.CSS_SELECTOR, "#picked li button")]
    assert "/usr/bin/nvidia-smi" in names
    assert len(names) == int(box.text.split()[1])
    page.find_element(By.CSS_SELECTOR, "#picked li button").click()
    assert "From" in page.find_element(By.ID, "picked").text
    assert len(page.find_elements(By.CSS_SELECTOR, ".line.picked")) == 1


def test_the_panel_of_a_mount_can_be_closed(page: webdriver.Chrome) -> None:
    """Its button, for fingers, and Escape inside it close it; the focus returns to the picture."""
    panel = page.find_element(By.ID, "picked")
    for keys in ((Keys.ESCAPE,), (Keys.TAB, Keys.ENTER)):
        page.find_element(By.XPATH, "//*[@data-name='programs /usr/bin']").click()
        page.find_element(By.CSS_SELECTOR, "#picked li button").click()
        assert page.execute_script("return document.activeElement.id") == "picked"
        press(page, *keys)
        assert not panel.is_displayed()
        assert page.execute_script("return document.activeElement.getAttribute('role')") == "radio"


def test_the_keyboard_reaches_and_opens_everything(page: webdriver.Chrome) -> None:
    """The keyboard follows a skip link, sets switches, picks lines and boxes, and opens reasons."""
    press(page, Keys.TAB)
    assert focused(page) == "A Skip to the story"
    assert page.execute_script("return document.activeElement.getBoundingClientRect().left") >= 0
    press(page, Keys.ENTER)
    assert page.execute_script("return document.activeElement.id") == "story"
    page.execute_script("document.querySelector('input[name=capability]').focus()")
    every = len(lines(page))
    press(page, Keys.SPACE)
    assert len(lines(page)) < every
    press(page, Keys.SPACE)
    assert len(lines(page)) == every
    page.execute_script("document.querySelector('input[name=mode]:checked').focus()")
    press(page, Keys.TAB, Keys.TAB)
    label = "return document.activeElement.ariaLabel"
    first = page.execute_script(label)
    assert first == lines(page)[0]
    press(page, Keys.ARROW_DOWN)
    assert page.execute_script(label) == lines(page)[1]
    assert page.execute_script("return document.activeElement.ariaChecked") == "true"
    assert page.find_element(By.ID, "picked").is_displayed()
    press(page, Keys.ESCAPE, Keys.TAB)
    assert page.execute_script("return document.activeElement.getAttribute('role')") == "button"
    press(page, Keys.ENTER)
    assert page.find_elements(By.CSS_SELECTOR, "#picked li button") != []
    page.execute_script("document.getElementById('reasons').focus()")
    assert focused(page) == "BUTTON Open all reasons"
    outline = page.execute_script(
        "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, "
        "s.outlineWidth]"
    )
    assert outline == ["solid", "3px"]
    page.execute_script("document.querySelector('#files li:not([hidden]) summary').focus()")
    reason = "#files details[open] dd"
    for key in (Keys.ENTER, Keys.SPACE):
        close = "for (const e of document.querySelectorAll('#files details')) e.open = false"
        page.execute_script(close)
        assert visible_texts(page, reason) == []
        press(page, key)
        assert visible_texts(page, reason) != []


def test_one_button_opens_all_reasons(page: webdriver.Chrome) -> None:
    """The button opens and closes all reasons and tells its state; directories stay open."""
    button = page.find_element(By.ID, "reasons")
    count = "return document.querySelectorAll(arguments[0]).length"
    every = page.execute_script(count, "details.entry")
    for state, expected in (("true", 0), ("false", every)):
        button.click()
        closed = page.execute_script(count, "details.entry:not([open])")
        assert (button.get_attribute("aria-pressed"), closed) == (state, expected)
    assert page.execute_script(count, "details.directory:not([open])") == 0


def test_a_page_without_a_picture_has_no_errors(
    browser: webdriver.Chrome, installed: Installed, tmp_path: Path
) -> None:
    """The script runs to its end where no runtime adds the driver; nobody reads the request there."""
    pod, page = tmp_path / "pod.yaml", tmp_path / "page.html"
    lines = (CHECKOUT / "docs/pods/training.yaml").read_text().splitlines()
    pod.write_text("\n".join(line for line in lines if "runtimeClassName" not in line))
    command: list[str | Path] = [installed.cli, "explain", "--pod", pod]
    command += ["--host", "runfile-a10x2", "--html", page]
    subprocess.run(command, check=True, timeout=60)
    log(browser, "browser")
    browser.get(page.as_uri())
    assert log(browser, "browser") == []
    assert browser.find_elements(By.CLASS_NAME, "picture") == []
    assert "Nobody reads the request" in browser.find_element(By.ID, "asked").text


def test_everything_interactive_has_a_name(page: webdriver.Chrome) -> None:
    """Links, buttons and disclosures have accessible names; landmarks exist."""
    page.execute_cdp_cmd("Accessibility.enable", {})
    nodes: list[dict[str, Any]] = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            name = node.get("name", {}).get("value", "")
            roles.setdefault(node["role"]["value"], []).append(name)
    for role in ("link", "button", "radio", "checkbox", "DisclosureTriangle"):
        assert roles[role], role
        assert all(name.strip() for name in roles[role]), role
    assert {"banner", "navigation", "main", "contentinfo", "form", "status", "radiogroup"} <= set(
        roles
    )
    assert all(roles["region"])
    levels = page.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3,h4')].map((e) => +e.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.execute_script("return document.documentElement.lang") == "en"


@pytest.mark.requires("axe")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_axe_finds_nothing_serious(scheme: str, width: int, page: webdriver.Chrome) -> None:
    """axe-core finds nothing serious, with a line picked and all reasons open."""
    with shown_on(page, scheme, width):
        page.find_element(By.ID, "reasons").click()
        page.execute_script(
            "[...document.querySelectorAll('.box')].find((e) => e.checkVisibility())"
            ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        )
        assert serious_findings(page) == []


@pytest.mark.parametrize("width", [1400, 390])
def test_no_text_of_the_picture_overlaps(width: int, page: webdriver.Chrome) -> None:
    """Each text of the picture is inside its box, and no box overlaps another."""
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == 390},
    )
    try:
        outside, overlaps = page.execute_script(
            """
            const boxes = [...document.querySelectorAll(".box")].filter((e) => e.checkVisibility());
            const place = (e) => e.getBoundingClientRect();
            const inside = (a, b) => a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
            const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
            const rects = boxes.map((e) => place(e.querySelector("rect")));
            return [
              boxes.flatMap((e, n) => [...e.querySelectorAll("text")].filter((t) => !inside(place(t), rects[n])).map((t) => t.textContent)),
              rects.flatMap((a, n) => rects.slice(n + 1).filter((b) => !apart(a, b))).length,
            ];
            """
        )
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert (outside, overlaps) == ([], 0)


@pytest.mark.parametrize("width", [1280, 1024, 768, 390, 320])
def test_the_picture_can_be_read(width: int, page: webdriver.Chrome) -> None:
    """No text of the picture is smaller than 9 pixels, and no swatch of its legend stands at the
    end of a line with its words on the next.
    """
    with shown_on(page, "light", width):
        smallest, broken = page.execute_script(
            """
            const picture = [...document.querySelectorAll(".picture")].find((e) => e.checkVisibility());
            const scale = picture.getScreenCTM().a;
            const sizes = [...picture.querySelectorAll("text")].map((e) => parseFloat(getComputedStyle(e).fontSize));
            const words = (key) => {
              const range = document.createRange();
              range.selectNodeContents(key.nextSibling);
              return range.getClientRects()[0];
            };
            const keys = [...document.querySelectorAll(".key")];
            return [
              Math.min(...sizes) * scale,
              keys.filter((key) => words(key).left < key.getBoundingClientRect().left).length,
            ];
            """
        )
    assert smallest >= 9
    assert broken == 0


def test_fingers_hit_what_can_be_touched(page: webdriver.Chrome) -> None:
    """On a touch screen switches, buttons and links of the contents are 40 pixels high or more."""
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        with shown_on(page, "light", 390):
            heights = page.execute_script(
                "return [...document.querySelectorAll('fieldset label, button, nav a')]"
                ".filter((e) => e.checkVisibility())"
                ".map((e) => e.getBoundingClientRect().height)"
            )
    finally:
        page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    assert min(heights) >= 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str, page: webdriver.Chrome) -> None:
    """Every text, with reasons opened, has the contrast of WCAG AA in both colour schemes."""
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    page.find_element(By.ID, "reasons").click()
    assert page.execute_script(CONTRAST) == []
    paper = page.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert paper == {"light": "rgb(251, 250, 247)", "dark": "rgb(20, 24, 27)"}[scheme]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_page_fits_a_telephone(page: webdriver.Chrome) -> None:
    """At 320 pixels nothing is wider than the screen."""
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 320, "height": 640, "deviceScaleFactor": 1, "mobile": True},
    )
    page.find_element(By.ID, "reasons").click()
    assert page.execute_script("return document.documentElement.scrollWidth") == 320
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_page_can_be_read_without_scripts(page: webdriver.Chrome, address: str) -> None:
    """Without scripts the filter is hidden, and reasons can still be opened."""
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.get(address)
        assert not page.find_element(By.ID, "controls").is_displayed()
        page.find_element(By.CSS_SELECTOR, "#files summary").click()
        assert page.find_element(By.CSS_SELECTOR, "#files details[open] dd").is_displayed()
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_printing_opens_the_reasons(page: webdriver.Chrome) -> None:
    """Printing opens all reasons, and does not waste paper."""
    assert page.find_elements(By.CSS_SELECTOR, "details.entry[open]") == []
    paper = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert 5 < len(re.findall(rb"/Type /Page\b", paper)) < 20
    assert page.find_elements(By.CSS_SELECTOR, "details.entry:not([open])") == []


def test_a_changed_picture_is_printed_with_its_switches(page: webdriver.Chrome) -> None:
    """On paper a picture that is not of the container as it is says what it is of."""
    for changed in (False, True):
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        try:
            assert page.find_element(By.ID, "command").is_displayed() == changed
            assert not page.find_element(By.CSS_SELECTOR, "fieldset").is_displayed()
        finally:
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        choose(page, "none")
