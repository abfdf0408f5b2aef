"""Plain rows that enter and leave the database: no session, no lazy loading."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class NewScore:
    """One metric of one sample. `value` is a proportion or the metric's own unit; `filtered` as in `ScoreRow`."""

    metric: str
    filter: str
    value: float
    error_class: str | None = None
    filtered: str | None = None


@dataclass(frozen=True)
class Turn:
    """One generated answer of a sample; text and finish reason are None for the last, whose are the sample's."""

    answer: str | None
    finish_reason: str | None
    token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NewIncident:
    """What ended a request; fields as in `schema.IncidentRow`."""

    stage: str
    page: int
    slot: int
    layer: int
    expected_tag: int
    expected_position: int
    found_tag: int
    found_position: int
    content: bool
    step: int


@dataclass(frozen=True, kw_only=True)
class NewSample:
    """One answer to store; fields as in `schema.Sample` and `schema.ItemRow`."""

    suite: str
    item_id: str
    item_hash: str
    family: str
    cluster: str
    metric: str
    filter: str
    chance: float
    scored_by: str
    request_hash: str
    settings_hash: str
    rendered_hash: str | None
    repeat: int = 0
    through: str = ""
    status: str = "scored"
    error_class: str | None = None
    error_message: str | None = None
    prompt: str = ""
    answer: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    stage_tokens: dict[str, int] = field(default_factory=dict)
    handed_over: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    scoring_version: str = ""
    scores: tuple[NewScore, ...] = ()
    turns: tuple[Turn, ...] = ()
    alternatives: bytes | None = None
    right_answer: str | None = None
    incident: NewIncident | None = None

    @property
    def key(self) -> tuple[str, str, str, str, str, int]:
        """What makes this answer unique inside one arm of one run."""
        return (self.suite, self.item_id, self.item_hash, self.request_hash, self.settings_hash, self.repeat)


@dataclass(frozen=True, kw_only=True)
class StoredAnswer:
    """What is stored of one sample's answers, to be read or scored again.

    Attributes:
        answer: Text of the last one, or JSON of log-likelihoods.
        turns: All of them, where they are stored.
        values: The item's own metric (its first part where it has parts) by scoring version, in the order in which they
            were given.
        versions: All scoring versions under which the sample has scores.
    """

    sample_id: int
    suite: str
    family: str
    item_id: str
    item_hash: str
    metric: str
    filter: str
    scored_by: str
    request_hash: str
    rendered_hash: str | None
    through: str
    repeat: int
    status: str
    prompt: str
    answer: str
    finish_reason: str | None
    prompt_tokens: int | None
    answer_tokens: int | None
    stage_tokens: dict[str, int]
    handed_over: bool
    timings: dict[str, float]
    turns: tuple[Turn, ...] = ()
    values: dict[str, float] = field(default_factory=dict)
    versions: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Rescored:
    """Scores to add to a stored sample."""

    sample_id: int
    scoring_version: str
    scores: tuple[NewScore, ...]


@dataclass(frozen=True, kw_only=True)
class NewArm:
    """A whole arm to store with all its samples; fields as in `schema.Arm`."""

    name: str
    fingerprint: str
    plan: str
    stages: dict[str, dict[str, Any]]
    details: dict[str, Any]
    proof_status: str | None
    samples: tuple[NewSample, ...]
    capabilities: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One arm's sample of a pair.

    Attributes:
        value: The item's 0/1 metric, None unless the sample is scored.
        scoring_version: Under which `value` was given, or failure modes where the item has no metric; None without a
            score.
        scores: The sample's other metrics through the same filter, where they were asked for; parts of a corpus metric
            are `METRIC.0`, `METRIC.1`.
    """

    sample_id: int
    item_hash: str
    request_hash: str
    settings_hash: str
    rendered_hash: str | None
    status: str
    value: float | None
    error_class: str | None
    finish_reason: str | None
    stage_tokens: dict[str, int]
    handed_over: bool
    scoring_version: str | None = None
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Choices:
    """Log-likelihoods of the choices of one sample, and which one is right."""

    logprobs: tuple[float, ...]
    gold: int


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One figure of serving; fields as in `schema.MeasurementRow`.

    Attributes:
        figures: Of `serving`: `ttft_s`, `itl_s` and `e2e_s` (lists, seconds, one entry a request or a gap between
            tokens), `prompt_tokens`, `generated_tokens` and `wall_s` of the whole repeat. Of `capacity`: by stage
            `weights_bytes`, `other_bytes`, `kv_bytes_per_token` and `pool_tokens`. Of `price`: `per_hour`.
    """

    fingerprint: str
    arm: str
    plan: str
    device: str
    settings_hash: str
    settings: dict[str, Any]
    kind: str
    prompt_tokens: int = 0
    concurrency: int = 0
    repeat: int = 0
    status: str = "measured"
    message: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    created_at: str = ""

    @property
    def cell(self) -> tuple[int, int]:
        """Prompt tokens and concurrency."""
        return self.prompt_tokens, self.concurrency


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What is read of an arm beside right and wrong.

    Attributes:
        choices: By sample.
        seconds: Of work on each scored sample.
        serving: What `evalsvc bench-serve` measured of the arm.
    """

    choices: Mapping[int, Choices] = field(default_factory=dict)
    seconds: Sequence[float] = ()
    serving: Sequence[Measurement] = ()


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One item (and one `through`) in two arms; a side is None where that arm has no sample of it."""

    suite: str
    family: str
    cluster: str
    item_id: str
    through: str
    scored_by: str
    metric: str
    chance: float
    repeat: int
    baseline: Side | None
    candidate: Side | None


