"""Four words, and what turns one into another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalsvc.verdict.families import holm
from evalsvc.verdict.hybrid import measure_hybrid
from evalsvc.verdict.measure import measure, measure_counts, measure_units, more_items
from evalsvc.verdict.rule import BEYOND_MARGIN, decide


@pytest.mark.parametrize(
    ("lost", "gained", "n", "margin", "word", "detected"),
    [
        (0, 0, 176, 0.05, "PASS", False),
        (209, 152, 12032, 0.01, "PASS", True),  # bound .74 points: real, but inside what was accepted
        (41, 17, 1319, 0.01, "REGRESSED", False),
        (40, 26, 1319, 0.01, "INCONCLUSIVE", False),  # "drop above 1 point" would be red here, at p = .054
        (0, 0, 24, 0.05, "INCONCLUSIVE", False),
    ],
)
def test_words(lost, gained, n, margin, word, detected):
    verdict = decide(measure_counts(lost, gained, n), margin)
    assert (verdict.word, verdict.drop_detected) == (word, detected)


def test_severity_needs_the_lower_bound_beyond_the_margin():
    assert decide(measure_counts(60, 0, 176), 0.15).severity == BEYOND_MARGIN
    assert decide(measure_counts(41, 17, 1319), 0.01).severity != BEYOND_MARGIN


def test_the_family_correction_can_take_a_flag_away():
    measured = measure_counts(9, 2, 60)
    assert measured.p < 0.05
    assert decide(measured, 0.05).word == "REGRESSED"
    corrected = decide(measured, 0.05, p_adjusted=3 * measured.p)
    assert corrected.word == "INCONCLUSIVE"
    assert corrected.more_items and corrected.more_items > 0


def test_a_ceiling_is_valid_evidence():
    verdict = decide(measure_counts(0, 0, 300, baseline_right=300), 0.01, chance=0.25)
    assert (verdict.word, verdict.saturated) == ("PASS", True)


def test_a_baseline_at_chance_cannot_lose_the_margin():
    """Seven of a hundred four-choice items right: 15 points cannot go missing, so 0 lost proves nothing."""
    assert decide(measure_counts(0, 0, 100, baseline_right=7), 0.15, chance=0.25).floor
    assert decide(measure_counts(0, 0, 100, baseline_right=7), 0.15, chance=0.25).word == "INVALID"
    assert decide(measure_counts(0, 0, 100, baseline_right=0), 0.05, chance=0.0).word == "INVALID"
    assert decide(measure_counts(0, 0, 100, baseline_right=60), 0.15, chance=0.25).word == "PASS"


def test_items_still_needed_decide_when_they_come():
    measured = measure_counts(0, 0, 24)
    more = more_items(measured, 0.05)
    assert more is not None
    assert decide(measure_counts(0, 0, 24 + more), 0.05).word == "PASS"
    assert decide(measure_counts(0, 0, 24 + more - 2), 0.05).word == "INCONCLUSIVE"


def test_items_still_needed_grow_with_clustering():
    base = [1] * 48
    cand = [0, 0, 0, 1, 1, 1] + [1] * 42
    alone, together = measure(base, cand), measure(base, cand, [str(i // 6) for i in range(48)])
    assert (more_items(together, 0.05) or 0) > (more_items(alone, 0.05) or 0) > 0


outcomes = st.lists(
    st.tuples(st.sampled_from([0, 0.5, 1, 1]), st.sampled_from([0, 1, 1]), st.sampled_from(["", "a", "b", "c", "d"])),
    min_size=5,
    max_size=60,
)


@settings(max_examples=60)
@given(outcomes, st.booleans(), st.booleans(), st.sampled_from([0.01, 0.05, 0.2]))
def test_what_is_inconclusive_never_needs_no_more_items(rows, whole, looked_at, margin):
    """Whatever decides: independent items, clusters, fractions, or the processes of a sequential design."""
    base, cand, labels = zip(*rows, strict=True)
    base = [float(round(value)) if whole else value for value in base]
    if looked_at:
        measured = measure_hybrid(base, cand, [""] * len(rows), [3, len(rows)])
    else:
        measured = measure(base, cand, labels)
    verdict = decide(measured, margin)
    if verdict.word == "INCONCLUSIVE":
        assert verdict.more_items is None or verdict.more_items > 0


def test_where_no_bound_is_known_yet_no_number_of_items_is_named():
    measured = measure([1] * 40, [0] * 10 + [1] * 30, [str(i // 20) for i in range(40)])
    assert measured.upper == 1 and more_items(measured, 0.05) is None
    lengths = measure_units([10.0 * (i % 7) for i in range(42)], [10.0 * (i * 3 % 7) for i in range(42)])
    assert lengths.p > 0.05 and lengths.upper > 1 and more_items(lengths, 1.0)


def test_holm_against_published_values():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    p = [0.838541367553, 0.642193923795, 0.680845947633, 0.967833824309, 0.71626938238]
    p += [0.177096952723, 5.23656777208e-05, 0.0202732688798, 0.00028140506198, 0.0149877310796]
    expected = [0.000523656777208, 0.00253264555782, 0.1199018486368, 0.1419128821586]
    assert sorted(holm(p))[:4] == pytest.approx(expected, abs=1e-12)
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_keeps_the_order_and_never_lowers_a_p(p):
    adjusted = holm(p)
    assert all(a >= q for a, q in zip(adjusted, p, strict=True)) and max(adjusted) <= 1
    order = sorted(range(len(p)), key=p.__getitem__)
    assert [adjusted[i] for i in order] == sorted(adjusted)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 150), st.floats(0, 0.3), st.floats(0, 0.3))
def test_a_wider_margin_never_undoes_a_pass(lost, gained, rest, first, second):
    measured = measure_counts(lost, gained, lost + gained + rest)
    narrow, wide = sorted((first, second))
    if decide(measured, narrow).word == "PASS":
        assert decide(measured, wide).word == "PASS"
