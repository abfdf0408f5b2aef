"""Limits that are no accuracy: answers cut short, latency, throughput, capacity, cost. Measured, or refused by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from evalsvc.limits import Budgets
from evalsvc.ordering import cluster_label
from evalsvc.policy import Policy
from evalsvc.serving.figures import PERCENTILES, CellFigures, latest, rooms, served
from evalsvc.store.records import ArmRecord, Beside, Pair
from evalsvc.verdict.measure import measure

GIB = 2**30
BUDGET, CUT_SHORT = "budget", "cut short"
FIRST_TOKEN, NEXT_TOKEN, GENERATED = "time to first token", "time between tokens", "generated tokens"
SERVED = (FIRST_TOKEN, NEXT_TOKEN, GENERATED, "cost")


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
    beside: tuple[Beside, Beside],
    counted: Mapping[str, Sequence[Pair]],
    policy: Policy,
) -> tuple[LimitResult, ...]:
    """Every limit of the policy beside its margins.

    Args:
        baseline: With its proof and details.
        candidate: As `baseline`.
        beside: What else is known of the baseline's and the candidate's samples and serving.
        counted: By suite its items, each once.
        policy: Limits.
    """
    cut = () if policy.max_truncation_points is None else _truncation(counted, policy)
    budgets = policy.budgets
    return (*cut, *(() if budgets is None else _budgets(baseline, candidate, beside, budgets)))


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
    """How a budget's figure is read off an arm, what is known beside it, and which cell of serving is meant."""

    what: str
    unit: str
    least: bool
    on_device: bool
    read: Callable[[ArmRecord, Beside, Budgets], float | None]


def _percentile(share: float) -> Callable[[ArmRecord, Beside, Budgets], float | None]:
    def read(_: ArmRecord, beside: Beside, __: Budgets) -> float | None:
        known = [value for value in beside.seconds if isfinite(value)]
        return float(np.quantile(known, share)) if known else None

    return read


def _throughput(arm: ArmRecord, _: Beside, __: Budgets) -> float | None:
    stages = [(arm.proof or {}).get(stage, {}) for stage in ("prefill", "decode")]
    tokens, seconds = (
        sum(_number(stage.get(key)) or 0.0 for stage in stages) for key in ("tokens_computed", "seconds")
    )
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def _capacity(arm: ArmRecord, beside: Beside, _: Budgets) -> float | None:
    held = _number((arm.proof or {}).get("decode", {}).get("kv", {}).get("bytes_per_token"))
    if held is None:
        rows = [m for m in latest(beside.serving) if m.kind == "capacity" and m.figures]
        held = rooms(rows[-1])["decode"].kv_bytes_per_token if rows else None
    return GIB / held if held else None


def _cost(arm: ArmRecord, beside: Beside, budgets: Budgets) -> float | None:
    said = _number(arm.details.get("cost_per_million_tokens"))
    if said is not None:
        return said
    found = _meant(beside, budgets)
    cost = found[0].cost_per_million_tokens if len(found) == 1 else None
    return None if cost is None else cost.mean


def _meant(beside: Beside, budgets: Budgets) -> list[CellFigures]:
    """Measured cells of serving that a policy's budgets can mean: the cell that they name, or all there are."""
    return [
        cell
        for cell in served(beside.serving)
        if cell.status == "measured"
        and budgets.prompt_tokens in (None, cell.prompt_tokens)
        and budgets.concurrency in (None, cell.concurrency)
    ]


def _served_time(name: str, percentile: int) -> Callable[[ArmRecord, Beside, Budgets], float | None]:
    def read(_: ArmRecord, beside: Beside, budgets: Budgets) -> float | None:
        found = _meant(beside, budgets)
        times = found[0].times.get(name, {}) if len(found) == 1 else {}
        return times[percentile].mean if percentile in times else None

    return read


def _generated_rate(_: ArmRecord, beside: Beside, budgets: Budgets) -> float | None:
    found = _meant(beside, budgets)
    rate = found[0].generated_tokens_s if len(found) == 1 else None
    return None if rate is None else rate.mean


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0
    return float(value) if usable else None


