"""The four numbers out of stored measurements: speed, throughput, capacity, cost. They are never mixed.

A percentile is taken inside each repeat. A figure is the mean over repeats, with the two-sided 95 % interval of
Student's t over them: it tells how far repeats differ on this machine in this hour, and nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from evalsvc.errors import EvidenceError
from evalsvc.store.records import Measurement

CONFIDENCE = 0.95
PERCENTILES = (50, 95, 99)
PAGE = 16  # tokens; a sequence takes whole pages
TIMES = ("ttft_s", "itl_s", "e2e_s")


@dataclass(frozen=True)
class Estimate:
    """Mean over repeats.

    Attributes:
        mean: In the figure's unit.
        low: Lower end of the interval; None of a single repeat. `high` alike.
        repeats: How many.
    """

    mean: float
    low: float | None
    high: float | None
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Of one value a repeat, at least one."""
        mean, n = float(np.mean(values)), len(values)
        if n < 2:
            return cls(mean, None, None, n)
        reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1) * stats.sem(values))
        return cls(mean, mean - reach, mean + reach, n)


@dataclass(frozen=True, kw_only=True)
class CellFigures:
    """One arm in one cell.

    Attributes:
        status: `measured`, `no_room` or `failed`, the last two with a message.
        requests: Answered in all repeats.
        times: By `ttft_s`, `itl_s`, `e2e_s` and percentile. Seconds.
        prompt_tokens_s: Prompt tokens a second of the whole repeat, its start and end included.
        generated_tokens_s: As `prompt_tokens_s`.
        generated_by_repeat: The same, by repeat.
        cost_per_million_tokens: Of prompts and answers together; None without a price.
        cost_per_million_generated: The whole price on the generated tokens; None without a price.
    """

    arm: str
    fingerprint: str
    device: str
    prompt_tokens: int
    concurrency: int
    status: str
    message: str | None = None
    requests: int = 0
    times: Mapping[str, Mapping[int, Estimate]]
    prompt_tokens_s: Estimate | None = None
    generated_tokens_s: Estimate | None = None
    generated_by_repeat: Mapping[int, float] = field(default_factory=dict)
    cost_per_million_tokens: Estimate | None = None
    cost_per_million_generated: Estimate | None = None

    @property
    def cell(self) -> tuple[int, int]:
        """Prompt tokens and concurrency."""
        return self.prompt_tokens, self.concurrency


def latest(found: Sequence[Measurement]) -> list[Measurement]:
    """Of several settings under which one arm was measured those of its newest figure."""
    newest = {m.fingerprint: m.settings_hash for m in found if m.kind != "price"}
    return [m for m in found if newest.get(m.fingerprint) == m.settings_hash]


def served(found: Sequence[Measurement]) -> list[CellFigures]:
    """Cells under the newest settings, with the cost where a price was given."""
    return cells([*latest(found), *(m for m in found if m.kind == "price")])


def cells(found: Iterable[Measurement]) -> list[CellFigures]:
    """Figures of each arm and cell, in the order in which they were first measured."""
    found = list(found)
    prices = {m.fingerprint: float(m.figures["per_hour"]) for m in found if m.kind == "price"}
    rows: dict[tuple[str, int, int], list[Measurement]] = {}
    for m in found:
        if m.kind == "serving":
            rows.setdefault((m.fingerprint, *m.cell), []).append(m)
    return [_cell(group, prices.get(group[0].fingerprint)) for group in rows.values()]


def _cell(group: Sequence[Measurement], price: float | None) -> CellFigures:
    one = group[0]
    known: dict[str, Any] = {
        "arm": one.arm,
        "fingerprint": one.fingerprint,
        "device": one.device,
        "prompt_tokens": one.prompt_tokens,
        "concurrency": one.concurrency,
    }
    measured = [m.figures for m in group if m.status == "measured"]
    if not measured:
        return CellFigures(**known, status=group[-1].status, message=group[-1].message, times={})
    prompt, generated = ([f[key] / f["wall_s"] for f in measured] for key in ("prompt_tokens", "generated_tokens"))
    costs: dict[str, Any] = {}
    if price is not None:
        both = [a + b for a, b in zip(prompt, generated, strict=True)]
        costs["cost_per_million_tokens"] = Estimate.of([cost_per_million(price, rate) for rate in both])
        costs["cost_per_million_generated"] = Estimate.of([cost_per_million(price, rate) for rate in generated])
    return CellFigures(
        **known,
        status="measured",
        requests=sum(len(f["e2e_s"]) for f in measured),
        times={
            name: {p: Estimate.of([float(np.percentile(f[name], p)) for f in measured]) for p in PERCENTILES}
            for name in TIMES
            if all(f[name] for f in measured)
        },
        prompt_tokens_s=Estimate.of(prompt),
        generated_tokens_s=Estimate.of(generated),
        generated_by_repeat=dict(zip((m.repeat for m in group if m.status == "measured"), generated, strict=True)),
        **costs,
    )


def cost_per_million(price_per_hour: float, tokens_s: float) -> float:
    """Price of a million tokens at a rate."""
    return price_per_hour / 3600 / tokens_s * 1e6


def times_baseline(baseline: CellFigures, arm: CellFigures) -> Estimate | None:
    """Generated tokens a second over the baseline's of the same repeat; None where no repeat has both.

    Raises:
        EvidenceError: Figures of two classes of devices.
    """
    if baseline.device != arm.device:
        raise EvidenceError(
            f"{arm.arm} was measured on {arm.device} and {baseline.arm} on {baseline.device}: figures of two classes "
            "of devices are not compared; measure both on one"
        )
    ours, theirs = baseline.generated_by_repeat, arm.generated_by_repeat
    ratios = [theirs[repeat] / ours[repeat] for repeat in theirs if repeat in ours]
    return Estimate.of(ratios) if ratios else None


@dataclass(frozen=True)
class StageRoom:
    """What one stage takes of a memory, and what is left for keys and values.

    Attributes:
        weights_bytes: In the plan's own form.
        other_bytes: Embeddings, norms and what else no format packs.
        kv_bytes_per_token: All layers.
        pool_tokens: What the measuring process's pool held; None where none was made.
        memory_bytes: Of the stage's device.
    """

    weights_bytes: int
    other_bytes: int
    kv_bytes_per_token: float
    pool_tokens: int | None
    memory_bytes: int

    @property
    def tokens(self) -> int:
        """Tokens that fit, in whole pages; 0 where the weights do not."""
        left = self.memory_bytes - self.weights_bytes - self.other_bytes
        return max(0, int(left // (self.kv_bytes_per_token * PAGE))) * PAGE

    def requests(self, tokens: int) -> int:
        """Requests of so many tokens that fit side by side."""
        return (self.tokens // PAGE) // -(-tokens // PAGE)


def rooms(capacity: Measurement) -> dict[str, StageRoom]:
    """By stage what a row of kind `capacity` tells."""
    memory = capacity.settings["memory_bytes"]
    return {stage: StageRoom(**found, memory_bytes=memory) for stage, found in capacity.figures.items()}
