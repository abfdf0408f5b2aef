"""Whether stored samples can carry a verdict: factors met, one row an item, pairing, proof, errors."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from evalsvc.decision import AAResult
from evalsvc.engine.precision import FACTORS
from evalsvc.ordering import Looks
from evalsvc.policy import Policy
from evalsvc.reading import Reading, holds, measure_pairs, own_reading, read_pair, read_side, up_to
from evalsvc.store.records import ArmRecord, Pair, Side
from evalsvc.verdict.corpus import METRICS

_WEIGHT_KEYS = ("weights", "checkpoint")
PROMPTS = "prompts-"  # how the scoring versions of suites of own prompts begin
_HASHES = {"item_hash": "item", "request_hash": "request", "settings_hash": "settings"}


def differing_factors(baseline: ArmRecord, candidate: ArmRecord) -> tuple[str, ...]:
    """Factors in which two arms' stages differ; a checkpoint counts as weights, all else (a fault) as KV."""
    found = set()
    for stage in ("prefill", "decode"):
        ours, theirs = baseline.stages.get(stage, {}), candidate.stages.get(stage, {})
        for key in ours.keys() | theirs.keys():
            if ours.get(key) != theirs.get(key):
                found.add(f"{stage}.{'weights' if key in _WEIGHT_KEYS else 'kv'}")
    return in_order(found)


def in_order(factors: Collection[str]) -> tuple[str, ...]:
    """Factors in the order prefill weights, prefill KV, decode weights, decode KV."""
    return tuple(factor for factor in FACTORS if factor in factors)


def met_factors(pair: Pair) -> set[str]:
    """Factors that the scored tokens of both arms met.

    A token from prefill meets prefill's factors; one from decode meets decode's, and prefill's too when its context
    was handed over.
    """
    sides = [side for side in (pair.baseline, pair.candidate) if side is not None and side.status == "scored"]
    met = [set(_stages_met(side)) for side in sides]
    stages = set.intersection(*met) if met else set()
    return {factor for factor in FACTORS if factor.split(".")[0] in stages}


def _stages_met(side: Side) -> Iterator[str]:
    decoded = side.stage_tokens.get("decode", 0) > 0
    if decoded:
        yield "decode"
    if side.stage_tokens.get("prefill", 0) > 0 or (decoded and side.handed_over):
        yield "prefill"


def with_metric(pairs: Iterable[Pair]) -> list[Pair]:
    """The items that carry a verdict; a prompt without a `check` has no metric, and is only compared (`agree`)."""
    return [pair for pair in pairs if pair.metric]


def with_mode(pairs: Iterable[Pair], policy: Policy) -> list[Pair]:
    """The items that carry no verdict and of which a rule gates a failure mode."""
    rules = [rule for rule in policy.margins if rule.about_mode]
    return [
        pair
        for pair in (pairs if rules else ())
        if not pair.metric and any(r.suite == pair.suite and r.family in (None, pair.family) for r in rules)
    ]


def count_once(pairs: Iterable[Pair], differing: Sequence[str]) -> list[Pair]:
    """One row an item: its decode row where a decode factor differs (or nothing does), else its prefill row."""
    through_decode = not differing or any(factor.startswith("decode.") for factor in differing)
    order = ("decode", "prefill", "") if through_decode else ("prefill", "decode", "")
    rows: dict[tuple[str, str], dict[str, Pair]] = defaultdict(dict)
    for pair in pairs:
        rows[(pair.suite, pair.item_id)].setdefault(pair.through, pair)
    return [next(found[through] for through in (*order, *found) if through in found) for found in rows.values()]


def seen_factors(pairs: Iterable[Pair], differing: Sequence[str]) -> tuple[str, ...]:
    """Factors that the scored tokens of any of these pairs met: the differing ones, or all where none differs."""
    wanted, met = set(differing or FACTORS), set[str]()
    for pair in pairs:
        met |= met_factors(pair) & wanted
        if met == wanted:
            break
    return in_order(met)


