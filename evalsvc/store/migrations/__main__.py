"""`python -m evalsvc.store.migrations TEXT`: writes the next revision from what `schema.py` has more than the last."""

import re
import sys

from alembic import command
from sqlalchemy import create_engine

from evalsvc.store.migrations import FOLDER, config, migrate


def write_revision(text: str) -> str:
    """Writes `versions/NNNN_text.py` and returns its number."""
    number = f"{len(list((FOLDER / 'versions').glob('[0-9]*.py'))) + 1:04}"
    slug = "_".join(re.findall("[a-z0-9]+", text.lower()))
    with create_engine("sqlite://").begin() as connection:
        migrate(connection)
        made = config(connection)
        made.set_main_option("file_template", f"%(rev)s_{slug}".replace("%", "%%"))
        command.revision(made, text, autogenerate=True, rev_id=number)
    return number


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].strip(" ."):
        sys.exit('error: say what the revision does: python -m evalsvc.store.migrations "Table of measurements"')
    print(write_revision(sys.argv[1].strip(" .")))
