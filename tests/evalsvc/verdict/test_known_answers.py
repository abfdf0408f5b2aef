"""Every known answer of the reference file: by the service's own functions, or by a method it does not use.

Where the service has a method of its own for the same question, that one is held against the answer too.
"""

import json
from math import exp, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from evalsvc.targets.embedded import kl_by_stage
from evalsvc.verdict import sequential
from evalsvc.verdict.clusters import Clusters, cluster_bounds, cluster_p
from evalsvc.verdict.families import benjamini_hochberg, holm
from evalsvc.verdict.history import change_points
from evalsvc.verdict.measure import measure
from evalsvc.verdict.paired import (
    mcnemar_exact,
    mcnemar_midp,
    newcombe_interval,
    tango_lower,
    tango_statistic,
    tango_upper,
    wilson_interval,
)
from evalsvc.verdict.power import exact_power, items_needed, items_to_prove
from evalsvc.verdict.sequential import Sequential

REFERENCE = Path(__file__).parents[4] / "shared" / "reference" / "statistics.json"
CASES = {case["id"]: case for case in json.loads(REFERENCE.read_text())["cases"]} if REFERENCE.is_file() else {}

NULL = ([0.5] * 9 + [1] + [0.5] * 6 + [0] + [0.5] * 3) * 20
DROP = ([0.5] * 9 + [1] + [0.5] * 6 + [1] + [0.5] * 2 + [0]) * 40
PATTERNS = {"([.5]*9+[1]+[.5]*6+[0]+[.5]*3)*20": NULL, "([.5]*9+[1]+[.5]*6+[1]+[.5]*2+[0])*40": DROP}
PATTERNS["as above"] = DROP


def exact(x):
    return min(1.0, 2 * mcnemar_exact(max(x["b"], x["c"]), min(x["b"], x["c"])))


def tango(x):
    alpha = (1 - x.get("level", 0.95)) / 2
    return [end(x["b"], x["c"], x["n"], alpha) for end in (tango_lower, tango_upper)]


def newcombe(x):
    return newcombe_interval(x["a"], x["b"], x["c"], x["d"], level=0.95)


def clinic():
    """Differences of the equivalence example, each its own unit."""
    x = CASES["tost_paired_clinic_var1"]["inputs"]
    return np.subtract(x["x1"], x["x2"]), np.ones(len(x["x1"]))


def equivalence_p(x):
    """Two one-sided t tests: that the mean is above the lower limit, and below the upper one."""
    differences, sizes = clinic()
    return max(cluster_p(Clusters(differences - x["low"], sizes)), cluster_p(Clusters(x["upp"] - differences, sizes)))


def clustered_error(x):
    """Of an accuracy, as the drop to an arm that gets nothing right; without the factor C/(C-1)."""
    found = measure(x["scores"], [0] * len(x["scores"]), [str(label) for label in x["clusters"]])
    return found.cluster_error * sqrt((found.clusters - 1) / found.clusters)


def independent_error(x):
    """Of an accuracy, as that of fractions half as large (0/1 items that stand alone need none)."""
    return 2 * measure([score / 2 for score in x["scores"]], [0] * len(x["scores"])).cluster_error


def planned_power(x, sides):
    """The power for which this many items are needed."""
    return brentq(lambda p: items_needed(x["p10"], x["p01"], sides=sides, power=p) - x["n"], 0.5, 1 - 1e-9, xtol=1e-12)


def bayes(x):
    """With a uniform prior the share of losses among flips exceeds one half by this: `P(Bin(b + c + 1, 1/2) <= b)`."""
    return 1 - mcnemar_exact(x["b"] + 1, x["c"])


def unpaired(x, o):
    pairs = [(x[f"x{i}"] / x[f"n{i}"], *wilson_interval(x[f"x{i}"], x[f"n{i}"], 0.95)) for i in (1, 2)]
    return o.newcombe_unpaired(*pairs)


