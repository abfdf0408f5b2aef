"""A policy applied to one candidate's pairs: rows, release rule, decision. Reads records; never the engine or torch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evalsvc.budgets import check_limits
from evalsvc.claims import POOLED, make_claims, refuse_rules_about_nothing
from evalsvc.decision import AAResult, ArmFace, Decision, combine_exit_codes
from evalsvc.errors import ConfigError, EvidenceError
from evalsvc.evidence import (
    average_repeats,
    check_aa,
    counted_by_suite,
    counted_of,
    differing_factors,
    find_faults,
    in_order,
    pairing_verified,
    with_metric,
    with_mode,
)
from evalsvc.looking import look_back
from evalsvc.policy import Policy
from evalsvc.reading import up_to
from evalsvc.release import judge, release, with_limits
from evalsvc.row import Row, format_margin, format_points
from evalsvc.rows import describe_families, guarded_families, in_table_order, verdict_row, with_numbers, with_verdict
from evalsvc.signals import more_sampling_notes, signals
from evalsvc.store.records import ArmRecord, Beside, Pair
from evalsvc.verdict.measure import measure_counts
from evalsvc.verdict.paired import smallest_provable_margin
from evalsvc.verdict.rule import decide
from evalsvc.wording import decision_notes, decision_sentence, injected_text, unjudged_prompts, unseen_losses

__all__ = ["AAResult", "Decision", "check_aa", "combine_exit_codes", "decide_gate", "judge_counts", "smallest_provable"]


def smallest_provable(n_by_suite: Mapping[str, int], alpha: float = 0.05) -> dict[str, float]:
    """The margins that a run of this size can prove at best, when no item flips: per suite, and under `pooled`.

    Args:
        n_by_suite: Items of each suite, each item once.
        alpha: Error rate of each direction.

    Returns:
        Proportions.
    """
    sizes = {**n_by_suite, "pooled": sum(n_by_suite.values())}
    return {name: smallest_provable_margin(n, alpha) for name, n in sizes.items()}


def provable_sentence(n_by_suite: Mapping[str, int], policy: Policy) -> str:
    """What a run of this size can prove, and which margin of the policy it can therefore never pass."""
    if not n_by_suite:
        return "no item carries a verdict: no prompt has a `check` or `constraints`"
    best = smallest_provable(n_by_suite, policy.alpha)
    margins = {**{suite: policy.guard(suite) for suite in n_by_suite}, "pooled": policy.margin}
    parts = [
        f"{name} {format_points(best[name])} (margin {format_margin(margins[name])}"
        + (", out of reach)" if best[name] > margins[name] else ")")
        for name in ("pooled", *n_by_suite)
    ]
    return "smallest provable margin, in points, if no item flips: " + ", ".join(parts)


def decide_gate(
    baseline: ArmRecord,
    candidate: ArmRecord,
    pairs: Sequence[Pair],
    policy: Policy,
    aa: AAResult | None = None,
    aa_faults: Sequence[str] = (),
    beside: tuple[Beside, Beside] = (Beside(), Beside()),
) -> Decision:
    """Decides about one candidate.

    The family of tests is this candidate's suites and its pooled row, and Holm runs over it. (Holm over the suites
    alone, beside an uncorrected pooled test, raises a false alarm in up to 7.5 % of undamaged candidates, simulated.)
    Several candidates are several claims, each with its own family: nothing is corrected across them.

    Args:
        baseline: An arm that is not injected.
        candidate: Another arm, or the same one in another run (then the decision is an A/A).
        pairs: All their items, both stages' rows, as `store.queries.pairs` returns them.
        policy: Margins and rules.
        aa: The baseline's (or its run's baseline's) check against itself, where one was run.
        aa_faults: Why that check cannot be used; each is a fault of the decision too.
        beside: What else is known of the baseline's and the candidate's samples, for signals and budgets.

    Raises:
        ConfigError: Baseline and candidate are the same arm, the baseline has planted faults, or the policy guards a
            suite that no arm answered.
    """
    _refuse(baseline, candidate, pairs, policy)
    same_arm = baseline.fingerprint == candidate.fingerprint
    if same_arm:
        aa = check_aa(pairs, candidate.address, policy, of=baseline.address)
    differing = differing_factors(baseline, candidate)
    averaged = average_repeats(pairs)
    choices = beside[0].choices, beside[1].choices
    looks, stop = (None, None) if same_arm else look_back(candidate, averaged, differing, policy, choices)
    faults = [*find_faults(baseline, candidate, pairs, policy, looks), *aa_faults]
    if looks is not None:
        pairs, averaged = up_to(pairs, looks), up_to(averaged, looks)
    bare = with_mode(averaged, policy)
    pairs, averaged = [*with_metric(pairs), *with_mode(pairs, policy)], with_metric(averaged)
    rows = describe_families(averaged, differing, policy, looks)
    bare_rows = describe_families(bare, differing, policy, looks)
    counted, modes_of = counted_by_suite(averaged, differing), counted_of(bare, differing)
    met, met_by_modes = _factors_met(rows), _factors_met(bare_rows)
    uncovered = tuple(factor for factor in differing if factor not in met | met_by_modes)
    faults += _run_faults(uncovered if pairs else (), aa)
    claims = make_claims(counted, policy, modes_of)
    seen = judge(claims, policy, looks=looks)
    answered = {key: judged.measured.n for key, judged in seen.items()}
    complete = all(answered.get(claim.key, 0) == len(claim.pairs) for claim in claims)
    worst = seen if complete else judge(claims, policy, worst=True, looks=looks)
    rows = guarded_families(rows, claims, seen, worst, bool(faults))
    verdicts = {
        claim.key: verdict_row(claim, [*rows, *(bare_rows if claim.about_mode else ())], seen, worst, bool(faults))
        for claim in claims
        if claim.margin is not None
    }
    limits = () if same_arm or not pairs else check_limits(baseline, candidate, beside, counted, policy)
    outcome = with_limits(release(verdicts, seen, worst, policy, faults, same_arm), limits)
    found = signals(counted, *choices)
    verified = pairing_verified(pairs)
    asks = more_sampling_notes(
        found, {k.suite: r for k, r in verdicts.items() if r.scope == "suite"}, policy, outcome.word
    )
    plain = not differing and not same_arm
    unseen = [] if outcome.word != "PASS" else unseen_losses(verdicts.get(POOLED), policy.alpha)
    return Decision(
        verdict=outcome.word,
        severity=outcome.severity,
        sentence=decision_sentence(outcome, verdicts, candidate, same_arm, stop),
        reasons=tuple(outcome.reasons),
        notes=(
            *outcome.notes,
            *asks,
            *unseen,
            *unjudged_prompts(bare, in_order(met_by_modes - met) if rows else ()),
            *decision_notes(rows, candidate, verified=verified, nothing_differs=plain),
        ),
        policy=policy.model_dump(mode="json", exclude_none=True),
        policy_sha256=policy.sha256,
        baseline=ArmFace.of(baseline),
        candidate=ArmFace.of(candidate),
        same_arm=same_arm,
        differing_factors=differing,
        uncovered_factors=uncovered,
        pairing_verified=verified,
        aa=aa,
        stop=stop,
        limits=limits,
        signals=found,
        probe=candidate.probe or {},
        rows=tuple(in_table_order({k: r for k, r in verdicts.items() if r.scope != "family"}, rows)),
    )


def _factors_met(rows: Sequence[Row]) -> set[str]:
    return {factor for row in rows if row.counted and not row.blind for factor in row.factors_met}


def _run_faults(uncovered: Sequence[str], aa: AAResult | None) -> Iterator[str]:
    if uncovered:
        yield f"no suite met the differing factor{'s' * (len(uncovered) > 1)} {', '.join(uncovered)}"
    if aa is not None and aa.failed:
        of = aa.of or "the baseline"
        yield f"the A/A check failed: {of} against itself lost {aa.lost} and gained {aa.gained} of {aa.n:,}"


def judge_counts(lost: int, gained: int, items: int, policy: Policy) -> Row:
    """Applies the policy's pooled margin to counts alone, of independent items.

    Raises:
        EvidenceError: There are no items.
        ConfigError: Counts that no set of items can have.
    """
    if items == 0:
        raise EvidenceError("no samples: 0 items carry no verdict")
    try:
        measured = measure_counts(lost, gained, items, alpha=policy.alpha)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    counts: dict[str, Any] = {"items": items, "n": items, "lost": lost, "gained": gained}
    blank = Row(scope="pooled", baseline_right=None, errors_baseline=0, errors_candidate=0, **counts)
    return with_verdict(with_numbers(blank, measured), decide(measured, policy.margin))


def _refuse(baseline: ArmRecord, candidate: ArmRecord, pairs: Sequence[Pair], policy: Policy) -> None:
    if baseline.address == candidate.address:
        raise ConfigError(f"{baseline.address} is baseline and candidate; name two arms")
    if baseline.injected:
        raise ConfigError(f"{baseline.address} has planted faults ({injected_text(baseline)}) and cannot be a baseline")
    refuse_rules_about_nothing(pairs, policy)
