"""What users of other tools reported of their statistics: the right value here, and the kind of each fault."""

import json
from math import isnan, nan

import numpy as np
import pytest

from evalsvc.cli.main import main
from evalsvc.errors import EvidenceError
from evalsvc.evidence import check_aa
from evalsvc.gate import decide_gate, judge_counts
from evalsvc.policy import Policy
from evalsvc.verdict.attribution import attribute
from evalsvc.verdict.audit import audit_published, unpaired_p
from evalsvc.verdict.corpus import measure_corpus
from evalsvc.verdict.families import benjamini_hochberg, holm, max_drop_p
from evalsvc.verdict.history import change_points
from evalsvc.verdict.measure import measure, measure_counts
from evalsvc.verdict.paired import mcnemar_exact, smallest_provable_margin
from evalsvc.verdict.power import items_to_prove
from evalsvc.verdict.resample import mean_bounds, sign_flip_p
from evalsvc.verdict.secondary import choice_signals, spread
from tests.evalsvc import by_hand
from tests.evalsvc.by_hand import arm


def side(value):
    return by_hand.side(value, error_class="HTTP 402" if value is None else None)


def pairs(values, labels=None):
    return [
        by_hand.pair(side(base), side(cand), item_id=f"i{i}", cluster=labels[i] if labels else "")
        for i, (base, cand) in enumerate(values)
    ]


def gate(values, labels=None, **policy):
    given = {"name": "p", "margin_points": 25.0, "guard_points": 50.0, **policy}
    return decide_gate(arm("base"), arm("fp8", kv="fp8"), pairs(values, labels), Policy(**given))


def table(both, lost, gained, neither):
    return [(1.0, 1.0)] * both + [(1.0, 0.0)] * lost + [(0.0, 1.0)] * gained + [(0.0, 0.0)] * neither


def standard_json(document):
    """The document as every JSON reader takes it: NaN and Infinity are no JSON."""
    return json.dumps(document, allow_nan=False)


class TestNoDiscordantPair:
    """huggingface/evaluate 795: two runs that agree on every question end in a division by zero."""

    def test_p_is_one_and_the_difference_nothing(self):
        found = measure_counts(0, 0, 10, baseline_right=7)
        assert (found.p, found.p_gain, found.drop, found.discordance) == (1.0, 1.0, 0.0, 0.0)
        assert found.interval[0] < 0 < found.interval[1] and found.newcombe[0] < 0 < found.newcombe[1]

    def test_the_gate_passes_at_a_margin_that_ten_pairs_can_prove_and_says_so_at_a_smaller_one(self):
        """Agreement on ten items bounds the drop at 21.3 points: no evidence of a difference is no proof of none."""
        assert 100 * smallest_provable_margin(10) == pytest.approx(21.3, abs=0.05)
        assert gate(table(7, 0, 0, 3)).verdict == "PASS"
        small = gate(table(7, 0, 0, 3), margin_points=1.0)
        assert small.verdict == "INCONCLUSIVE" and small.exit_code == 3
        standard_json(small.to_json())

    @pytest.mark.parametrize(
        ("counts", "margin", "code"), [((0, 0, 10), 25, 0), ((0, 0, 10), 1, 3), ((12, 2, 200), 1, 1), ((0, 0, 0), 1, 4)]
    )
    def test_the_command_exits_with_what_the_counts_can_carry(self, capsys, counts, margin, code):
        flags = [*zip(("--lost", "--gained", "--items"), counts, strict=True), ("--margin", margin)]
        with pytest.raises(SystemExit) as left:
            main(["verdict", *(str(part) for flag in flags for part in flag), "--json"])
        assert (left.value.code or 0) == code
        document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert document["exit_code"] == code
        if counts[2]:
            assert document["p"] == mcnemar_exact(*counts[:2])
        else:
            assert "no samples" in document["error"]["message"]

    def test_no_pair_at_all_is_not_comparable(self):
        found = gate([])
        assert (found.verdict, found.exit_code) == ("INVALID", 4) and "no samples" in found.sentence
        assert all(row.p is None and row.drop is None for row in found.rows)
        with pytest.raises(EvidenceError, match="no samples"):
            judge_counts(0, 0, 0, Policy(name="p"))
        for measured in (lambda: measure([], []), lambda: measure_counts(0, 0, 0)):
            with pytest.raises(ValueError):
                measured()

    @pytest.mark.parametrize("labels", [None, ["a"] * 10, [f"p{i % 3}" for i in range(10)]])
    @pytest.mark.parametrize("value", [0, 0.5, 1])
    def test_the_kind_nothing_differs_in_any_measure(self, value, labels):
        """Variances and totals of 0 divide nothing, and prove nothing beyond what so few items can."""
        found = measure([value] * 10, [value] * 10, labels)
        assert (found.p, found.p_gain, found.drop) == (1.0, 1.0, 0.0)
        assert 0.2 < found.upper <= 1 and found.interval[0] < 0 < found.interval[1]

    def test_the_kind_nothing_differs_in_any_test(self):
        rng, same = np.random.default_rng(0), np.ones(20)
        assert sign_flip_p(np.zeros(20), rng) == 1.0
        texts = np.stack([-same, same], axis=1)
        perplexity = measure_corpus("perplexity", texts, texts, better="lower")
        assert (perplexity.p, perplexity.p_gain, perplexity.drop) == (1.0, 1.0, 0.0)
        assert max_drop_p({"t": np.zeros((20, 2))}, rng) == {"t/0": 1.0, "t/1": 1.0}
        effects = attribute({frozenset(): same, frozenset([("decode.kv", "fp8")]): same}, [""] * 20, rng)
        assert (effects[0].drop, effects[0].p, effects[0].p_adjusted) == (0.0, 1.0, 1.0)
        assert effects[0].lower < 0 < effects[0].upper
        assert change_points([0.0] * 20, rng) == []

    @pytest.mark.parametrize("right", [0, 10])
    def test_the_kind_two_published_scores_without_variance(self, right):
        assert unpaired_p(right, 10, right, 10) == 1.0
        assert audit_published(10, right / 10, right / 10, 0.01).at[0][2] == 1.0

    def test_the_kind_all_against_nothing_is_no_certainty(self):
        """One item of one right in one arm only: the observed variances are 0, and p was 0."""
        assert unpaired_p(1, 1, 0, 1) == pytest.approx(0.157, abs=1e-3)
        assert 0 < unpaired_p(20, 20, 0, 20) < 1e-6

    def test_the_kind_planning_from_a_pilot_without_flips(self):
        """No flip in a pilot needs some items all the same: as many as prove the margin when none flips."""
        items = items_to_prove(0.0, 0.01)
        assert smallest_provable_margin(round(items)) == pytest.approx(0.01, rel=0.01)


