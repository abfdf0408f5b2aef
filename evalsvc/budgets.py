"""Limits that are no accuracy: answers cut short, latency, throughput, capacity, cost. Measured, or refused by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from evalsvc.limits import Budgets
from evalsvc.ordering import cluster_label
from evalsvc.policy import Policy
from evalsvc.store.records import ArmRecord, Pair
from evalsvc.verdict.measure import measure

GIB = 2**30
BUDGET, CUT_SHORT = "budget", "cut short"


@dataclass(frozen=True, kw_only=True)
class LimitResult:
    """One limit beside the margins.

    Attributes:
        name: Key of the policy.
        suite: Suite that it is about; empty for the whole arm.
        limit: As the policy gives it.
        least: Whether it is a least and not a most.
        unit: Of limit and figures: `s`, `tokens/s`, `tokens/GiB`, `per million tokens`, `points`, or `ratio`.
        baseline: The baseline's figure; None where it is not comparable or nobody measured it.
        candidate: The candidate's figure; of a ratio the candidate's over the baseline's.
        device: Device class that the candidate's figure is of; empty where it hangs on none.
        p: Of a rise of answers cut short; None where figures are compared as they were measured.
        word: `PASS`, `REGRESSED`, `INCONCLUSIVE` or `INVALID`.
        reason: In one sentence.
    """

    name: str
    suite: str = ""
    limit: float
    least: bool = False
    unit: str
    baseline: float | None = None
    candidate: float | None = None
    device: str = ""
    p: float | None = None
    word: str
    reason: str

    @property
    def severity(self) -> str:
        """Of a REGRESSED."""
        return CUT_SHORT if self.suite else BUDGET

    @property
    def in_words(self) -> str:
        """Word and reason."""
        return f"{self.word}: {self.reason}"

    @property
    def label(self) -> str:
        """How it is named in text."""
        return f"{self.name}, suite {self.suite}" if self.suite else f"budget {self.name}"


def check_limits(
    baseline: ArmRecord,
    candidate: ArmRecord,
    seconds: tuple[Sequence[float], Sequence[float]],
    counted: Mapping[str, Sequence[Pair]],
    policy: Policy,
) -> tuple[LimitResult, ...]:
    """Every limit of the policy beside its margins.

    Args:
        baseline: With its proof and details.
        candidate: As `baseline`.
        seconds: Of work on each sample of the baseline and of the candidate.
        counted: By suite its items, each once.
        policy: Limits.
    """
    cut = () if policy.max_truncation_points is None else _truncation(counted, policy)
    budgets = policy.budgets
    return (*cut, *(() if budgets is None else _budgets(baseline, candidate, seconds, budgets)))


def _truncation(counted: Mapping[str, Sequence[Pair]], policy: Policy) -> tuple[LimitResult, ...]:
    limit = policy.max_truncation_points or 0.0
    generated = {suite: _generated(pairs) for suite, pairs in counted.items()}
    suites = {suite: pairs for suite, pairs in generated.items() if pairs}
    return tuple(_cut_short(suite, pairs, limit, policy.alpha / len(suites)) for suite, pairs in suites.items())


def _generated(pairs: Sequence[Pair]) -> list[Pair]:
    return [
        pair
        for pair in pairs
        if all(side and side.finish_reason is not None for side in (pair.baseline, pair.candidate))
    ]


def _cut_short(suite: str, pairs: Sequence[Pair], limit: float, alpha: float) -> LimitResult:
    """REGRESSED where more are cut than the limit allows and the rise is proven; INVALID where the baseline's are."""
    ended = [
        [float(side is not None and side.finish_reason != "length") for side in sides]
        for sides in ((pair.baseline, pair.candidate) for pair in pairs)
    ]
    ours, theirs = zip(*ended, strict=True)
    labels = [cluster_label(pair.suite, pair.family, pair.cluster) for pair in pairs]
    p = measure(ours, theirs, labels, alpha=alpha).p
    cut = [len(pairs) - int(sum(side)) for side in (ours, theirs)]
    shares = [100 * count / len(pairs) for count in cut]
    said = f"{cut[1]:,} of {len(pairs):,} answers of suite {suite} were cut by their limit (baseline {cut[0]:,})"
    if shares[0] > limit:
        word = "INVALID"
        said = (
            f"{cut[0]:,} of {len(pairs):,} answers of the baseline in suite {suite} were cut by their limit, "
            f"more than {limit:g} points: the suite's limit is too short to measure by"
        )
    elif shares[1] <= limit:
        word = "PASS"
    else:
        word = "REGRESSED" if p < alpha else "INCONCLUSIVE"
        said += f", more than {limit:g} points; p = {p:.2g} of a rise"
    return LimitResult(
        name="max_truncation_points",
        suite=suite,
        limit=limit,
        unit="points",
        baseline=shares[0],
        candidate=shares[1],
        p=p,
        word=word,
        reason=said,
    )


