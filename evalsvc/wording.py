"""A decision in words: its sentence, and notes on what changed nothing."""

from collections.abc import Mapping, Sequence

from evalsvc.claims import Key
from evalsvc.decision import Stop
from evalsvc.evidence import in_order
from evalsvc.release import Outcome
from evalsvc.row import Row, format_p
from evalsvc.store.records import ArmRecord, Pair

_NAMED = 5  # further rows that a sentence names; all of them stand in its table


def decision_notes(rows: Sequence[Row], candidate: ArmRecord, *, verified: bool, nothing_differs: bool) -> list[str]:
    """What a reader should know beside the verdict.

    Args:
        rows: Descriptions of families.
        candidate: Whose planted faults are named.
        verified: Whether every pair's rendered tokens are known to be equal.
        nothing_differs: Two arms without a differing factor, which are no A/A.
    """
    blind = [row.label for row in rows if row.blind]
    return [
        *_flags(rows),
        *([f"blind to every differing factor, left out: {', '.join(blind)}"] if blind else []),
        *([] if verified else ["pairing not verified: rendered tokens are unknown or differ for some items"]),
        *([f"candidate is injected: {injected_text(candidate)}"] if candidate.injected else []),
        *([_nothing_differs(candidate)] if nothing_differs else []),
    ]


def _nothing_differs(candidate: ArmRecord) -> str:
    if not any(candidate.stages.values()):
        return "nobody said which formats these arms hold, so nothing says which factors were met"
    return "no factor differs between these arms, though their fingerprints do"


def unseen_losses(pooled: Row | None, alpha: float) -> list[str]:
    """What a PASS over few clusters cannot rule out, where it is likelier than alpha.

    A candidate that loses each whole cluster with the margin's probability has lost the margin, and `(1 - margin)^C` of
    all runs with C clusters show none of it.
    """
    if pooled is None or pooled.verdict != "PASS" or pooled.clusters is None or pooled.margin is None:
        return []
    unseen = (1 - pooled.margin) ** pooled.clusters
    if unseen <= alpha:
        return []
    return [
        f"a drop of {pooled.limit} points that is made of whole clusters lost would show in none of "
        f"{pooled.clusters} clusters in {100 * unseen:.0f} % of runs: this PASS does not rule it out"
    ]


def unjudged_prompts(pairs: Sequence[Pair], met_by_them_alone: Sequence[str] = ()) -> list[str]:
    """What a verdict about failure modes does not say of prompts that have nothing else to verify.

    Args:
        pairs: The prompts.
        met_by_them_alone: Differing factors that no item with something to verify met.
    """
    if not pairs:
        return []
    suites = ", ".join(sorted({pair.suite for pair in pairs}))
    return [
        f"{len(pairs):,} prompt{'s' * (len(pairs) != 1)} of {suites} without `check` or `constraints`: only the "
        "failure modes that rules name are judged, not whether answers are right"
        + (f"; {', '.join(met_by_them_alone)} met by these alone" if met_by_them_alone else "")
    ]


def _flags(rows: Sequence[Row]) -> list[str]:
    """Families whose drop is real inside a suite whose drop is, by suite."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.flagged and row.short_p is not None:
            found.setdefault(row.suite, []).append(f"{row.family} (p {format_p(row.short_p, sign=True)})")
    return [
        f"lost inside suite {suite}, after Benjamini-Hochberg: {', '.join(names)}" for suite, names in found.items()
    ]


def injected_text(arm: ArmRecord) -> str:
    """An arm's planted faults."""
    return ", ".join(f"{name} {value}" for name, value in arm.injected.items())


def _further(reasons: Sequence[str], labels: Sequence[str]) -> str:
    """What a sentence about the first reason says of the others: the rows by name, else how many reasons there are."""
    named = [label for label in labels if any(reason.startswith(f"{label}: ") for reason in reasons[1:])]
    if not named:
        return f" (the first of {len(reasons)} reasons)" if len(reasons) > 1 else ""
    more = len(reasons) - 1 - len(named[:_NAMED])
    return f"; likewise {', '.join(named[:_NAMED])}" + (f" and {more} more" if more else "")


def decision_sentence(
    outcome: Outcome, rows: Mapping[Key, Row], candidate: ArmRecord, same_arm: bool, stop: Stop | None
) -> str:
    """Word, severity and the first reason, with what would decide or what a PASS covers."""
    head = outcome.word
    if outcome.severity:
        head += f" ({outcome.severity})"
    deciding = [rows[key] for key in outcome.deciding]
    if outcome.word == "PASS" and any(row.drop_detected for row in deciding):
        head += " (drop detected: real, but inside the margin)"
    if candidate.injected:
        head += " [injected]"
    if same_arm:
        head += " [A/A: one arm in two runs]"
    body = outcome.reasons[0] if outcome.reasons else ""
    body += _further(outcome.reasons, [row.label for row in deciding])
    if outcome.word == "INCONCLUSIVE":
        more = next((row.more_items for row in deciding if row.more_items), None)
        if more:
            body += f"; about {more:,} more items would decide"
    met = in_order({factor for row in deciding for factor in row.factors_met})
    if outcome.word == "PASS" and met:
        body += f"; factors met: {', '.join(met)}"
    if stop and stop.items < stop.planned and outcome.word == stop.word:
        body += f"; decided after {stop.items:,} of {stop.planned:,} items"
    return f"{head}: {body}"