def kl(*logits):
    """Of one token's two distributions, as the probe measures it."""
    p, q = ({"stage": [torch.tensor(np.array([one]))]} for one in logits)
    return kl_by_stage(p, q)["stage"]["kl_mean"]


def changes(x, o):
    ours = [point.index for point in change_points(x["series"], np.random.default_rng(1))]
    assert ours == o.e_divisive(x["series"], x["max_pvalue"])
    return ours


def pattern(x):
    return np.array(PATTERNS[x["pattern"]])


REPRODUCED = {
    "mcnemar_exact_bentur": lambda x, o: exact(x),
    "mcnemar_midp_bentur": lambda x, o: 2 * min(mcnemar_midp(x["b"], x["c"]), mcnemar_midp(x["c"], x["b"])),
    "mcnemar_exact_cavo": lambda x, o: exact(x),
    "mcnemar_asymptotic_cavo": lambda x, o: o.mcnemar_chi2(x["b"], x["c"])[1],
    "mcnemar_asymptotic_cc_cavo": lambda x, o: o.mcnemar_chi2(x["b"], x["c"], correction=True)[1],
    "mcnemar_exact_R": lambda x, o: exact(x),
    "mcnemar_cc_R": lambda x, o: o.mcnemar_chi2(x["b"], x["c"], correction=True)[1],
    "mcnemar_asym_R": lambda x, o: o.mcnemar_chi2(x["b"], x["c"])[1],
    "mcnemar_exact_no_discordant": lambda x, o: exact(x),
    "mcnemar_exact_one_sided": lambda x, o: mcnemar_exact(x["b"], x["c"]),
    "mcnemar_chi2_agresti_approval": lambda x, o: o.mcnemar_chi2(x["table"][0][1], x["table"][1][0])[0],
    "tango_ci95_cavo": lambda x, o: tango(x),
    "tango_ci95_bentur": lambda x, o: tango(x),
    "tango_ci95_tango1998": lambda x, o: tango(x),
    "tango_ci90_contact_lens": lambda x, o: tango(x),
    "tango_ci95_boundary_all_b": lambda x, o: tango(x),
    "tango_score_T_contact_lens_margin10": lambda x, o: tango_statistic(x["b"], x["c"], x["n"], x["margin"]),
    "tango_T_numeric_361_241_12032": lambda x, o: tango_statistic(x["b"], x["c"], x["n"], x["margin"]),
    "tango_T_numeric_40_26_1319": lambda x, o: tango_statistic(x["b"], x["c"], x["n"], x["margin"]),
    # b is counted against the new lens there and c for it, and the margin is that of a loss
    "tango_noninferiority_p_contact_lens": lambda x, o: norm.cdf(tango_statistic(x["c"], x["b"], x["n"], x["margin"])),
    "newcombe_ci95_cavo": lambda x, o: newcombe(x),
    "newcombe_ci95_degenerate": lambda x, o: newcombe(x),
    "wald_ci95_paired_cavo": lambda x, o: o.wald_paired(x["b"], x["c"], x["a"] + x["b"] + x["c"] + x["d"]),
    "agresti_min_ci95_cavo": lambda x, o: o.agresti_min(x["b"], x["c"], x["a"] + x["b"] + x["c"] + x["d"]),
    "bonett_price_ci95_cavo": lambda x, o: o.bonett_price(x["b"], x["c"], x["n"]),
    "tost_paired_clinic_var1": lambda x, o: equivalence_p(x),
    "tost_paired_ci90_clinic_var1": lambda x, o: cluster_bounds(Clusters(*clinic()), 0.05),
    "cluster_se_miller_uncorrected": lambda x, o: clustered_error(x),
    "se_clt": lambda x, o: independent_error(x),
    "holm_sorted_first4": lambda x, o: sorted(holm(x["p"]))[:4],
    "bh_sorted_first6": lambda x, o: sorted(benjamini_hochberg(x["p"]))[:6],
    "bh1995_rejections_q05": lambda x, o: sum(p <= x["q"] for p in benjamini_hochberg(x["p"])),
    "power_mcnemar_exact_uncond_n100": lambda x, o: exact_power(x["p10"], x["p01"], x["n"], sides=2),
    "power_mcnemar_exact_size_n100": lambda x, o: exact_power(0.5, 0.5, x["discordant"], sides=2),
    "power_mcnemar_exact_one_sided_n100": lambda x, o: exact_power(x["p10"], x["p01"], x["n"]),
    "power_mcnemar_approx_n500_two": lambda x, o: planned_power(x, sides=2),
    "power_mcnemar_approx_n500_one": lambda x, o: planned_power(x, sides=1),
    "samplesize_connor_05_45": lambda x, o: items_needed(x["p10"], x["p01"], power=x["power"], sides=2),
    "samplesize_mess_normal_paid.1_psi2": lambda x, o: items_needed(x["paid"] * x["psi"], x["paid"], sides=2),
    "trtllm_theta_mmlu4096": lambda x, o: o.theta(x["n"], x["sigma"], x["alpha"], x["beta"]),
    "trtllm_threshold_gsm8k_drop": lambda x, o: o.allowed_drop(x["n"], x["sigma"], x["alpha"]),
    "miller_sample_size": lambda x, o: items_to_prove(x["omega2"], x["delta"], alpha=x["alpha"] / 2, power=x["power"]),
    "wilson_81_263": lambda x, o: wilson_interval(x["x"], x["n"], 0.95),
    "newcombe_unpaired_5_56_0_29": unpaired,
    "kl_2pt": lambda x, o: kl(np.log(x["p"]), np.log(x["q"])),
    "kl_softmax4": lambda x, o: kl(x["logits_p"], x["logits_q"]),
    "kl_top2_lumped_lower_bound": lambda x, o: o.kl_of_top(x["logits_p"], x["logits_q"], x["k"]),
    "bayes_prob_regress_7_1": lambda x, o: bayes(x),
    "pass_at_k_10_3_5": lambda x, o: o.pass_at_k(x["n"], x["c"], x["k"]),
    "evalue_beta_mixture_45_25": lambda x, o: o.beta_mixture_e(x["b"], x["c"]),
    "confseq_betting_cs_null400": lambda x, o: o.betting_sequence(pattern(x), x["alpha"]),
    "confseq_betting_cs_drop800": lambda x, o: o.betting_sequence(pattern(x), x["alpha"]),
    "confseq_hedged_cs_drop800": lambda x, o: o.betting_sequence(pattern(x), x["alpha"], running=True),
    "confseq_betting_mart_theta1_m.5": lambda x, o: o.wealth(
        pattern(x), np.array([x["m"]]), o.predictable_bets(pattern(x), x["alpha"])
    )[0][0, -1],
    "confseq_betting_ci_drop800": lambda x, o: o.betting_sequence(
        pattern(x), bets=o.predictable_bets(pattern(x), x["alpha"], planned=800), largest=1.0, running=True
    ),
    "confseq_bernoulli_ci_80_of_120": lambda x, o: o.bernoulli_sequence(
        x["num_successes"], x["num_trials"], x["alpha"], x["t_opt"]
    ),
    "otava_single_series": changes,
    "otava_single_series_orig": changes,
    "otava_edivisive_two_cps": changes,
}