class TestPairedNotUnpaired:
    """lm-evaluation-harness 3831: an unpaired z test misses a regression on the same questions."""

    COUNTS = (150, 2, 12, 36)

    def test_the_paired_exact_p_is_reported_and_the_mid_p_only_by_its_name(self):
        found = measure_counts(12, 2, 200, baseline_right=162)
        assert 2 * found.p == pytest.approx(0.0129, abs=5e-5)
        assert 2 * found.p_mid == pytest.approx(0.0074, abs=5e-5)
        assert unpaired_p(152, 200, 162, 200) == pytest.approx(0.224, abs=1e-3)

    def test_the_gate_is_red_where_the_unpaired_test_saw_nothing(self):
        both, gained, lost, neither = self.COUNTS
        found = gate(table(both, lost, gained, neither), margin_points=1.0)
        assert (found.verdict, found.exit_code) == ("REGRESSED", 1)
        assert "exact p = .0065" in found.sentence and "mid" not in found.sentence
        document = found.to_json()["rows"][0]
        assert (document["p"], document["p_mid"]) == pytest.approx((0.00647, 0.00369), abs=5e-6)

    def test_the_kind_no_test_of_the_service_forgets_the_pairs(self):
        """The same two accuracies, with few and with many flips: each p tells them apart."""
        few, many = measure_counts(10, 0, 200), measure_counts(60, 50, 200)
        assert few.drop == many.drop and few.p < 0.001 < 0.1 < many.p
        again = check_aa(pairs(table(100, 10, 0, 90)))
        assert again.p < 0.01 and again.failed
        assert not check_aa(pairs(table(40, 60, 50, 50))).failed


class TestClusters:
    """inspect_ai 1251: questions share passages, and the error of the mean takes them for independent."""

    LABELS = tuple(f"p{i // 25}" for i in range(100))
    SCORES = tuple(0 if label == "p2" else 1 for label in LABELS)

    def test_the_error_of_an_accuracy_over_four_passages(self):
        """As the drop to an arm that gets nothing right: .25 with the factor 4/3, .2165 without, .0435 is naive."""
        found = measure(self.SCORES, [0] * 100, self.LABELS)
        assert (found.drop, found.clusters) == (0.75, 4)
        assert found.cluster_error == pytest.approx(0.25)
        assert found.cluster_error * np.sqrt(3 / 4) == pytest.approx(0.2165, abs=5e-5)
        alone = measure([score / 2 for score in self.SCORES], [0] * 100)
        assert 2 * alone.cluster_error == pytest.approx(0.0435, abs=5e-5)

    def test_the_gate_uses_the_clusters_and_prints_their_number(self):
        """One passage lost whole: 25 items are one event, and four passages say little of others."""
        values = [(1.0, 0.0 if label == "p2" else 1.0) for label in self.LABELS]
        alone, together = gate(values), gate(values, self.LABELS)
        assert alone.verdict == "REGRESSED" and together.verdict == "INCONCLUSIVE"
        assert "over 4 clusters" in together.sentence and "conditional on these 4" in together.sentence
        assert together.to_json()["rows"][0]["clusters"] == 4

    def test_the_kind_every_test_that_takes_labels_is_wider_with_them(self):
        rng = np.random.default_rng(1)
        drop = np.array([0.5 if label == "p2" else 0.0 for label in self.LABELS])
        assert measure(drop, np.zeros(100), self.LABELS).p > measure(drop, np.zeros(100)).p
        arms = {frozenset(): np.ones(100), frozenset([("decode.kv", "fp8")]): 1 - drop}
        (alone,), (together,) = attribute(arms, [""] * 100, rng), attribute(arms, self.LABELS, rng)
        assert together.p > 0.5 > 0.01 > alone.p and together.upper > alone.upper
        base = np.log([[0.7, 0.3]] * 100)
        cand = np.where(drop[:, None] > 0, np.log([0.6, 0.4]), base)
        for free, tied in zip(
            choice_signals(base, cand, [0] * 100, rng),
            choice_signals(base, cand, [0] * 100, rng, self.LABELS),
            strict=True,
        ):
            assert free.mean == pytest.approx(tied.mean) and free.p < 0.01 < 0.5 < tied.p
        again = check_aa(pairs([(1.0, 1.0 - d) for d in drop > 0], self.LABELS))
        assert not again.failed


