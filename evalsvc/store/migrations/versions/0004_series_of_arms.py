"""Figures of histories, kept with the arm."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("arms", sa.Column("series", sa.JSON(), nullable=True))