def counted_by_suite(pairs: Sequence[Pair], differing: Sequence[str]) -> dict[str, list[Pair]]:
    """Each suite's items, each once, without those that have no metric and rows blind to every differing factor."""
    return counted_of(with_metric(pairs), differing)


def counted_of(pairs: Sequence[Pair], differing: Sequence[str]) -> dict[str, list[Pair]]:
    """As `counted_by_suite`, of all of these items."""
    groups: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[(pair.suite, pair.family, pair.through)].append(pair)
    blind = {key for key, members in groups.items() if differing and not seen_factors(members, differing)}
    counted: dict[str, list[Pair]] = {suite: [] for suite in sorted({pair.suite for pair in pairs})}
    for pair in count_once(pairs, differing):
        if (pair.suite, pair.family, pair.through) not in blind:
            counted[pair.suite].append(pair)
    return counted


def average_repeats(pairs: Sequence[Pair]) -> list[Pair]:
    """One pair an item and `through`: repeats are averaged inside the item, since a repeat is no further item.

    A side is scored only when all its repeats are, in both arms alike; the first repeat gives all else.
    """
    groups: dict[tuple[str, str, str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[(pair.suite, pair.family, pair.item_id, pair.through)].append(pair)
    return [members[0] if len(members) == 1 else _averaged(members) for members in groups.values()]


def _averaged(members: Sequence[Pair]) -> Pair:
    sides = {}
    for role in ("baseline", "candidate"):
        mine = [side for pair in members if (side := getattr(pair, role)) is not None]
        if not mine:
            sides[role] = None
            continue
        scored = [side.value for side in mine if side.status == "scored" and side.value is not None]
        complete = len(scored) == len(members)
        bad = next((side for side in mine if side.status != "scored"), mine[0])
        mean = sum(scored) / len(scored) if complete else None
        sides[role] = replace(
            mine[0], status="scored" if complete else bad.status, value=mean, scores=_mean_scores(mine)
        )
        if not complete and bad.status == "scored":  # a repeat is missing
            sides[role] = replace(sides[role], status="skipped")
    return replace(members[0], **sides)


def _mean_scores(sides: Sequence[Side]) -> dict[str, float]:
    shared = set.intersection(*(set(side.scores) for side in sides))
    return {metric: sum(side.scores[metric] for side in sides) / len(sides) for metric in shared}


def check_aa(
    pairs: Sequence[Pair], address: str = "", policy: Policy | None = None, *, of: str = ""
) -> AAResult | None:
    """Compares an arm with its second run; None when nothing of them is stored.

    Args:
        pairs: Of both runs.
        address: Of the second run.
        policy: Says which metrics are in units of their own: they are no part of it.
        of: Address of the first run.
    """
    if not pairs:
        return None
    once = count_once(average_repeats(pairs), ())
    prompts = {pair.suite for pair in once if _is_prompt(pair)}
    reasons = [_not_in_an_aa(pair, policy, prompts) for pair in once]
    measured = measure_pairs([pair for pair, reason in zip(once, reasons, strict=True) if not reason], alpha=0.05)
    asked = Counter(pair.suite for pair in once)
    out = Counter((pair.suite, reason) for pair, reason in zip(once, reasons, strict=True) if reason)
    return AAResult(
        address=address,
        of=of,
        n=0 if measured is None else measured.n,
        lost=0 if measured is None else measured.lost,
        gained=0 if measured is None else measured.gained,
        p=1.0 if measured is None else measured.p,
        p_gain=1.0 if measured is None else measured.p_gain,
        left_out=tuple(
            f"{count:,} of {asked[suite]:,} item{'s' * (asked[suite] != 1)} of {suite} {reason}"
            for (suite, reason), count in sorted(out.items())
        ),
    )


def _is_prompt(pair: Pair) -> bool:
    """Whether it was scored as an own prompt, which a user can give something to verify."""
    versions = [side.scoring_version for side in (pair.baseline, pair.candidate) if side is not None]
    return any(version is not None and version.startswith(PROMPTS) for version in versions)


def _not_in_an_aa(pair: Pair, policy: Policy | None, prompts: Collection[str]) -> str:
    """Why an A/A does not count an item, in words of its kind of suite; empty where it does."""
    if not pair.metric:
        return "without `check` or `constraints`" if pair.suite in prompts else "without a metric"
    if policy is not None and own_reading(pair, policy).in_units:
        return "in units of their own"
    return "" if read_pair(pair) is not None else "without a score in both runs"


def aa_faults(first: ArmRecord, again: ArmRecord, pairs: Sequence[Pair], policy: Policy) -> list[str]:
    """Why a finished A/A run is no check of the instrument; empty when it is one. It is held to what an arm is."""
    bare = not with_metric(pairs) and not with_mode(pairs, policy)  # as one that was not run: `check_aa` counts none
    faults = [] if pairs and bare else find_faults(first, again, pairs, policy)
    if first.fingerprint != again.fingerprint:
        faults.append("the two runs of the baseline are not one arm (unequal fingerprints)")
    return [f"the A/A {again.address} cannot be used: {fault}" for fault in faults]


def pairing_verified(pairs: Iterable[Pair]) -> bool:
    """Whether both arms' rendered tokens are known, and equal, for every pair."""
    return all(
        pair.baseline is not None
        and pair.candidate is not None
        and pair.baseline.rendered_hash is not None
        and pair.baseline.rendered_hash == pair.candidate.rendered_hash
        for pair in pairs
    )


def find_faults(
    baseline: ArmRecord, candidate: ArmRecord, pairs: Sequence[Pair], policy: Policy, looks: Looks | None = None
) -> list[str]:
    """Every reason for which these samples can carry no verdict under this policy; empty when they can.

    Args:
        baseline: Judged by all its samples.
        candidate: As `baseline`.
        pairs: All of theirs.
        policy: Limits.
        looks: Of a sequential design: pairs after its last look are not looked at.
    """
    within = pairs if looks is None else up_to(pairs, looks)
    seen = [*with_metric(within), *with_mode(within, policy)]
    if pairs and not with_metric(pairs) and not with_mode(pairs, policy):
        return [nothing_scored(baseline, candidate, pairs)]
    if not any(_is_read(pair, policy) for pair in seen):
        return [nothing_scored(baseline, candidate, ())]
    return [
        *_arm_faults("baseline", baseline, [pair.baseline for pair in pairs], policy),
        *_arm_faults("candidate", candidate, [pair.candidate for pair in pairs], policy),
        *_pair_faults(seen, policy),
        *_error_faults(seen, policy),
    ]


def nothing_scored(baseline: ArmRecord, candidate: ArmRecord, pairs: Sequence[Pair]) -> str:
    """Why nothing of two arms can be counted, for a person."""
    both = f"{baseline.address} and {candidate.address}"
    if any(read_pair(pair) is not None for pair in with_metric(pairs)):
        return f"no item that is scored in both met a factor in which {both} differ"
    if not pairs or with_metric(pairs):
        return f"no samples: no item is scored in both {both}"
    return (
        "prompts without `check` or `constraints` carry no verdict, and there is nothing else; "
        f"`evalsvc agree {baseline.address} {candidate.address}` compares their answers"
    )


def _arm_faults(role: str, arm: ArmRecord, sides: list[Side | None], policy: Policy) -> Iterator[str]:
    held = sum(side is not None for side in sides)
    if arm.status != "finished":
        yield f"{role} {arm.address} is unfinished: run its experiment again to continue it"
    elif arm.stopped is not None and (role == "baseline" or policy.design == "fixed"):
        yield (
            f"{role} {arm.address} was stopped early, after {arm.stopped['items']:,} of {arm.stopped['planned']:,} "
            "items: it can only be a candidate, under a policy with `design: sequential`"
        )
    elif arm.stopped is None and held < arm.expected:
        yield f"{role} {arm.address} holds {held:,} of {arm.expected:,} samples"
    if arm.proof_status is None:
        if policy.proof == "required":
            yield f"{role} {arm.address} has no proof of what it ran, and the policy requires one"
    elif arm.proof_status == "declared":
        if policy.proof == "required":
            yield f"{role} {arm.address}: formats are declared, not measured, and the policy requires a proof"
    elif arm.proof_status != "matched":
        yield f"{role} {arm.address}: what was measured does not match its plan (proof {arm.proof_status})"


def _pair_faults(pairs: Sequence[Pair], policy: Policy) -> Iterator[str]:
    """One sentence a kind of fault, with how many items it has and the first of them."""
    found: dict[str, list[str]] = defaultdict(list)
    seen = Counter((pair.suite, pair.item_id, pair.through, pair.repeat) for pair in pairs)
    for pair in pairs:
        name = f"{pair.suite}/{pair.item_id}" + (f" through {pair.through}" if pair.through else "")
        for kind in _kinds(pair, policy):
            found[kind].append(name)
        if seen[(pair.suite, pair.item_id, pair.through, pair.repeat)] > 1:
            found["more than one answer of one repeat"].append(name)
    for kind, names in found.items():
        yield f"{kind}: {len(names):,} item{'s' * (len(names) != 1)}, first {names[0]}"


def _kinds(pair: Pair, policy: Policy) -> Iterator[str]:
    ours, theirs = pair.baseline, pair.candidate
    if ours is None or theirs is None:
        yield f"present in the {'candidate' if ours is None else 'baseline'} only"
        return
    for field, what in _HASHES.items():
        if getattr(ours, field) != getattr(theirs, field):
            yield f"unequal {what} in the two arms"
    if policy.rendering == "same" and _contradict(ours.rendered_hash, theirs.rendered_hash):
        yield "unequal rendered tokens in the two arms (`rendering: may_differ` would accept them)"
    if _contradict(ours.scoring_version, theirs.scoring_version):
        yield "scored by unequal versions of the suite's rules in the two arms (`evalsvc rescore` the older)"
    for reading in _readings(pair, policy):
        if any(side.status == "scored" and read_side(side, reading, pair.metric) is None for side in (ours, theirs)):
            yield _unreadable(reading, pair.metric)


def _is_read(pair: Pair, policy: Policy) -> bool:
    """Whether both arms have a value of the item's own metric, or of the first mode that a rule gates of it."""
    reading = next(_readings(pair, policy), None)
    return reading is not None and read_pair(pair, reading) is not None


def _contradict(ours: str | None, theirs: str | None) -> bool:
    return ours is not None and theirs is not None and ours != theirs


def _readings(pair: Pair, policy: Policy) -> Iterator[Reading]:
    """Everything that is read of an item: its own metric, and others that a rule names and an arm has."""
    if pair.metric:
        yield own_reading(pair, policy)
    sides = (pair.baseline, pair.candidate)
    for rule in policy.margins:
        about = rule.suite == pair.suite and rule.family in (None, pair.family)
        if about and rule.metric not in (None, pair.metric) and any(holds(s, rule.metric) for s in sides):
            yield Reading.of(rule)


def _unreadable(reading: Reading, own: str) -> str:
    metric = reading.metric or own
    if reading.of_corpus:
        return f"no parts of {metric} ({METRICS[reading.statistic].parts})"
    if reading.in_units:
        return f"no score of {metric}"
    return f"no score of {metric} between 0 and 1 (a metric in units of its own needs a margin in them)"


def _error_faults(pairs: Sequence[Pair], policy: Policy) -> Iterator[str]:
    for role in ("baseline", "candidate"):
        total: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for pair in pairs:
            side: Side | None = getattr(pair, role)
            total[pair.suite] += 1
            errors[pair.suite] += side is not None and side.status != "scored"
        for suite, count in errors.items():
            if 100 * count > policy.max_error_points * total[suite]:
                yield (
                    f"{role}: {count:,} of {total[suite]:,} samples of suite {suite} have no score, "
                    f"more than {policy.max_error_points:g} points"
                )
