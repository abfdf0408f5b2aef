"""Samples counted by arm, texts that may be packed, and indexes that carry their weight."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for name in ("stored", "errors"):
        op.add_column("arms", sa.Column(name, sa.Integer(), server_default="0", nullable=False))
    op.add_column("samples", sa.Column("escaped", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.drop_index("ix_samples_arm", table_name="samples")
    op.create_index("ix_samples_of_arm", "samples", ["arm_id", "item_pk", "through", "repeat", "status"])
    op.drop_index("ix_scores_sample_id", table_name="scores")  # the unique constraints begin with the same column
    op.drop_index("ix_turns_sample_id", table_name="turns")
    for name, which in (("stored", ""), ("errors", " AND samples.status = 'error'")):
        counted = f"SELECT count(*) FROM samples WHERE samples.arm_id = arms.id{which}"
        op.execute(f"UPDATE arms SET {name} = ({counted})")
