"""Tables. One sample is one arm's answer to one item in one run; its scores are rows of their own.

Points are never stored: proportions are.
"""

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, Double, ForeignKey, Index, LargeBinary, Text, UniqueConstraint, false, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from evalsvc.store.texts import PackedJSON, PackedText

REVISION = "0007"  # the newest of store/migrations, which say how to add one
READABLE_FROM = "0007"  # files from this revision on are read as they are; "0000" is before there were revisions
_BROKEN = text("error_class = 'integrity'")  # few samples, and none of most runs


def utc_now() -> str:
    """Now as ISO 8601 in UTC, the form of every stored time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Base(DeclarativeBase):
    """Declarative base; JSON columns hold plain dicts and lists."""

    type_annotation_map: ClassVar = {dict[str, Any]: JSON, list[Any]: JSON, float: Double}


class Meta(Base):
    """One row: the schema's version."""

    __tablename__ = "meta"
    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class Run(Base):
    """One execution of an experiment. `kind` is `main`, or `aa` for the baseline against itself in `linked_run_id`."""

    __tablename__ = "runs"
    id: Mapped[int] = mapped_column(primary_key=True)
    experiment: Mapped[str]
    experiment_hash: Mapped[str] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(default="main")
    linked_run_id: Mapped[int | None] = mapped_column(ForeignKey("runs.id"))
    baseline: Mapped[str]
    seed: Mapped[int]
    status: Mapped[str] = mapped_column(default="running")  # running | finished
    created_at: Mapped[str] = mapped_column(default=utc_now)
    finished_at: Mapped[str | None]
    resolved: Mapped[dict[str, Any]]
    arms: Mapped[list["Arm"]] = relationship(back_populates="run", order_by="Arm.id")