_FIGURES = {
    **{f"latency_p{p}": _Figure("latency", "s", False, True, _percentile(p / 100)) for p in PERCENTILES},
    **{f"ttft_p{p}": _Figure(FIRST_TOKEN, "s", False, True, _served_time("ttft_s", p)) for p in PERCENTILES},
    **{f"itl_p{p}": _Figure(NEXT_TOKEN, "s", False, True, _served_time("itl_s", p)) for p in PERCENTILES},
    "generated": _Figure(GENERATED, "tokens/s", True, True, _generated_rate),
    "throughput": _Figure("throughput", "tokens/s", True, True, _throughput),
    "capacity": _Figure("capacity", "tokens/GiB", True, False, _capacity),
    "cost": _Figure("cost", "per million tokens", False, True, _cost),
}
_SUFFIXES = {"s": "_s", "tokens/s": "_tokens_s", "tokens/GiB": "_tokens_per_gib"}
_SUFFIXES |= {"per million tokens": "_per_million_tokens"}


def _budgets(
    baseline: ArmRecord, candidate: ArmRecord, beside: tuple[Beside, Beside], budgets: Budgets
) -> tuple[LimitResult, ...]:
    found = []
    for name, figure in _FIGURES.items():
        ours = figure.read(baseline, beside[0], budgets)
        theirs = figure.read(candidate, beside[1], budgets)
        for key, ratio in ((name + _SUFFIXES[figure.unit], False), (f"{name}_ratio", True)):
            limit = getattr(budgets, key)
            if limit is not None:
                arms = baseline, candidate
                found.append(_budget(key, figure, limit, ratio, (ours, theirs), arms, beside, budgets))
    return tuple(found)


def _budget(
    key: str,
    figure: _Figure,
    limit: float,
    ratio: bool,
    figures: tuple[float | None, float | None],
    arms: tuple[ArmRecord, ArmRecord],
    beside: tuple[Beside, Beside],
    budgets: Budgets,
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
    problem = _no_evidence(figure, ratio, figures, arms, beside, devices, budgets)
    ours, theirs = figures
    if problem is not None or theirs is None:
        return LimitResult(**shown, word="INVALID", reason=f"budget {key}: {problem}")
    value = theirs / ours if ratio and ours is not None else theirs
    kept = value >= limit if figure.least else value <= limit
    unit = "of the baseline's" if ratio else figure.unit
    where = f" on {device}" if device else ""
    also = f" (baseline {ours:.4g})" if not ratio and ours is not None and comparable else ""
    said = f"budget {key}: {value:.4g} {unit}{where}{also}, {'at least' if figure.least else 'at most'} {limit:g}"
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
    beside: tuple[Beside, Beside],
    devices: Sequence[str],
    budgets: Budgets,
) -> str | None:
    """Why a figure cannot be held against its limit; None when it can."""
    wanted = budgets.device
    for arm, value, known in list(zip(arms, figures, beside, strict=True))[0 if ratio else 1 :]:
        if value is None:
            return _missing(figure, arm, len(_meant(known, budgets)))
    if not figure.on_device:
        return None
    if not devices[1]:
        return f"the device class of {arms[1].address} is not known"
    if wanted is not None and devices[1].split(":")[0] != wanted:
        return f"it is for {wanted}, and {arms[1].address} ran on {devices[1]}"
    if ratio and devices[0] != devices[1]:
        return f"unequal device classes ({devices[0] or 'unknown'} and {devices[1]})"
    return None


def _missing(figure: _Figure, arm: ArmRecord, found: int) -> str:
    """Why there is no figure."""
    if figure.what in SERVED and found > 1:
        return (
            f"{figure.what} of {arm.address} was measured in {found} cells; name one with prompt_tokens and concurrency"
        )
    remedy = "; `evalsvc bench-serve` measures it" if figure.what in SERVED[:3] else ""
    return f"no measurement of {figure.what} is stored for {arm.address}{remedy}"