@dataclass(frozen=True)
class _Figure:
    """How a budget's figure is read off an arm and its samples' seconds."""

    what: str
    unit: str
    least: bool
    on_device: bool
    read: Callable[[ArmRecord, Sequence[float]], float | None]


def _percentile(share: float) -> Callable[[ArmRecord, Sequence[float]], float | None]:
    def read(_: ArmRecord, seconds: Sequence[float]) -> float | None:
        known = [value for value in seconds if isfinite(value)]
        return float(np.quantile(known, share)) if known else None

    return read


def _throughput(arm: ArmRecord, _: Sequence[float]) -> float | None:
    stages = [(arm.proof or {}).get(stage, {}) for stage in ("prefill", "decode")]
    tokens, seconds = (
        sum(_number(stage.get(key)) or 0.0 for stage in stages) for key in ("tokens_computed", "seconds")
    )
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def _capacity(arm: ArmRecord, _: Sequence[float]) -> float | None:
    held = _number((arm.proof or {}).get("decode", {}).get("kv", {}).get("bytes_per_token"))
    return GIB / held if held else None


def _cost(arm: ArmRecord, _: Sequence[float]) -> float | None:
    return _number(arm.details.get("cost_per_million_tokens"))


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0
    return float(value) if usable else None


_FIGURES = {
    "latency_p50": _Figure("latency", "s", False, True, _percentile(0.5)),
    "latency_p95": _Figure("latency", "s", False, True, _percentile(0.95)),
    "latency_p99": _Figure("latency", "s", False, True, _percentile(0.99)),
    "throughput": _Figure("throughput", "tokens/s", True, True, _throughput),
    "capacity": _Figure("capacity", "tokens/GiB", True, False, _capacity),
    "cost": _Figure("cost", "per million tokens", False, True, _cost),
}
_SUFFIXES = {"latency": "_s", "throughput": "_tokens_s", "capacity": "_tokens_per_gib", "cost": "_per_million_tokens"}


def _budgets(
    baseline: ArmRecord, candidate: ArmRecord, seconds: tuple[Sequence[float], Sequence[float]], budgets: Budgets
) -> tuple[LimitResult, ...]:
    found = []
    for name, figure in _FIGURES.items():
        ours, theirs = figure.read(baseline, seconds[0]), figure.read(candidate, seconds[1])
        for key, ratio in ((name + _SUFFIXES[figure.what], False), (f"{name}_ratio", True)):
            limit = getattr(budgets, key)
            if limit is not None:
                found.append(_budget(key, figure, limit, ratio, (ours, theirs), (baseline, candidate), budgets.device))
    return tuple(found)


def _budget(
    key: str,
    figure: _Figure,
    limit: float,
    ratio: bool,
    figures: tuple[float | None, float | None],
    arms: tuple[ArmRecord, ArmRecord],
    wanted: str | None,
) -> LimitResult:
    devices = [str(arm.details.get("device", "")) for arm in arms]
    device = devices[1] if figure.on_device else ""
    comparable = not figure.on_device or (devices[0] == devices[1] != "")
    shown = {
        "name": key,
        "limit": limit,
        "least": figure.least,
        "unit": "ratio" if ratio else figure.unit,
        "device": device,
    }
    problem = _no_evidence(figure, ratio, figures, arms, devices, wanted)
    ours, theirs = figures
    if problem is not None or theirs is None:
        return LimitResult(**shown, word="INVALID", reason=f"budget {key}: {problem}")
    value = theirs / ours if ratio and ours is not None else theirs
    kept = value >= limit if figure.least else value <= limit
    unit = "of the baseline's" if ratio else figure.unit
    where = f" on {device}" if device else ""
    beside = f" (baseline {ours:.4g})" if not ratio and ours is not None and comparable else ""
    said = f"budget {key}: {value:.4g} {unit}{where}{beside}, {'at least' if figure.least else 'at most'} {limit:g}"
    return LimitResult(
        **shown,
        baseline=ours if comparable else None,
        candidate=value,
        word="PASS" if kept else "REGRESSED",
        reason=said,
    )


def _no_evidence(
    figure: _Figure,
    ratio: bool,
    figures: tuple[float | None, float | None],
    arms: tuple[ArmRecord, ArmRecord],
    devices: Sequence[str],
    wanted: str | None,
) -> str | None:
    """Why a figure cannot be held against its limit; None when it can."""
    for arm, value in zip(arms if ratio else arms[1:], figures if ratio else figures[1:], strict=True):
        if value is None:
            return f"no measurement of {figure.what} is stored for {arm.address}"
    if not figure.on_device:
        return None
    if not devices[1]:
        return f"the device class of {arms[1].address} is not known"
    if wanted is not None and devices[1].split(":")[0] != wanted:
        return f"it is for {wanted}, and {arms[1].address} ran on {devices[1]}"
    if ratio and devices[0] != devices[1]:
        return f"unequal device classes ({devices[0] or 'unknown'} and {devices[1]})"
    return None
