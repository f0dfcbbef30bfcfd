"""The page in a real Chromium: its layout, and its accessibility by axe-core."""

import shutil

import pytest

pytest.importorskip("selenium", reason="a browser is asked: pip install selenium selenium-axe-python")

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium_axe_python import Axe

from parity.report.html import render_html
from tests.parity import made_reports

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="no chromium and chromedriver here; on Debian: apt-get install chromium chromium-driver",
    ),
    pytest.mark.xdist_group("browser"),
]
WIDTHS = (1280, 800, 400)
REPORTS = ("passing", "failing", "everything", "on_gpu")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for argument in (
        "--headless=new",
        "--no-sandbox",  # as root, and in containers
        "--disable-dev-shm-usage",
        "--disable-gpu",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Both are named, so that selenium looks for, and downloads, neither.
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The address of each made report's page."""
    folder = tmp_path_factory.mktemp("pages")
    for name in REPORTS:
        (folder / f"{name}.html").write_text(render_html(getattr(made_reports, name)()), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in REPORTS}


@pytest.fixture
def shown(browser, pages):
    """`shown(report, width, scheme)` opens a page; every `details` as well where `opened`."""

    def show(name, width=1280, scheme="light", media="", opened=False):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        browser.get(pages[name])
        if opened:
            browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
        return browser

    return show


@pytest.mark.parametrize("name", REPORTS)
def test_nothing_is_logged_or_loaded(shown, pages, name):
    browser = shown(name)
    # Twice, so that what the first page asked for after it was read is in the log as well.
    browser.get_log("performance")
    browser.refresh()
    assert browser.get_log("browser") == []
    asked = [entry["message"] for entry in browser.get_log("performance")]
    requests = [message for message in asked if "Network.requestWillBeSent" in message]
    assert requests
    assert all(pages[name] in message for message in requests)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_the_page_is_no_wider_than_the_screen(shown, name, width):
    browser = shown(name, width, opened=True)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    # What is wider scrolls by itself; nothing is cut off outside of that.
    cut = browser.execute_script(
        """return [...document.querySelectorAll('main *, header *')]
            .filter(e => !e.closest('.scroll, .skip, .unseen, .label, .defs, svg'))
            .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
            .map(e => e.outerHTML.slice(0, 99))"""
    )
    assert cut == []


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        pytest.param("passing", 1280, "light", marks=pytest.mark.full),
        ("failing", 400, "dark"),
        pytest.param("failing", 1280, "light", marks=pytest.mark.full),
        pytest.param("everything", 1280, "dark", marks=pytest.mark.full),
        pytest.param("everything", 400, "light", marks=pytest.mark.full),
        pytest.param("on_gpu", 800, "light", marks=pytest.mark.full),
    ],
)
def test_axe_finds_no_violation(shown, name, width, scheme):
    axe = Axe(shown(name, width, scheme, opened=True))
    axe.inject()
    actual = axe.run()
    assert actual["violations"] == [], axe.report(actual["violations"])
    passed = {rule["id"] for rule in actual["passes"]}
    assert {"color-contrast", "heading-order", "region", "list"} <= passed


@pytest.mark.full
def test_axe_sees_what_is_wrong(shown):
    browser = shown("failing", scheme="dark")
    browser.execute_script(
        """document.body.style.color = '#333';
        document.querySelector('svg[role=img]').removeAttribute('aria-label')"""
    )
    axe = Axe(browser)
    axe.inject()
    assert {"color-contrast", "svg-img-alt"} <= {rule["id"] for rule in axe.run()["violations"]}


def test_the_schemes_differ_and_print_is_on_white(shown):
    def background(**how):
        browser = shown("failing", **how)
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    light, dark = background(scheme="light"), background(scheme="dark")
    assert light == "rgb(255, 255, 255)"
    assert dark != light
    assert background(scheme="dark", media="print") == light


def test_the_charts_follow_the_scheme(shown):
    def line(scheme):
        browser = shown("failing", scheme=scheme)
        return browser.execute_script(
            """const drawn = document.querySelector('figure .wide svg [stroke="var(--series-1)"]');
            return getComputedStyle(drawn).stroke"""
        )

    assert line("light") != line("dark")


@pytest.mark.parametrize("width", WIDTHS)
def test_one_drawing_of_each_chart_is_shown(shown, width):
    browser = shown("failing", width)
    drawn = browser.find_elements(By.CSS_SELECTOR, "figure .wide svg, figure .narrow svg")
    assert len(drawn) == 4
    seen = [entry for entry in drawn if entry.is_displayed()]
    assert len(seen) == 2
    assert all(entry.size["width"] <= width for entry in seen)
    assert all(entry.size["width"] > 0.6 * min(width, 1280) for entry in seen)


def test_the_keyboard_reaches_and_opens_a_module(shown):
    browser = shown("passing")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("class") == "skip"
    for _ in range(60):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.switch_to.active_element
        if focused.tag_name == "summary" and "_item_emb" in focused.text:
            break
    else:
        pytest.fail("no module can be reached with the tabulator")
    outline = focused.value_of_css_property("outline-style")
    assert outline == "solid"
    details = focused.find_element(By.XPATH, "..")
    detail = details.find_element(By.CLASS_NAME, "detail")
    assert not detail.is_displayed()
    focused.send_keys(Keys.ENTER)
    assert detail.is_displayed()
    assert "Worst elements" in detail.text
    focused.send_keys(Keys.SPACE)
    assert not detail.is_displayed()


def test_a_finding_leads_to_the_culprit(shown):
    browser = shown("failing", 400)
    browser.find_element(By.CSS_SELECTOR, ".findings a").click()
    target = browser.current_url.partition("#")[2]
    top = browser.execute_script(
        "return document.getElementById(arguments[0]).getBoundingClientRect().top", target
    )
    assert 0 <= top < 900
    assert browser.find_element(By.ID, target).find_element(By.CLASS_NAME, "map").is_displayed()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_map_is_large_enough_to_see(shown, width):
    browser = shown("failing", width)
    drawn = browser.find_element(By.CSS_SELECTOR, ".map svg")
    assert drawn.size["width"] >= 80
    assert drawn.size["height"] >= 60
    assert drawn.get_attribute("aria-label").startswith("Largest error over limit, alone: rows are batch 0")
