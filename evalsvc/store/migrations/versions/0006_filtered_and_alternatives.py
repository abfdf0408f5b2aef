"""What a filter left of an answer, what else an answer's tokens could have been; an index
of the samples that an incident ended.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("scores", sa.Column("filtered", sa.Text(), nullable=True))
    op.add_column("samples", sa.Column("alternatives", sa.LargeBinary(), nullable=True))
    few = sa.text("error_class = 'integrity'")
    op.create_index("ix_samples_of_incidents", "samples", ["run_id", "arm_id"], sqlite_where=few, postgresql_where=few)
