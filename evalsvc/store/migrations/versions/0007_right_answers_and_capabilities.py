"""What is right of an item that no case file tells, and what an arm's target can do."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("items", sa.Column("right_answer", sa.Text(), nullable=True))
    op.add_column("arms", sa.Column("capabilities", sa.JSON(), nullable=True))
