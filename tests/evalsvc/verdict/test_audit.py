"""Published pairs without their items."""

import pytest

from evalsvc.verdict.audit import audit_published, unpaired_p
from evalsvc.verdict.paired import mcnemar_exact


def test_a_published_point_on_mmlu_pro_is_significant_below_31_points_of_discordance():
    audited = audit_published(12032, 0.8029, 0.7929, 0.01)
    assert audited.unpaired_p == pytest.approx(0.054, abs=5e-4)
    assert audited.significant_below == pytest.approx(0.306, abs=2e-3)
    flips = round(audited.significant_below * 12032)
    difference = audited.baseline_right - audited.candidate_right
    for more, significant in ((0, True), (2, False)):
        lost = (flips + more + difference) // 2
        assert (2 * mcnemar_exact(lost, lost - difference) < 0.05) == significant


def test_the_verdict_hangs_on_the_discordance():
    words = [word for _, word, _ in audit_published(1319, 0.80, 0.79, 0.02).at]
    assert words[0] == "PASS" and words[-1] == "INCONCLUSIVE"
    flips = [flips for flips, _, _ in audit_published(1319, 0.80, 0.79, 0.02).at]
    assert flips == sorted(flips) and flips[0] == pytest.approx(0.01, abs=1e-3)


def test_a_gain_is_significant_too_and_equal_scores_never_are():
    assert audit_published(12032, 0.7929, 0.8029, 0.01).significant_below == pytest.approx(0.306, abs=2e-3)
    equal = audit_published(500, 0.5, 0.5, 0.01)
    assert (equal.significant_below, equal.unpaired_p) == (None, 1.0)


@pytest.mark.parametrize(("n", "baseline"), [(0, 0.5), (10, 1.2), (10, -0.1)])
def test_scores_that_no_items_have_are_refused(n, baseline):
    with pytest.raises(ValueError, match="cannot have"):
        audit_published(n, baseline, 0.5, 0.01)


def test_the_unpaired_test_against_a_report():
    """200 items, 152 and 162 right: z 1.22, p .224, where the paired exact test gives .0129 (lm-eval issue 3831)."""
    assert unpaired_p(152, 200, 162, 200) == pytest.approx(0.224, abs=1e-3)
    assert 2 * mcnemar_exact(12, 2) == pytest.approx(0.01294, abs=1e-5)
