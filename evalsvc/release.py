"""From measured rows to one word: Holm over a candidate's tests, the release rule, unanswered items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalsvc.decision import Row, format_points
from evalsvc.evidence import measure_pairs
from evalsvc.ordering import Looks
from evalsvc.policy import Policy
from evalsvc.store.records import Pair
from evalsvc.verdict.families import holm
from evalsvc.verdict.measure import Measurement
from evalsvc.verdict.rule import BEYOND_MARGIN, Verdict, decide

POOLED = ""  # key of the pooled row beside the suites' names


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A row's measurement and its verdict before unanswered items are considered."""

    measured: Measurement
    verdict: Verdict


def family_size(suites: int) -> int:
    """Tests of a release: its suites and the pooled row, which for one suite is the same test and not a second one."""
    return 1 if suites == 1 else suites + 1


def judge(
    counted: Mapping[str, list[Pair]], policy: Policy, *, worst: bool = False, looks: Looks | None = None
) -> dict[str, Judged]:
    """Measures and decides the pooled row and each suite that has items, with Holm over all of them."""
    groups = {POOLED: [pair for members in counted.values() for pair in members], **counted}
    measured: dict[str, Measurement] = {}
    for key, members in groups.items():
        found = measure_pairs(members, policy.alpha, worst=worst, looks=looks)
        if found is not None:
            measured[key] = found
    chance = {key: sum(pair.chance for pair in groups[key]) / len(groups[key]) for key in measured}
    return judge_measured(measured, policy, chance)


def judge_measured(
    measured: Mapping[str, Measurement], policy: Policy, chance: Mapping[str, float] | None = None
) -> dict[str, Judged]:
    """Decides the pooled row (under `POOLED`) and each suite, with Holm over all of them.

    Args:
        measured: By suite, and the pooled row's.
        policy: Margins and alpha.
        chance: Mean proportion that guessing gets right, for the floor rule; None leaves it out.
    """
    family = list(measured)
    if len(family) == 2:
        adjusted = {key: measured[key].p for key in family}
    else:
        adjusted = dict(zip(family, holm([measured[key].p for key in family]), strict=True))
    judged = {}
    for key, found in measured.items():
        margin = policy.margin if key == POOLED else policy.guard(key)
        guess = None if chance is None else chance[key]
        judged[key] = Judged(measured=found, verdict=decide(found, margin, p_adjusted=adjusted[key], chance=guess))
    return judged


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The release's word; `deciding` are the keys of the rows that led to it."""

    word: str
    severity: str | None = None
    reasons: Sequence[str] = ()
    notes: Sequence[str] = ()
    deciding: Sequence[str] = (POOLED,)


def release(
    rows: Mapping[str, Row],
    seen: Mapping[str, Judged],
    worst: Mapping[str, Judged],
    policy: Policy,
    faults: Sequence[str],
    same_arm: bool,
) -> Outcome:
    """Run-level faults, then REGRESSED, then a suite that can carry no verdict, then INCONCLUSIVE, then PASS."""
    if faults:
        return Outcome(word="INVALID", reasons=faults)
    words = {key: judged.verdict.word for key, judged in seen.items()}
    word = release_word(words, policy)
    guards = [key for key in words if key != POOLED and rows[key].verdict == "INCONCLUSIVE"]
    notes = [f"guard not proven: {rows[key].label} ({format_points(rows[key].upper or 1.0)})" for key in guards]
    imputed = release_word({key: judged.verdict.word for key, judged in worst.items()}, policy)
    if word != "INVALID" and imputed != word:
        reason = f"items without an answer could change the verdict from {word} to {imputed}"
        return Outcome(word="INCONCLUSIVE", reasons=[reason], notes=notes)
    deciding = [key for key, found in words.items() if found == word] or [POOLED]
    if word == "PASS":
        deciding = [POOLED]
    if word == "REGRESSED" and same_arm:
        reason = "an arm differs from itself by more than chance at alpha: noise of the instrument, no regression"
        return Outcome(word="INCONCLUSIVE", reasons=[reason], notes=notes, deciding=deciding)
    reasons = [f"{rows[key].label}: {rows[key].note or rows[key].numbers(policy.alpha)}" for key in deciding]
    severities = {rows[key].severity for key in deciding}
    severity = BEYOND_MARGIN if BEYOND_MARGIN in severities else next(iter(severities - {None}), None)
    return Outcome(
        word=word, severity=severity if word == "REGRESSED" else None, reasons=reasons, notes=notes, deciding=deciding
    )


def release_word(words: Mapping[str, str], policy: Policy) -> str:
    """The release's word from those of the pooled row (under `POOLED`) and the suites."""
    suites = [word for key, word in words.items() if key != POOLED]
    everything = [words[POOLED], *suites]
    if "REGRESSED" in everything:
        return "REGRESSED"
    if "INVALID" in everything:
        return "INVALID"
    if words[POOLED] == "INCONCLUSIVE" or (policy.guards == "strict" and "INCONCLUSIVE" in suites):
        return "INCONCLUSIVE"
    return "PASS"