class TestNoData:
    """inspect_ai 4421: no score at all is NaN in one metric and 0.0 in others."""

    def test_the_gate_has_nothing_to_evaluate_and_its_json_has_null(self):
        found = gate([])
        document = json.loads(standard_json(found.to_json()))
        pooled = document["rows"][0]
        assert (document["verdict"], document["exit_code"], pooled["n"]) == ("INVALID", 4, 0)
        assert [pooled[name] for name in ("drop_points", "p", "upper_points", "interval_points")] == [None] * 4

    def test_the_kind_without_items_nothing_is_a_number(self):
        rng, empty = np.random.default_rng(0), np.zeros(0)
        assert choice_signals([], [], [], rng) == [] and spread([]) == {}
        assert change_points([], rng) == [] and holm([]) == benjamini_hochberg([]) == []
        assert mean_bounds(empty, empty, 0.05, rng, reach=1.0)[:2] == (-np.inf, np.inf)
        unknown = attribute({frozenset(): empty, frozenset([("decode.kv", "fp8")]): empty}, [], rng)
        assert unknown[0].drop is None and unknown[0].unknown
        assert check_aa([]) is None

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    def test_the_kind_not_a_number_is_never_evidence(self):
        rng = np.random.default_rng(0)
        with pytest.raises(ValueError, match="between 0 and 1"):
            measure([nan, 1.0], [1.0, 1.0])
        with pytest.raises(ValueError, match="between 0 and 1"):
            holm([0.01, nan])
        with pytest.raises(ValueError):
            benjamini_hochberg([0.01, nan])
        for units in (5, 40):
            assert sign_flip_p(np.array([nan] + [1.0] * (units - 1)), rng) == 1.0
            assert not mean_bounds(np.array([nan] + [0.0] * (units - 1)), np.ones(units), 0.05, rng, reach=1.0)[1] <= 1
        weightless = measure_corpus("perplexity", np.zeros((5, 2)), np.ones((5, 2)) * [-1, 0], better="lower")
        assert weightless.p == weightless.p_gain == 1.0 and not weightless.upper <= 1


class TestErrorsAreNoAnswers:
    """shodh-memory 520: an outage is scored as choice 0, and every arm shows the same plausible accuracy."""

    def test_an_outage_of_both_arms_is_no_accuracy(self):
        found = gate([(None, None)] * 3)
        assert (found.verdict, found.exit_code) == ("INVALID", 4) and "no samples" in found.sentence
        family = next(row for row in found.to_json()["rows"] if row["level"] == "family")
        assert (family["n"], family["errors_baseline"], family["errors_candidate"]) == (0, 3, 3)
        assert all(row["drop_points"] is None for row in found.to_json()["rows"])

    def test_the_kind_errors_enter_no_mean_and_too_many_end_the_verdict(self):
        answered = table(60, 0, 0, 20)
        found = gate([*answered, (1.0, None)])
        assert found.rows[0].n == 80 and found.rows[0].errors_candidate == 1
        assert found.rows[0].drop == 0.0
        broken = gate([*answered, *[(1.0, None)] * 10])
        assert broken.verdict == "INVALID" and "10 of 90 samples of suite tasks have no score" in broken.sentence
        again = check_aa(pairs([(None, 1.0)] * 5))
        assert again is not None and (again.n, again.failed, again.discordance) == (0, False, None)
        assert again.left_out == ("5 of 5 items of tasks without a score in both runs",)

    def test_the_kind_an_error_that_could_change_the_verdict_takes_it_away(self):
        found = gate([*table(90, 0, 0, 0), *[(1.0, None)] * 2], margin_points=4.0, max_error_points=5.0)
        assert found.verdict == "INCONCLUSIVE" and "without an answer" in found.sentence

    def test_the_kind_a_choice_without_a_number_is_no_choice(self):
        """NaN compares with nothing, so that a largest choice is the first: none of it enters a signal."""
        rng = np.random.default_rng(0)
        assert choice_signals([[nan, nan]] * 3, [[nan, nan]] * 3, [0, 1, 0], rng) == []
        assert isnan(max([nan, 0.0])) and choice_signals([[nan, 0.0]], [[-1.0, 0.0]], [0], rng) == []
