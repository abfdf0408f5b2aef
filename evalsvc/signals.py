"""Signals sharper than right or wrong, by suite. They are never a verdict: they ask for more samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np

from evalsvc.ordering import cluster_label
from evalsvc.policy import Policy
from evalsvc.row import Row, format_p
from evalsvc.store.records import Choices, Pair
from evalsvc.verdict.power import items_needed
from evalsvc.verdict.secondary import choice_signals

POWER = 0.8
_UNITS = {"gold_margin": "nats", "brier": "", "gold_probability": ""}


@dataclass(frozen=True, kw_only=True)
class SuiteSignal:
    """One signal of one suite; a positive mean is worse in the candidate.

    Attributes:
        name: `gold_margin`, `brier` or `gold_probability` (`verdict.secondary`).
        n: Items whose choices are known in both arms.
        mean: Mean over them.
        p: Two-sided, by sign-flip.
    """

    suite: str
    name: str
    n: int
    mean: float
    p: float

    @property
    def in_words(self) -> str:
        """The signal with its size and p."""
        size = f"{abs(self.mean):.3g} {_UNITS[self.name]}".strip()
        way = "worse" if self.mean > 0 else "better"
        return (
            f"{self.name} of suite {self.suite} {way} by {size} over {self.n:,} items (p {format_p(self.p, sign=True)})"
        )


def signals(
    counted: Mapping[str, Sequence[Pair]], baseline: Mapping[int, Choices], candidate: Mapping[int, Choices]
) -> tuple[SuiteSignal, ...]:
    """Signals of every suite that has log-likelihoods of choices, the right one known.

    Args:
        counted: By suite its items, each once.
        baseline: By sample the choices' log-likelihoods, as `store.beside.read_choices` reads them.
        candidate: As `baseline`.
    """
    found = []
    for suite, pairs in counted.items():
        both = [
            (ours, theirs, cluster_label(suite, pair.family, pair.cluster))
            for pair in pairs
            if pair.baseline is not None
            and pair.candidate is not None
            and (ours := baseline.get(pair.baseline.sample_id)) is not None
            and (theirs := candidate.get(pair.candidate.sample_id)) is not None
            and (ours.gold, len(ours.logprobs)) == (theirs.gold, len(theirs.logprobs))
        ]
        measured = choice_signals(
            [ours.logprobs for ours, _, _ in both],
            [theirs.logprobs for _, theirs, _ in both],
            [ours.gold for ours, _, _ in both],
            np.random.default_rng(len(both)),
            [label for _, _, label in both],
        )
        found += [SuiteSignal(suite=suite, **vars(signal)) for signal in measured]
    return tuple(found)


def alarms(found: Sequence[SuiteSignal], policy: Policy) -> list[SuiteSignal]:
    """Those that the policy listens to, where they are worse at its level."""
    rule = policy.more_sampling
    if rule is None:
        return []
    return [one for one in found if one.name in rule.signals and one.mean > 0 and one.p < rule.alpha]


def more_sampling_notes(
    found: Sequence[SuiteSignal], suites: Mapping[str, Row], policy: Policy, word: str
) -> list[str]:
    """What asks for more samples beside a PASS or an INCONCLUSIVE, and how many would decide.

    Args:
        found: All signals.
        suites: The suites' rows.
        policy: Which signals ask, and from which p on.
        word: The decision's.
    """
    if word not in ("PASS", "INCONCLUSIVE"):
        return []
    return [
        f"more samples are asked for: {alarm.in_words}{_how_many(suites.get(alarm.suite), policy)}"
        for alarm in alarms(found, policy)
    ]


def _how_many(row: Row | None, policy: Policy) -> str:
    if row is None or row.margin is None or row.discordance is None:
        return ""
    if row.more_items:
        return f"; about {row.more_items:,} more items of it would decide"
    flips = max(row.discordance, row.margin)
    if not flips:
        return ""
    needed = items_needed((flips + row.margin) / 2, (flips - row.margin) / 2, alpha=policy.alpha, power=POWER)
    if not isfinite(needed):
        return ""
    more = ceil(needed) - row.n
    found = f"a drop of its margin in {100 * POWER:.0f} % of cases"
    return f"; {more:,} more items of it would find {found}" if more > 0 else f"; its items would find {found}"