class Arm(Base):
    """One column of a run: a target under a plan.

    `stages` is per stage {weights, kv, checkpoint, fault}; `injected` names planted faults (empty when honest);
    `proof` is what was measured, `proof_status` matched | mismatched | declared once the arm is finished; `probe` is
    per stage {kl_mean, kl_max, tokens} against the baseline over a fixed text, and per `answers_STAGE` the same along
    the baseline's answers to own prompts. `stored` and `errors` count its samples, so that a list of runs reads none.
    `series` holds by frozen baseline what a history found, so that it need not be found again. `capabilities` says by
    name what its target can do and how that is known, {can, about}; null of runs from before that was asked.
    """

    __tablename__ = "arms"
    __table_args__ = (UniqueConstraint("run_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), index=True)
    name: Mapped[str]
    fingerprint: Mapped[str] = mapped_column(index=True)
    plan: Mapped[str]
    stages: Mapped[dict[str, Any]]
    injected: Mapped[dict[str, Any]]
    details: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(default="running")  # running | finished
    proof: Mapped[dict[str, Any] | None]
    proof_status: Mapped[str | None]
    probe: Mapped[dict[str, Any] | None]
    expected: Mapped[int]  # samples of a complete arm
    stored: Mapped[int] = mapped_column(default=0, server_default="0")
    errors: Mapped[int] = mapped_column(default=0, server_default="0")
    series: Mapped[dict[str, Any] | None]
    capabilities: Mapped[dict[str, Any] | None]
    run: Mapped[Run] = relationship(back_populates="arms")


class ItemRow(Base):
    """One item as it was asked. `chance` is a proportion; `cluster` is empty when the item stands alone.

    `right_answer` is what is right as text, where neither a case file nor the choices say it and a task does.
    """

    __tablename__ = "items"
    __table_args__ = (UniqueConstraint("suite", "item_id", "item_hash"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    suite: Mapped[str]
    item_id: Mapped[str]
    item_hash: Mapped[str]
    family: Mapped[str]
    cluster: Mapped[str]
    metric: Mapped[str]
    filter: Mapped[str]
    chance: Mapped[float]
    scored_by: Mapped[str]
    right_answer: Mapped[str | None] = mapped_column(Text)


class Sample(Base):
    """One answer. Unique on everything that makes it this answer, so that a retry never counts twice.

    `status` is scored | error | skipped. `through` is the stage asked to produce the scored logits of a
    log-likelihood item, empty for a generation. `stage_tokens` counts scored tokens per stage, `handed_over` says
    whether decode read a context that prefill computed. `answer` is text, or JSON text for log-likelihoods; `escaped`
    says that it or the prompt holds `\\udc80`-like escapes for what no database text can hold. `alternatives` are the
    likeliest tokens at each generated one (`evalsvc.alternatives`), null where nobody said them.
    """

    __tablename__ = "samples"
    __table_args__ = (
        UniqueConstraint("run_id", "arm_fingerprint", "item_pk", "request_hash", "settings_hash", "repeat"),
        Index("ix_samples_of_arm", "arm_id", "item_pk", "through", "repeat", "status"),
        Index("ix_samples_of_incidents", "run_id", "arm_id", sqlite_where=_BROKEN, postgresql_where=_BROKEN),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    arm_id: Mapped[int] = mapped_column(ForeignKey("arms.id"))
    arm_fingerprint: Mapped[str]
    item_pk: Mapped[int] = mapped_column(ForeignKey("items.id"))
    request_hash: Mapped[str]
    settings_hash: Mapped[str]
    rendered_hash: Mapped[str | None]
    repeat: Mapped[int] = mapped_column(default=0)
    through: Mapped[str] = mapped_column(default="")
    status: Mapped[str]
    error_class: Mapped[str | None]
    error_message: Mapped[str | None] = mapped_column(Text)
    prompt: Mapped[str] = mapped_column(PackedText)
    answer: Mapped[str] = mapped_column(PackedText)
    escaped: Mapped[bool] = mapped_column(default=False, server_default=false())
    finish_reason: Mapped[str | None]
    prompt_tokens: Mapped[int | None]
    answer_tokens: Mapped[int | None]
    stage_tokens: Mapped[dict[str, Any]]
    handed_over: Mapped[bool] = mapped_column(default=False)
    timings: Mapped[dict[str, Any]]  # queue_s, prefill_s, decode_s
    alternatives: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    created_at: Mapped[str] = mapped_column(default=utc_now)
    item: Mapped[ItemRow] = relationship()
    scores: Mapped[list["ScoreRow"]] = relationship(cascade="all, delete-orphan")


class ScoreRow(Base):
    """One metric of one sample under one scoring version; re-scoring adds rows.

    `filtered` is what the filter left of a generated answer, where that is not the answer itself.
    """

    __tablename__ = "scores"
    __table_args__ = (UniqueConstraint("sample_id", "scoring_version", "metric", "filter"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    sample_id: Mapped[int] = mapped_column(ForeignKey("samples.id"))
    scoring_version: Mapped[str]
    metric: Mapped[str]
    filter: Mapped[str]
    value: Mapped[float]
    error_class: Mapped[str | None]
    filtered: Mapped[str | None] = mapped_column(PackedText)


class IncidentRow(Base):
    """A slot of a KV page that did not hold what a request expected there, which ended the request.

    `request` is the item, as people read it; the sample may have an answer since, of a run that went on. `stage` is
    `prefill`, `decode`, or `handoff` between them. `content` says that tag and position were right and what was stored
    was not. `step` counts the stage's forwards.
    """

    __tablename__ = "incidents"
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), index=True)
    arm_id: Mapped[int] = mapped_column(ForeignKey("arms.id"))
    arm: Mapped[str]
    sample_id: Mapped[int] = mapped_column(ForeignKey("samples.id"))
    request: Mapped[str]
    stage: Mapped[str]
    page: Mapped[int]
    slot: Mapped[int]
    layer: Mapped[int]
    expected_tag: Mapped[int]
    expected_position: Mapped[int]
    found_tag: Mapped[int]
    found_position: Mapped[int]
    content: Mapped[bool]
    step: Mapped[int]
    created_at: Mapped[str] = mapped_column(default=utc_now)


class TurnRow(Base):
    """One answer of a generated sample, from turn 0 on, with the tokens that were written.

    `answer` and `finish_reason` are those of the turn; null for the last one, whose are the sample's.
    """

    __tablename__ = "turns"
    __table_args__ = (UniqueConstraint("sample_id", "turn"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    sample_id: Mapped[int] = mapped_column(ForeignKey("samples.id"))
    turn: Mapped[int]
    answer: Mapped[str | None] = mapped_column(PackedText)
    finish_reason: Mapped[str | None]
    token_ids: Mapped[list[Any]] = mapped_column(PackedJSON)


class DecisionRow(Base):
    """One gate decision of a candidate against a baseline, as the decision object's JSON."""

    __tablename__ = "decisions"
    id: Mapped[int] = mapped_column(primary_key=True)
    baseline_arm_id: Mapped[int] = mapped_column(ForeignKey("arms.id"))
    candidate_arm_id: Mapped[int] = mapped_column(ForeignKey("arms.id"), index=True)
    policy_hash: Mapped[str]
    verdict: Mapped[str]
    exit_code: Mapped[int]
    decision: Mapped[dict[str, Any]]
    created_at: Mapped[str] = mapped_column(default=utc_now)


class BaselineRow(Base):
    """One promotion of an arm to a name. Rows stay; the newest of a name counts."""

    __tablename__ = "baselines"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(index=True)
    arm_id: Mapped[int] = mapped_column(ForeignKey("arms.id"))
    why: Mapped[str] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(default=utc_now)


class MeasurementRow(Base):
    """One figure of serving: of an arm as its fingerprint tells it, whichever runs it is in.

    `kind` is `serving` (one repeat of one cell of a grid: prompt tokens x concurrency), `capacity` (what the arm's
    formats take, one row) or `price` (per hour, as it was given; no measurement, and so a row of its own). `status` is
    `measured`, `no_room` (it does not fit: a result) or `failed`. `device` is the class of device that the figures are
    of.
    """

    __tablename__ = "measurements"
    __table_args__ = (
        UniqueConstraint("fingerprint", "settings_hash", "kind", "prompt_tokens", "concurrency", "repeat"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(index=True)
    arm: Mapped[str]
    plan: Mapped[str]
    device: Mapped[str]
    settings_hash: Mapped[str]
    settings: Mapped[dict[str, Any]]
    kind: Mapped[str]
    prompt_tokens: Mapped[int] = mapped_column(default=0)
    concurrency: Mapped[int] = mapped_column(default=0)
    repeat: Mapped[int] = mapped_column(default=0)
    status: Mapped[str]
    message: Mapped[str | None] = mapped_column(Text)
    figures: Mapped[dict[str, Any]]
    created_at: Mapped[str] = mapped_column(default=utc_now)