@dataclass(frozen=True, kw_only=True)
class ArmRecord:
    """One arm with what its run says of it.

    Attributes:
        seed: Of the order in which its items were asked.
        series: Kept figures for histories, by id of the frozen baseline.
        capabilities: By name what the target can do, as `schema.Arm`; empty where nobody asked it.
    """

    id: int
    run_id: int
    run_kind: str
    run_status: str
    linked_run_id: int | None
    experiment: str
    baseline: str
    name: str
    fingerprint: str
    plan: str
    stages: dict[str, dict[str, Any]]
    injected: dict[str, Any]
    details: dict[str, Any]
    status: str
    proof: dict[str, Any] | None
    proof_status: str | None
    probe: dict[str, Any] | None
    expected: int
    seed: int = 0
    experiment_hash: str = ""
    series: dict[str, Any] = field(default_factory=dict)
    capabilities: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """`RUN:ARM`, as typed on the command line."""
        return f"{self.run_id}:{self.name}"

    @property
    def stopped(self) -> dict[str, Any] | None:
        """Where a sequential design stopped the arm (its `items` of `planned` ones); None where all were asked."""
        return self.details.get("stopped")

    @property
    def rescored(self) -> dict[str, str]:
        """By suite the scoring version that its samples are read under; a suite that is not named reads the newest."""
        return self.details.get("rescored", {})

    def reads(self, suite: str, scoring_version: str) -> bool:
        """Whether scores of this version count for a suite; where several do, the newest of them."""
        return self.rescored.get(suite, scoring_version) == scoring_version

    def seconds(self) -> dict[str, tuple[float, tuple[str, ...]]]:
        """By stage the seconds that it computed, and the other arms of the run that it computed for at once."""
        proofs = {stage: (self.proof or {}).get(stage, {}) for stage in ("prefill", "decode")}
        return {
            stage: (proof["seconds"], tuple(proof.get("shared_with", ())))
            for stage, proof in proofs.items()
            if proof.get("seconds") is not None
        }


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run with the names of its arms and how many samples and errors they hold."""

    id: int
    experiment: str
    experiment_hash: str
    kind: str
    linked_run_id: int | None
    baseline: str
    status: str
    created_at: str
    finished_at: str | None
    seed: int
    arms: tuple[str, ...]
    samples: int
    errors: int


@dataclass(frozen=True, kw_only=True)
class BaselineRecord:
    """One promotion: since `created_at` the name meant the arm, until a later promotion of it.

    Attributes:
        address: `RUN:ARM`.
        current: Whether this is the name's newest promotion.
    """

    name: str
    arm_id: int
    address: str
    why: str
    created_at: str
    current: bool


@dataclass(frozen=True, kw_only=True)
class ArmTotals:
    """Sums over an arm's samples; None where no sample knows.

    Attributes:
        seconds: Of work; waiting in a queue is left out.
        escaped: Samples that hold `\\udc80`-like escapes for what no database text can hold.
    """

    samples: int
    errors: int
    skipped: int
    prompt_tokens: int | None
    answer_tokens: int | None
    seconds: float | None
    escaped: int = 0
