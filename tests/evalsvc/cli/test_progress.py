"""Bars in a terminal: what they say, in how much room, and without colour where it is not wanted."""

import os
import pty
import re
import subprocess
import sys

import pytest

_SHOW = """
import time
from evalsvc.cli.progress import TerminalReporter
from evalsvc.tally import Doing
with TerminalReporter() as report:
    base, cand = report.progress("bf16"), report.progress("kv\\x1b[31m-fp8")
    base(3, 40, Doing("formats", 300))
    time.sleep(0.3)
    cand(17, 40, Doing("a suite of a long name", 1200, 2, 1))
    report.note("a line")
    time.sleep(0.3)
"""


@pytest.fixture
def shown():
    """`shown(**env)`: what a terminal of 80 columns is sent."""

    def call(**env: str) -> str:
        ours, theirs = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        environment |= {"TERM": "xterm-256color", "COLUMNS": "80", **env}
        with subprocess.Popen([sys.executable, "-c", _SHOW], stderr=theirs, env=environment) as process:
            os.close(theirs)
            said = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # the other side was closed
                    break
                if not part:
                    break
                said += part
        os.close(ours)
        assert process.returncode == 0
        return said.decode()

    return call


def plain(text: str) -> list[str]:
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))


def test_a_bar_says_suite_items_tokens_and_flips_and_fits(shown):
    said = shown()
    lines = [line.rstrip() for line in plain(said)]
    bars = [line for line in lines if "/40" in line]
    assert bars and max(map(len, lines)) <= 80
    assert any(re.fullmatch(r"bf16 +formats +[━╸╺]+ +3/40 +[\d,]+ tok/s.*", line) for line in bars), bars
    assert any(re.search(r"a suite of …? *[━╸╺]+ +17/40 +[\d,]+ tok/s .*b 2 c 1$", line) for line in bars), bars
    assert "\x1b[31m-fp8" not in said and "a line" in lines
    assert re.search(r"\x1b\[\d*;?\d*3\dm|\x1b\[38;", said), "colours, where nobody minds"


def test_without_colour_nothing_is_coloured(shown):
    said = shown(NO_COLOR="1")
    assert any("17/40" in line for line in plain(said))
    assert not re.search(r"\x1b\[[\d;]*(3[0-7]|38;[\d;]+|9[0-7])m", said)
