"""What a filter left of an answer, kept with each score, and what else an answer's tokens could have been."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("scores", sa.Column("filtered", sa.Text(), nullable=True))
    op.add_column("samples", sa.Column("alternatives", sa.LargeBinary(), nullable=True))
