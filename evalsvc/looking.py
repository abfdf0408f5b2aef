"""The sequential design over stored samples: where one looks, and the first look that decides about a candidate.

What is found depends on the answers, the seed and the policy alone, so that an interrupted run decides as an
uninterrupted one, and the gate as the runner.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from evalsvc.claims import POOLED, Key
from evalsvc.decision import Stop
from evalsvc.evidence import counted_by_suite, seen_factors, with_metric
from evalsvc.ordering import Looks, Place, Placed, plan_looks
from evalsvc.policy import Policy
from evalsvc.reading import process_of, scored_values, up_to
from evalsvc.release import family_size
from evalsvc.signals import alarms, signals
from evalsvc.store.records import ArmRecord, Choices, Pair
from evalsvc.verdict.sequential import Sequential, first_decision, threshold

BothChoices: TypeAlias = tuple[Mapping[int, Choices], Mapping[int, Choices]]


def placed(pair: Pair) -> Placed:
    """Where a pair's item stands in the order."""
    return Placed(pair.suite, pair.family, pair.cluster, pair.item_id)


def look_back(
    candidate: ArmRecord, pairs: Sequence[Pair], differing: Sequence[str], policy: Policy, choices: BothChoices
) -> tuple[Looks | None, Stop | None]:
    """What a sequential design saw of a finished candidate: its looks up to the one that decided, and that one.

    Args:
        candidate: Whose seed orders the items. Of an arm that was stopped early no more is looked at than it has.
        pairs: All its items beside the baseline's, repeats averaged. No look is about those without a metric.
        differing: Factors in which the arms differ.
        policy: The design.
        choices: As in `find_stop`.

    Returns:
        None twice for a fixed design; None for the stop where no look decided.
    """
    if policy.design == "fixed":
        return None, None
    judged = with_metric(pairs)
    looks = plan_looks(map(placed, judged), candidate.seed, policy.block_items)
    if candidate.stopped is not None:
        absent = [looks.position[pair.suite, pair.item_id] for pair in judged if pair.candidate is None]
        held = min(absent, default=looks.planned)
        looks = replace(looks, ends=(*(end for end in looks.ends if end < held), held))
    stop = find_stop(judged, differing, looks, policy, choices)
    return (looks, None) if stop is None else (looks.first(stop.items), stop)


def complete_looks(looks: Looks, pairs: Sequence[Pair], rows: Mapping[Place, int]) -> Looks:
    """The looks before which every item has all its answers in both arms.

    Args:
        looks: All that are planned.
        pairs: What is stored.
        rows: Samples of each item that an arm answers.
    """
    there = Counter((pair.suite, pair.item_id) for pair in pairs if pair.baseline and pair.candidate)
    missing = [index for place, index in looks.position.items() if there[place] < rows[place]]
    return looks.first(min(missing, default=looks.planned))


def find_stop(
    pairs: Sequence[Pair],
    differing: Sequence[str],
    looks: Looks,
    policy: Policy,
    choices: BothChoices = ({}, {}),
) -> Stop | None:
    """The first look that decides about a candidate, or None.

    REGRESSED: some suite or the pooled row is, at the evidence that its family asks for. PASS: the pooled row passes
    its margin and every suite and guarded family its guard, or has all its items, and no signal that the policy
    listens to is worse (it asks for more samples). A look decides only if it would whatever became of the items
    without an answer, and by the answers up to it alone: rows that are blind until later do not count yet.

    Args:
        pairs: All that may count, repeats averaged.
        differing: Factors in which the arms differ.
        looks: Complete blocks, as `complete_looks` gives them.
        policy: Margins, alpha and signals.
        choices: Log-likelihoods of the baseline's and the candidate's choices, for the signals.
    """
    for span, counted in _spans(with_metric(pairs), differing, looks):
        seen = _words(counted, looks, policy, worst=False)
        unanswered = any(scored_values(pair) is None for members in counted.values() for pair in members)
        worst = _words(counted, looks, policy, worst=True) if unanswered else seen
        for look in span:
            word, so_far = seen[look], looks.first(looks.ends[look])
            if not word or word != worst[look]:
                continue
            if word == "PASS" and not so_far.complete and policy.more_sampling is not None:
                seen_pairs = {suite: up_to(members, so_far) for suite, members in counted.items()}
                if alarms(signals(seen_pairs, *choices), policy):
                    continue
            return Stop(word, looks.ends[look], looks.planned, look + 1)
    return None


