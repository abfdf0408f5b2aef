"""The pages in a real browser: what is on them, that nothing in an answer runs, and their pictures."""

import contextlib
import os
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

pytestmark = [pytest.mark.browser, pytest.mark.slow]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def served(database: Path) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as output:
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


def opened_page(browser: Any, url: str, width: int = 1360) -> Any:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(url)
    page.locator('.ev-note, [data-testid="stException"]').first.wait_for(timeout=60_000)
    no_exception(page)
    return page


def choose(page: Any, label: str, choice: str) -> None:
    """Picks an entry of a select box and waits until the page has followed."""
    box = page.locator(f'[data-testid="stSelectbox"]:has(label:has-text("{label}"))')
    option = page.get_by_role("option", name=choice, exact=True)
    for _ in range(5):  # a page that is still following the last choice doubles its boxes and closes their lists
        with contextlib.suppress(Exception):
            box.first.locator("input").click(timeout=2000)
            option.click(timeout=2000)
        page.wait_for_timeout(800)
        if box.count() == 1 and choice in (box.inner_text(), box.locator("input").input_value()):
            return
    raise AssertionError(f"{label} has no choice {choice}")


def no_exception(page: Any) -> None:
    assert page.locator('[data-testid="stException"]').count() == 0


def test_the_three_views(browser, database, tmp_path):
    with served(database) as url:
        page = opened_page(browser, url)
        text = page.inner_text("body")
        for wanted in (
            "✓ PASS",
            "▼ REGRESSED",
            "? INCONCLUSIVE",
            "⊘ INVALID: blind",
            "injected fault: decode_k_scale 0.25",
        ):
            assert wanted in text
        assert "left out of the decision" in text
        no_exception(page)
        picture(page, tmp_path, "verdicts")

        page.get_by_role("tab", name="Drop in points").click()
        page.locator("canvas, svg.marks").first.wait_for(timeout=60_000)
        assert page.locator('[data-testid="stVegaLiteChart"]').count() == 5
        no_exception(page)
        picture(page, tmp_path, "forest")

        page.get_by_role("tab", name="Flips").click()
        choose(page, "Candidate", "int4-sym-decode")
        choose(page, "Suite", "tools")
        page.get_by_text("shown by this choice").wait_for()
        no_exception(page)
        picture(page, tmp_path, "flips")


def test_hostile_answers_are_text(browser, database, tmp_path):
    with served(database) as url:
        page = opened_page(browser, url)
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.get_by_role("tab", name="Flips").click()
        choose(page, "Candidate", "kv-damaged")
        choose(page, "Suite", "formats")
        page.get_by_text("first 4,000 of 200,000 characters").first.wait_for(timeout=30_000)
        text = page.inner_text("body")
        assert "<script>document.title='owned'</script><img src=x onerror=alert(1)>" in text
        assert "**bold** [link](https://example.org) $x^2$ :red[red]" in text
        assert "one⟨U+2028⟩two⟨U+202E⟩three␀four" in text
        assert page.title() == "evalsvc" and dialogs == []
        assert page.locator("img[src=x]").count() == 0
        no_exception(page)
        picture(page, tmp_path, "hostile")


def test_a_narrow_page_scrolls_its_tables_and_not_itself(browser, database, tmp_path):
    with served(database) as url:
        page = opened_page(browser, url, width=480)
        main = page.locator('[data-testid="stMain"]')
        assert main.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
        no_exception(page)
        picture(page, tmp_path, "narrow")
        for name in ("Drop in points", "Flips"):
            page.get_by_role("tab", name=name).click()
            page.wait_for_timeout(1500)
            assert main.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), name
            no_exception(page)
            picture(page, tmp_path, f"narrow-{name[:4].lower()}")


@pytest.mark.skipif(os.environ.get("EVALSVC_UPDATE_SCREENSHOTS") != "1", reason="set EVALSVC_UPDATE_SCREENSHOTS=1")
def test_pictures_for_the_documentation(browser, database):
    """Of the database named by EVALSVC_DB, so that what the README shows is what ran; else of the synthetic one."""
    with served(Path(os.environ.get("EVALSVC_DB") or database)) as url:
        page = opened_page(browser, url)
        picture(page, IMAGES, "verdicts", whole=False)
        page.get_by_role("tab", name="Drop in points").click()
        page.locator('[data-testid="stVegaLiteChart"] canvas, svg.marks').first.wait_for(timeout=60_000)
        picture(page, IMAGES, "forest")
        page.get_by_role("tab", name="Flips").click()
        page.get_by_text("shown by this choice").wait_for()
        picture(page, IMAGES, "flips", whole=False)
        no_exception(page)
