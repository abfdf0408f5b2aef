"""Four published systems on the same 1,319 questions: all six pairs, against an independent computation of each."""

import csv
from itertools import combinations
from pathlib import Path

import pytest
from statsmodels.stats.contingency_tables import mcnemar

from evalsvc.verdict.measure import measure

DATA = Path(__file__).parents[4] / "shared" / "data" / "gsm8k_paired" / "is_correct.csv"
SYSTEMS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
pytestmark = pytest.mark.skipif(not DATA.is_file(), reason=f"no {DATA.name}: public data lie outside the repository")


@pytest.fixture(scope="module")
def outcomes():
    with DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [int(row[name]) for row in rows] for name in SYSTEMS}


@pytest.mark.parametrize(("first", "second"), list(combinations(SYSTEMS, 2)))
def test_a_pair_is_what_an_independent_computation_says(oracles, outcomes, first, second):
    base, cand = outcomes[first], outcomes[second]
    table = [[sum((b, c) == (i, j) for b, c in zip(base, cand, strict=True)) for j in (1, 0)] for i in (1, 0)]
    lost, gained = table[0][1], table[1][0]
    found = measure(base, cand)
    assert (found.n, found.lost, found.gained, found.baseline_right) == (1319, lost, gained, sum(base))
    assert 2 * min(found.p, found.p_gain) == pytest.approx(mcnemar(table, exact=True).pvalue, rel=1e-9)
    assert found.interval == pytest.approx(oracles.tango_interval_numeric(lost, gained, 1319), abs=1e-6)
    assert (found.lower, found.upper) == pytest.approx(
        oracles.tango_interval_numeric(lost, gained, 1319, 0.9), abs=1e-6
    )
    assert found.drop == pytest.approx((sum(base) - sum(cand)) / 1319)


def test_the_small_model_with_a_verifier_beats_the_large_one_without(outcomes):
    found = measure(outcomes["6b_verification"], outcomes["175b_finetuning"])
    assert (found.lost, found.gained) == (209, 152)
    assert found.p == pytest.approx(0.0016, abs=5e-5)
    assert found.lower > 0.015