needs_the_file = pytest.mark.skipif(not CASES, reason=f"no {REFERENCE.name}: it lies outside the repository")


@needs_the_file
def test_no_case_of_the_file_is_left_out():
    assert set(CASES) == set(REPRODUCED)


@needs_the_file
@pytest.mark.parametrize("name", REPRODUCED)
def test_the_known_answer(name, oracles):
    case = CASES[name]
    found = REPRODUCED[name](case["inputs"], oracles)
    assert np.shape(found) == np.shape(case["expected"])
    assert found == pytest.approx(case["expected"], abs=case["tolerance"], rel=0)


@pytest.mark.parametrize(
    ("n", "found", "allowed"),
    [(32, 31.080936, 20.560670), (1024, 5.494385, 3.634647), (4096, 2.747193, 1.817324), (14042, 1.483729, 0.981517)],
)
def test_the_published_table_of_the_unpaired_rule_of_sigma_fifty(oracles, n, found, allowed):
    """What such a gate finds with power .8, and the drop that it allows, in points: on 1,024 items 3.6."""
    assert oracles.theta(n, 50, 0.05, 0.2) == pytest.approx(found, abs=5e-7)
    assert oracles.allowed_drop(n, 50, 0.05) == pytest.approx(allowed, abs=5e-7)