def _spans(
    pairs: Sequence[Pair], differing: Sequence[str], looks: Looks
) -> Iterator[tuple[range, dict[str, list[Pair]]]]:
    """Looks one after the other at which the same rows are blind so far, and what counts at them."""
    if not looks.ends:
        return
    begun: dict[tuple[str, str, str], int] = {}
    met: dict[tuple[str, str, str], int] = {}
    for pair in sorted(pairs, key=lambda pair: looks.position[pair.suite, pair.item_id]):
        group = pair.suite, pair.family, pair.through
        look = bisect_right(looks.ends, looks.position[pair.suite, pair.item_id])
        begun.setdefault(group, look)
        if group not in met and (not differing or seen_factors([pair], differing)):
            met[group] = look
    changes = {look for group, look in met.items() if begun[group] < look < len(looks.ends)}
    starts = sorted({0, *changes})
    for start, end in zip(starts, [*starts[1:], len(looks.ends)], strict=True):
        there = up_to(pairs, looks.first(looks.ends[end - 1]))
        yield range(start, end), counted_by_suite(there, differing)


def _words(counted: Mapping[str, Sequence[Pair]], looks: Looks, policy: Policy, *, worst: bool) -> list[str]:
    """At each look the word; empty where nothing is decided."""
    groups = {Key(suite): list(members) for suite, members in counted.items() if members}
    groups[POOLED] = [pair for members in groups.values() for pair in members]
    unmet = {suite: _unmet_pass(suite, looks, policy) for suite, members in counted.items() if not members}
    family = family_size(len(looks.largest))
    firsts = {}
    for key, members in groups.items():
        margin = policy.margin if key == POOLED else policy.guard(key.suite)
        firsts[key] = first_decision(process_of(members, looks, worst=worst), margin, policy.alpha, family)
    guarded = _first_passes(groups, looks, policy, worst=worst)
    last: dict[str, int] = {}
    for (suite, _), index in looks.position.items():
        last[suite] = max(last.get(suite, 0), index)
    found = []
    for look, end in enumerate(looks.ends):
        words = {key: first[1] for key, first in firsts.items() if first is not None and first[0] <= look}
        done = {*(key.suite for key in words), *(suite for suite, first in unmet.items() if first <= look)}
        waiting = [suite for suite, index in last.items() if suite not in done and index >= end]
        waiting += [suite for suite, first in guarded if first > look and last[suite] >= end]
        if "REGRESSED" in words.values():
            found.append("REGRESSED")
        else:
            found.append("PASS" if POOLED in words and not waiting else "")
    return found


def _unmet_pass(suite: str, looks: Looks, policy: Policy) -> int:
    """The first look at which so many items met no differing factor that those to come are within the suite's guard.

    An item that met none loses nothing; later ones may meet one. Clusters are taken as if all were the largest, which
    is the least evidence. Beyond all looks where there is no such look.
    """
    positions = sorted(index for (name, _), index in looks.position.items() if name == suite)
    largest = looks.largest[suite]
    process, fed = Sequential(largest), 0
    for end in looks.ends:
        units = bisect_left(positions, end) // largest - fed
        process.add([0.0] * units, [largest] * units)
        fed += units
    passed = process.below(policy.guard(suite)) >= threshold(policy.alpha)
    return int(passed.argmax()) if passed.any() else len(looks.ends)


def _first_passes(
    groups: Mapping[Key, Sequence[Pair]], looks: Looks, policy: Policy, *, worst: bool
) -> list[tuple[str, int]]:
    """By suite the first look at which each family that a rule guards is within its margin; beyond all looks if none.

    A family is REGRESSED only through its suite, so its other direction decides nothing.
    """
    found = []
    for rule in policy.margins:
        if rule.family is None or rule.margin_points is None:
            continue
        members = [pair for pair in groups.get(Key(rule.suite), ()) if pair.family == rule.family]
        passed = process_of(members, looks, worst=worst).below(rule.margin_points / 100) >= threshold(policy.alpha)
        found.append((rule.suite, int(passed.argmax()) if passed.any() else len(looks.ends)))
    return found
