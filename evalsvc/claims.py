"""What is put to the test about a candidate: all items pooled, each suite, and what a policy's rules single out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evalsvc.errors import ConfigError
from evalsvc.limits import Margin
from evalsvc.modes import FREE, PREFIX
from evalsvc.policy import Policy
from evalsvc.reading import OWN, Reading, holds, own_reading
from evalsvc.store.records import Pair, Side


class Key(NamedTuple):
    """Which row: all empty for the pooled one; `metric` only where it is not the items' own 0/1 metric."""

    suite: str = ""
    family: str = ""
    metric: str = ""


POOLED = Key()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row that is tested. All but families without a rule carry a verdict.

    Attributes:
        key: Which row.
        pairs: Its items, each once.
        reading: What is read of them.
        margin: Accepted drop: a proportion, or in the metric's own units; None for a family without a rule.
        floor: Least accuracy of the candidate, a proportion.
    """

    key: Key
    pairs: Sequence[Pair]
    reading: Reading = OWN
    margin: float | None
    floor: float | None = None

    @property
    def scope(self) -> str:
        """`pooled`, `suite`, `metric` or `family`."""
        if self.key == POOLED:
            return "pooled"
        return "metric" if self.key.metric else "family" if self.key.family else "suite"

    @property
    def about_mode(self) -> bool:
        """Whether it is about a failure mode."""
        return self.key.metric.startswith((PREFIX, FREE))


def make_claims(
    counted: Mapping[str, Sequence[Pair]], policy: Policy, modes_of: Mapping[str, Sequence[Pair]] | None = None
) -> list[Claim]:
    """The pooled row, suites, metrics and guarded families.

    Args:
        counted: By suite the items that count, each once.
        policy: Margins and rules.
        modes_of: By suite the items without a metric of their own of which rules gate failure modes.
    """
    modes_of = modes_of or {}
    own = {
        suite: [pair for pair in pairs if not own_reading(pair, policy).in_units] for suite, pairs in counted.items()
    }
    suites = [_suite(suite, pairs, policy) for suite, pairs in own.items() if pairs or not counted[suite]]
    together = [pair for pairs in own.values() for pair in pairs]
    pooled = Claim(key=POOLED, pairs=together, margin=policy.margin)
    about = [rule for rule in policy.margins if rule.suite in counted or (rule.about_mode and rule.suite in modes_of)]
    singled = [claim for rule in about if (claim := _of_rule(rule, counted, own, policy, modes_of)) is not None]
    families = {key: Claim(key=key, pairs=found, margin=None) for key, found in _by_family(own).items()}
    for claim in singled:
        if claim.scope == "family":
            families[claim.key] = claim
    bare = not any(counted.values()) and not any(modes_of.values())
    first = [pooled] if together or bare else []  # else nothing is from 0 to 1
    return [*first, *suites, *(claim for claim in singled if claim.scope == "metric"), *families.values()]


def _by_family(own: Mapping[str, Sequence[Pair]]) -> dict[Key, list[Pair]]:
    found: dict[Key, list[Pair]] = {}
    for suite, pairs in own.items():
        for pair in pairs:
            found.setdefault(Key(suite, pair.family), []).append(pair)
    return found


def _suite(suite: str, pairs: Sequence[Pair], policy: Policy) -> Claim:
    rule = policy.rule(suite, None, _own_metric(pairs)) or policy.rule(suite)
    return _limited(Key(suite), pairs, rule, policy)


def _of_rule(
    rule: Margin,
    counted: Mapping[str, Sequence[Pair]],
    own: Mapping[str, Sequence[Pair]],
    policy: Policy,
    modes_of: Mapping[str, Sequence[Pair]],
) -> Claim | None:
    """The row that a rule makes; None for one about a suite's own row."""
    bare = modes_of.get(rule.suite, ()) if rule.about_mode else ()
    pairs = [pair for pair in (*counted.get(rule.suite, ()), *bare) if rule.family in (None, pair.family)]
    mine = [pair for pair in own.get(rule.suite, ()) if rule.family in (None, pair.family)]
    if rule.metric is None or (mine and rule.metric == _own_metric(mine)):
        first = policy.rule(rule.suite, rule.family, _own_metric(mine)) or rule  # the one that names the metric too
        return None if rule.family is None else _limited(Key(rule.suite, rule.family), mine, first, policy)
    reading = Reading.of(rule)
    about = [pair for pair in pairs if rule.metric == pair.metric or _held(pair, rule.metric)]
    return _limited(Key(rule.suite, rule.family or "", rule.metric), about, rule, policy, reading)


def _limited(key: Key, pairs: Sequence[Pair], rule: Margin | None, policy: Policy, reading: Reading = OWN) -> Claim:
    margin, floor = policy.guard(key.suite), None
    if rule is not None:
        floor = None if rule.floor_points is None else rule.floor_points / 100
        if rule.margin is not None:
            margin = rule.margin
        elif rule.margin_points is not None:
            margin = rule.margin_points / 100
    return Claim(key=key, pairs=pairs, reading=reading, margin=margin, floor=floor)


def _own_metric(pairs: Sequence[Pair]) -> str | None:
    """The metric of all of the items; None where they have several."""
    metrics = {pair.metric for pair in pairs}
    return metrics.pop() if len(metrics) == 1 else None


def _held(pair: Pair, metric: str) -> bool:
    return holds(pair.baseline, metric) or holds(pair.candidate, metric)


def refuse_rules_about_nothing(pairs: Sequence[Pair], policy: Policy) -> None:
    """Refuses a rule that no stored item is about: it would guard nothing.

    Raises:
        ConfigError: Names the rule, and what there is.
    """
    judged = [pair for pair in pairs if pair.metric]
    for rule in policy.margins if judged or any(rule.about_mode for rule in policy.margins) else ():
        known = pairs if rule.about_mode else judged
        suites = {pair.suite for pair in known}
        if rule.suite not in suites and known:
            raise _stranger(policy, rule, "suites", suites)
        mine = [pair for pair in known if pair.suite == rule.suite]
        if not mine:
            continue
        families = {pair.family for pair in mine}
        if rule.family is not None and rule.family not in families:
            raise _stranger(policy, rule, "families of that suite", families)
        mine = [pair for pair in mine if rule.family in (None, pair.family)]
        metrics = {pair.metric for pair in mine} - {""}
        if rule.metric is not None and rule.metric not in metrics and not any(_held(p, rule.metric) for p in mine):
            raise _stranger(policy, rule, "metrics there", metrics | _metrics(mine))


def _metrics(pairs: Sequence[Pair]) -> set[str]:
    sides: list[Side | None] = [side for pair in pairs for side in (pair.baseline, pair.candidate)]
    names = {name for side in sides if side is not None for name in side.scores}
    return {name.removesuffix(".0").removesuffix(".1") for name in names}


def _stranger(policy: Policy, rule: Margin, what: str, known: set[str]) -> ConfigError:
    return ConfigError(
        f"policy {policy.name} has a rule for {rule.in_words}, which no arm answered; "
        f"{what}: {', '.join(sorted(known))}"
    )
