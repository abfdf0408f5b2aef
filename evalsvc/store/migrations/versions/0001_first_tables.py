"""The first tables; a database from before there were revisions gets those that it lacks."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

revision = "0001"
down_revision = None

_tables = sa.MetaData()


def _text(name: str, *rest: SchemaItem, null: bool = False, type_: type[sa.String] = sa.String) -> sa.Column[str]:
    return sa.Column(name, type_(), *rest, nullable=null)


def _number(name: str, *rest: SchemaItem, null: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), *rest, nullable=null)


def _json(name: str, null: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(), nullable=null)


def _table(name: str, *parts: SchemaItem) -> None:
    sa.Table(name, _tables, sa.Column("id", sa.Integer(), primary_key=True), *parts)


sa.Table("meta", _tables, sa.Column("key", sa.String(), primary_key=True), _text("value"))
_table(
    "runs",
    _text("experiment"),
    _text("experiment_hash"),
    _text("kind"),
    _number("linked_run_id", sa.ForeignKey("runs.id"), null=True),
    _text("baseline"),
    _number("seed"),
    _text("status"),
    _text("created_at"),
    _text("finished_at", null=True),
    _json("resolved"),
    sa.Index("ix_runs_experiment_hash", "experiment_hash"),
)
_table(
    "arms",
    _number("run_id", sa.ForeignKey("runs.id")),
    _text("name"),
    _text("fingerprint"),
    _text("plan"),
    _json("stages"),
    _json("injected"),
    _json("details"),
    _text("status"),
    _json("proof", null=True),
    _text("proof_status", null=True),
    _json("probe", null=True),
    _number("expected"),
    sa.UniqueConstraint("run_id", "name"),
    sa.Index("ix_arms_fingerprint", "fingerprint"),
    sa.Index("ix_arms_run_id", "run_id"),
)
_table(
    "items",
    _text("suite"),
    _text("item_id"),
    _text("item_hash"),
    _text("family"),
    _text("cluster"),
    _text("metric"),
    _text("filter"),
    sa.Column("chance", sa.Double(), nullable=False),
    _text("scored_by"),
    sa.UniqueConstraint("suite", "item_id", "item_hash"),
)
_table(
    "samples",
    _number("run_id", sa.ForeignKey("runs.id")),
    _number("arm_id", sa.ForeignKey("arms.id")),
    _text("arm_fingerprint"),
    _number("item_pk", sa.ForeignKey("items.id")),
    _text("request_hash"),
    _text("settings_hash"),
    _text("rendered_hash", null=True),
    _number("repeat"),
    _text("through"),
    _text("status"),
    _text("error_class", null=True),
    _text("error_message", null=True, type_=sa.Text),
    _text("prompt", type_=sa.Text),
    _text("answer", type_=sa.Text),
    _text("finish_reason", null=True),
    _number("prompt_tokens", null=True),
    _number("answer_tokens", null=True),
    _json("stage_tokens"),
    sa.Column("handed_over", sa.Boolean(), nullable=False),
    _json("timings"),
    _text("created_at"),
    sa.UniqueConstraint("run_id", "arm_fingerprint", "item_pk", "request_hash", "settings_hash", "repeat"),
    sa.Index("ix_samples_arm", "arm_id", "status"),
)
_table(
    "scores",
    _number("sample_id", sa.ForeignKey("samples.id")),
    _text("scoring_version"),
    _text("metric"),
    _text("filter"),
    sa.Column("value", sa.Double(), nullable=False),
    _text("error_class", null=True),
    sa.UniqueConstraint("sample_id", "scoring_version", "metric", "filter"),
    sa.Index("ix_scores_sample_id", "sample_id"),
)
_table(
    "turns",
    _number("sample_id", sa.ForeignKey("samples.id")),
    _number("turn"),
    _text("answer", null=True, type_=sa.Text),
    _text("finish_reason", null=True),
    _json("token_ids"),
    sa.UniqueConstraint("sample_id", "turn"),
    sa.Index("ix_turns_sample_id", "sample_id"),
)
_table(
    "decisions",
    _number("baseline_arm_id", sa.ForeignKey("arms.id")),
    _number("candidate_arm_id", sa.ForeignKey("arms.id")),
    _text("policy_hash"),
    _text("verdict"),
    _number("exit_code"),
    _json("decision"),
    _text("created_at"),
    sa.Index("ix_decisions_candidate_arm_id", "candidate_arm_id"),
)
_table(
    "baselines",
    _text("name"),
    _number("arm_id", sa.ForeignKey("arms.id")),
    _text("why", type_=sa.Text),
    _text("created_at"),
    sa.Index("ix_baselines_name", "name"),
)
_table(
    "measurements",
    _text("fingerprint"),
    _text("arm"),
    _text("plan"),
    _text("device"),
    _text("settings_hash"),
    _json("settings"),
    _text("kind"),
    _number("prompt_tokens"),
    _number("concurrency"),
    _number("repeat"),
    _text("status"),
    _text("message", null=True, type_=sa.Text),
    _json("figures"),
    _text("created_at"),
    sa.UniqueConstraint("fingerprint", "settings_hash", "kind", "prompt_tokens", "concurrency", "repeat"),
    sa.Index("ix_measurements_fingerprint", "fingerprint"),
)


def upgrade() -> None:
    _tables.create_all(op.get_bind())
