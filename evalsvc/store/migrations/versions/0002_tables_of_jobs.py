"""Tables of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("word", sa.String(), nullable=False),
        sa.Column("alert", sa.String(), nullable=False),
        sa.Column("planned_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("job", "subject"),
    )
    op.create_table(
        "notices",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "schedules",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("cron", sa.String(), nullable=False),
        sa.Column("time_zone", sa.String(), nullable=False),
        sa.Column("seen_until", sa.String(), nullable=False),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("locked", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("notice_id", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("not_before", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("delivered_at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["notice_id"], ["notices.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("notice_id", "channel"),
    )
    op.create_table(
        "executions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("planned_at", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("not_before", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("lease_until", sa.String(), nullable=True),
        sa.Column("cancel", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=True),
        sa.Column("ended_at", sa.String(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["schedules.job"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job", "planned_at"),
    )
    op.create_index("ix_executions_waiting", "executions", ["status", "not_before"])

    op.create_table(
        "run_keys",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("key"),
    )
