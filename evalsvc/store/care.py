"""Looking after a database: whether it is whole, what it holds, and giving space back."""

from dataclasses import dataclass

from sqlalchemy import func, select, text

from evalsvc.errors import StoreError
from evalsvc.store.failures import store_errors
from evalsvc.store.schema import Arm, Base, Sample
from evalsvc.store.session import Location, Store


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What a database holds.

    Attributes:
        rows: By table.
        size: Bytes: of the file with what waits in its log, or of the server's database.
    """

    rows: dict[str, int]
    size: int


def problems(store: Store) -> list[str]:
    """What is wrong with a database; empty where it is whole.

    Pages and indexes (SQLite), references, and the counts that each arm keeps of its samples.
    """
    found: list[str] = []
    with store.session() as session:
        if session.get_bind().dialect.name == "sqlite":
            said = session.scalars(text("PRAGMA integrity_check(20)")).all()
            found += [line for line in said if line != "ok"]
            for table, row, parent, _ in session.execute(text("PRAGMA foreign_key_check")):
                found.append(f"row {row} of {table} refers to a row of {parent} that is not there")
        failed = func.count(Sample.id).filter(Sample.status == "error")
        counted = (
            select(Arm.run_id, Arm.name, Arm.stored, Arm.errors, func.count(Sample.id), failed)
            .outerjoin(Sample, Sample.arm_id == Arm.id)
            .group_by(Arm.id, Arm.run_id, Arm.name, Arm.stored, Arm.errors)
            .order_by(Arm.id)
        )
        for run_id, name, stored, errors, samples, failures in session.execute(counted):
            if (stored, errors) != (samples, failures):
                held = f"has {samples} with {failures}"
                found.append(f"arm {run_id}:{name} counts {stored} samples with {errors} errors, and {held}")
    return found


def stats(store: Store) -> Stats:
    """Rows by table, and bytes."""
    with store.session() as session:
        rows = {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in sorted(Base.metadata.tables.items())
        }
        if session.get_bind().dialect.name == "postgresql":
            return Stats(rows=rows, size=session.scalar(text("SELECT pg_database_size(current_database())")) or 0)
    path = Location.parse(store.address).path
    assert path is not None
    beside = (path, path.with_name(path.name + "-wal"))
    return Stats(rows=rows, size=sum(file.stat().st_size for file in beside if file.exists()))


def vacuum(store: Store) -> None:
    """Gives the space of deleted rows back to the disk; needs as much free space as the database takes.

    Raises:
        StoreError: A store that was opened for reading only, or no space.
    """
    if store.read_only:
        raise StoreError(f"{store.name}: was opened for reading only")
    with store_errors(store.name):
        raw = store.engine.raw_connection()
        try:
            if store.engine.dialect.name == "postgresql":
                assert raw.driver_connection is not None
                raw.driver_connection.autocommit = True
                raw.cursor().execute("VACUUM ANALYZE")
            else:
                raw.cursor().execute("VACUUM")
                raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            raw.invalidate()
