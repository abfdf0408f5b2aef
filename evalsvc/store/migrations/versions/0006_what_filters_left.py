"""What a filter left of an answer, kept with each score."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("scores", sa.Column("filtered", sa.Text(), nullable=True))
