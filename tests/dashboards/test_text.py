"""Text stays text, numbers stay readable."""

import re

import pytest

from evalsvc.dashboards.launch import APP, database_address, streamlit_args
from evalsvc.dashboards.markup import parted
from evalsvc.dashboards.text import (
    byte_size,
    counted,
    escape,
    hidden_characters,
    markdown_free,
    outer_space,
    p_value,
    points,
    small_number,
    visible_text,
)


def test_what_cannot_be_seen_is_made_visible():
    assert visible_text("a\x00b\u2028c\u202ed\x7fe\u200bf") == "a␀b⟨U+2028⟩c⟨U+202E⟩d␡e⟨U+200B⟩f"
    assert visible_text("line\n\ttab é 漢 😀") == "line\n\ttab é 漢 😀"
    assert visible_text("\ud800") == "⟨U+D800⟩"


def test_long_text_is_cut_and_says_by_how_much():
    assert visible_text("abcdef", 4) == "abcd"
    assert hidden_characters("abcdef", 4) == 2
    assert hidden_characters("abc", 4) == 0


@pytest.mark.parametrize("address", ["http://e.org/x", "HTTPS://e.org", "www.e.org", "a.b@e.org"])
def test_no_address_in_a_label_becomes_a_link(address):
    """Markdown makes one of the bare text, whatever is escaped in it; without the joiner the text is the same."""
    shown = markdown_free(f"see {address}!")
    assert shown.replace("\\", "").replace("\u2060", "") == f"see {address}!" and "\u2060" in shown
    assert not re.search(r"https?:\\?//|www\\?\.|@\w", shown, re.IGNORECASE)


def test_a_label_that_is_cut_says_so():
    assert markdown_free("abcdef", 4) == "abcd…" and markdown_free("abcd", 4) == "abcd"


def test_one_thing_has_no_plural():
    assert [counted(n, "error") for n in (0, 1, 2, 1000)] == ["0 errors", "1 error", "2 errors", "1,000 errors"]


def test_markup_is_escaped():
    assert escape("<b title='x\">&") == "&lt;b title=&#x27;x&quot;&gt;&amp;"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0.0"), (-0.01, "0.0"), (5.04, "+5.0"), (-2.26, "-2.3")],
)
def test_points_have_one_decimal_and_no_negative_zero(value, shown):
    assert points(value, signed=True) == shown
    assert points(0.25, digits=2) == "0.25"


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (0.00004, "<.0001"), (0.0004, ".0004"), (0.0412, ".041"), (1.0, "1.0")]
)
def test_p_values(value, shown):
    assert p_value(value) == shown


def test_sizes_and_small_numbers():
    sizes = [byte_size(v) for v in (None, 12, 23040, 202.5 * 2**20, 1.2 * 2**30)]
    assert sizes == ["–", "12 B", "23,040 B", "202.5 MiB", "1.2 GiB"]  # as the tables of `run` and `show`
    assert [small_number(v) for v in (None, 0, 0.00164, 5.12)] == ["–", "0", "0.0016", "5.1"]


def test_the_server_listens_on_loopback_and_reports_nothing():
    arguments = streamlit_args("a b.db", 8600)
    assert arguments[:4] == ["-m", "streamlit", "run", str(APP)]
    assert {"--server.address=127.0.0.1", "--server.port=8600", "--browser.gatherUsageStats=false"} <= set(arguments)
    assert "--client.showErrorDetails=none" in arguments
    assert arguments[-3:] == ["--", "--db", "a b.db"]
    assert "--server.headless=false" in streamlit_args("x", 1, headless=False)


def test_the_database_is_named_by_flag_before_environment():
    assert database_address(["--db", "a"], {"EVALSVC_DB": "b"}) == "a"
    assert database_address(["--db=a"], {}) == "a"
    assert database_address([], {"EVALSVC_DB": "b"}) == "b"
    assert database_address(["--db"], {}) is None
    assert database_address([], {"EVALSVC_DB": ""}) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Lake Como", None),
        ("Lake Como ", "ends with 1 space"),
        ("Lake Como\n", "ends with 1 line break"),
        (" \tLake  Como", "begins with 1 space, 1 tab"),
        ("\u00a0Lake Como\r\n", "begins with 1 U+00A0 and ends with 1 carriage return, 1 line break"),
        ("x" + " " * 30, "ends with 30 spaces"),
        ("x" + " \n" * 30, "ends with 1 space, 1 line break, 1 space, 1 line break, and more"),
        ("", None),
        (" \n", None),
    ],
)
def test_lm25_white_space_at_the_ends_of_an_answer_can_be_seen(text, shown):
    assert outer_space(text) == shown


def test_an_answers_own_first_word_is_marked_where_it_parts():
    assert "<span>both </span><mark>&lt;b&gt;own</mark> rest</pre>" in parted("both ", "<b>own rest")
    assert "<mark>\n\n two</mark> three" in parted("", "\n\n two three")
    assert "<mark>(ends here)</mark>" in parted("all of it", "")
    assert "<mark>␀⟨U+202E⟩</mark>" in parted("", "\x00\u202e")
