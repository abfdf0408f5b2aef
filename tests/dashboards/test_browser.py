"""The pages in a real browser: what is on them, that nothing in an answer runs, and their pictures."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalsvc.dashboards.launch import streamlit_args
from evalsvc.dashboards.pages import HOME, PAGES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
SCREENSHOTS = ROOT / "build" / "screenshots"  # kept after the test; ignored by git
# Opened at a page's own address, Streamlit asks beside it first to find out under which path it is served.
PROBES = ("/_stcore/health", "/_stcore/host-config")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A port that the system gives to nobody else meanwhile, and that a server which asks for it by number can have.

    The socket is bound and does not listen: with the same option on both sides Linux lets one more listen there.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def test_a_held_port_is_free_for_who_asks_by_number_alone():
    with held_port() as port, socket.socket() as plain:
        with pytest.raises(OSError, match="in use"):
            plain.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port


@contextlib.contextmanager
def served(database: Path) -> Iterator[str]:
    with held_port() as port, tempfile.TemporaryFile("w+") as output:
        url = f"http://127.0.0.1:{port}"
        process = subprocess.Popen([sys.executable, *streamlit_args(database, port)], stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + 60
            while True:
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    pytest.fail(f"the dashboard did not start: {output.read()}")
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                    break
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


def picture(page: Any, folder: Path, name: str, *, whole: bool = True) -> None:
    """The whole page, its inner scrolling undone, or what a window shows of it."""
    page.wait_for_timeout(600)
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    size = page.viewport_size
    if whole:
        page.set_viewport_size({"width": size["width"], "height": min(4000, max(size["height"], height))})
    page.wait_for_timeout(400)
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")
    page.set_viewport_size(size)


def faults(page: Any) -> list[str]:
    """What axe-core finds serious or critical of a page as it stands."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]}: {node['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def listen(page: Any) -> list[str]:
    """Collects what a page complains about from now on."""
    complaints: list[str] = []

    def note(said: Any) -> None:
        if said.type == "error":
            complaints.append(f"{said.text} {said.location.get('url', '')}")

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    return complaints


def opened_page(browser: Any, url: str, width: int = 1280, scheme: str = "light") -> Any:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(url)
    settled(page, "Verdict")
    return page


def settled(page: Any, title: str) -> None:
    """Waits until a page is drawn, whole and without an exception."""
    page.locator(f'.ev h1:text-is("{title}")').wait_for(timeout=60_000)
    page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for(timeout=60_000)
    assert page.locator('[data-testid="stException"]').count() == 0
    main = page.locator('[data-testid="stMain"]')
    assert main.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), f"{title} scrolls sideways"


@pytest.mark.parametrize("width", [1280, 390])
def test_a_reviewers_story_from_the_verdict_to_the_sample(browser, database, width):
    """Which plan regressed, where, in which answers, and since when; hostile answers on the way stay text."""
    with served(database) as url:
        page = browser.new_page(viewport={"width": width, "height": 900})
        complaints = listen(page)
        page.goto(url)
        settled(page, "Verdict")
        for wanted in ("✓ PASS", "▼ REGRESSED", "? INCONCLUSIVE", "⊘ INVALID: blind", "injected fault: decode_k_scale"):
            assert wanted in page.inner_text("body")
        picture(page, SCREENSHOTS, f"verdict-{width}")
        assert faults(page) == []

        page.get_by_role("link", name="Compare kv-damaged").click()
        settled(page, "Compare")
        page.locator('[data-testid="stVegaLiteChart"] canvas, svg.marks').first.wait_for(timeout=60_000)
        assert "candidate=kv-damaged" in page.url and "baseline=1" in page.url
        picture(page, SCREENSHOTS, f"compare-{width}")
        assert faults(page) == []

        page.get_by_role("link", name="Answers that flipped").click()
        settled(page, "Flips")
        assert "candidate=kv-damaged" in page.url
        page.get_by_text("shown by this choice").wait_for()
        page.get_by_text("<script>document.title='owned'</script><img src=x onerror=alert(1)>").first.wait_for()
        assert page.title() != "owned" and page.locator("img[src=x]").count() == 0
        picture(page, SCREENSHOTS, f"flips-{width}")
        assert faults(page) == []

        page.get_by_role("link", name="Open this sample").first.click()
        settled(page, "Sample")
        assert "sample=" in page.url
        page.get_by_text("Where the answers part").wait_for()
        picture(page, SCREENSHOTS, f"sample-{width}")
        assert faults(page) == []
        first = page.url
        page.get_by_role("button", name="Next flip").click()
        page.get_by_text("flip 2 of").wait_for()
        page.wait_for_url(lambda url: url != first)
        assert "candidate=kv-damaged" in page.url
        if width < 640:
            page.locator('[data-testid="stExpandSidebarButton"]').click()
        page.get_by_role("link", name="History", exact=True).click()
        settled(page, "History")
        assert "candidate=kv-damaged" in page.url
        picture(page, SCREENSHOTS, f"history-{width}")
        assert faults(page) == []
        assert complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_every_page_opens_by_its_own_address(browser, history_database, width, scheme):
    """Drawn whole, to be read by everybody, in the browser's colours, with no complaint but the two known questions."""
    with served(history_database) as url:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        complaints = listen(page)
        for listed in PAGES:
            page.goto(f"{url}/{'' if listed is HOME else listed.path}?candidate=fp8-kv")
            settled(page, listed.title)
            picture(page, SCREENSHOTS, f"{listed.path}-{width}-{scheme}")
            assert faults(page) == [], listed.path
            ground = page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
            assert (sum(int(part) for part in re.findall(r"\d+", ground)[:3]) < 380) == (scheme == "dark")
        asked = [said for said in complaints if not ("404" in said and said.endswith(PROBES))]
        assert asked == []


def test_hostile_names_fit_a_phone_and_no_address_becomes_a_link(browser, hostile_database):
    with served(hostile_database) as url:
        page = browser.new_page(viewport={"width": 390, "height": 900})
        for path, title in (("", "Verdict"), ("flips", "Flips"), ("breakdown", "Breakdown")):
            page.goto(f"{url}/{path}")
            settled(page, title)  # and does not scroll sideways
            if title != "Breakdown":  # whose names are drawn
                page.get_by_text("//example.org").first.wait_for()
            assert page.locator("a[href*='example.org']").count() == 0


@pytest.mark.skipif(os.environ.get("EVALSVC_UPDATE_SCREENSHOTS") != "1", reason="set EVALSVC_UPDATE_SCREENSHOTS=1")
def test_pictures_for_the_documentation(browser, database):
    """Of the database named by EVALSVC_DB, so that what the README shows is what ran; else of the synthetic one."""
    with served(Path(os.environ.get("EVALSVC_DB") or database)) as url:
        page = opened_page(browser, url, 1360)
        picture(page, IMAGES, "verdicts", whole=False)
        page.get_by_role("link", name="Compare", exact=True).click()
        settled(page, "Compare")
        page.locator('[data-testid="stVegaLiteChart"] canvas, svg.marks').first.wait_for(timeout=60_000)
        picture(page, IMAGES, "forest", whole=False)
        page.get_by_role("link", name="Flips", exact=True).click()
        settled(page, "Flips")
        picture(page, IMAGES, "flips", whole=False)
