"""Revisions of the schema, oldest first: `versions/NNNN_what.py`, numbered without gaps.

To change a table: edit `schema.py`, raise `schema.REVISION` by one, and run
`python -m evalsvc.store.migrations "what it does"`, which writes the revision as far as Alembic sees the difference.
Read and finish it: it must say everything itself (never import `schema`, which goes on changing), a new column of a
table with rows needs a `server_default` or has to be nullable, and other changes of an SQLite table go through
`op.batch_alter_table`. Two revisions that were made side by side: the second to land takes the next number. Nothing
goes back; the way back is the backup. `tests/evalsvc/store/test_migrations.py` upgrades from every revision, with rows
in every table, and holds that what comes out is `schema.py`.

A revision whose older files cannot be read as they are (a column that queries name) also raises
`schema.READABLE_FROM` to its own number; a table that came and is only looked for does not.
"""

from pathlib import Path
from threading import Lock

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

FOLDER = Path(__file__).parent
_one_at_a_time = Lock()  # Alembic keeps what it is doing in one place of the process


def config(connection: Connection) -> Config:
    """What Alembic needs to know; everything runs over `connection`, in its transaction."""
    made = Config()
    made.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.attributes["connection"] = connection
    return made


def migrate(connection: Connection, revision: str = "head") -> None:
    """Runs the revisions that a database lacks, up to `revision`; the caller's transaction commits or undoes them."""
    with _one_at_a_time:
        command.upgrade(config(connection), revision)