@pytest.mark.parametrize(("lost", "gained", "n"), [(6, 16, 161), (41, 17, 1319), (209, 152, 1319), (361, 241, 12032)])
def test_our_bounds_lie_where_the_intervals_that_we_do_not_use_lie(oracles, lost, gained, n):
    """All are right to the order of one item, and Tango's is the one found without its closed form."""
    ours = np.array([tango_lower(lost, gained, n, 0.025), tango_upper(lost, gained, n, 0.025)])
    for other in (oracles.wald_paired, oracles.agresti_min, oracles.bonett_price):
        assert np.abs(ours - other(lost, gained, n)).max() * n < 1.25, other.__name__
    assert ours == pytest.approx(oracles.tango_interval_numeric(lost, gained, n), abs=1e-6)


def process_of(lost, gained, n):
    """Our processes after one look at these items."""
    process = Sequential()
    process.add([1] * lost + [-1] * gained + [0] * (n - lost - gained))
    return process


def e_of(lost, gained, n=None):
    """Our e-value against "no drop"."""
    return exp(process_of(lost, gained, n or lost + gained).above(0.0)[-1])


def test_our_bets_spread_evenly_are_the_mixture_over_a_uniform_prior(oracles, monkeypatch):
    """The share of losses q and the bet lambda are one: q = (1 + lambda) / 2."""
    monkeypatch.setattr(sequential, "BETS", (np.arange(20_000) + 0.5) / 10_000 - 1)
    assert e_of(45, 25) == pytest.approx(oracles.beta_mixture_e(45, 25), rel=1e-9)


@pytest.mark.parametrize("values", [NULL, DROP], ids=["no drop", "drop"])
def test_our_processes_draw_the_line_where_a_published_confidence_sequence_does(oracles, values):
    """Other bets, the same items: the ends differ by less than a third of the width, and both say the same of .5.

    Theirs bounds the mean of (1 + D) / 2 at half of alpha each way.
    """
    lost, gained, n = values.count(1), values.count(0), len(values)
    theirs = oracles.betting_sequence(np.array(values))
    ours = [(1 + bound) / 2 for bound in process_of(lost, gained, n).bounds(0.025)]
    assert ours == pytest.approx(theirs, abs=(theirs[1] - theirs[0]) / 3)
    assert (ours[0] > 0.5) == (theirs[0] > 0.5) == (values is DROP)
    capital = oracles.wealth(values, np.array([0.5]), oracles.predictable_bets(np.array(values)))[0][0, -1]
    assert (e_of(lost, gained, n) >= 20) == (capital >= 20) == (values is DROP)


def test_the_share_of_losses_among_flips_is_above_one_half_by_both_time_uniform_methods(oracles):
    assert oracles.bernoulli_sequence(80, 120, 0.05, 100)[0] > 0.5 and e_of(80, 40) > 20
    assert oracles.bernoulli_sequence(66, 120, 0.05, 100)[0] < 0.5 and e_of(66, 54) < 20


def test_one_of_one_is_the_mean_that_repeats_are_averaged_to(oracles):
    assert oracles.pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert measure([0.3], [0.0]).drop == pytest.approx(0.3)
