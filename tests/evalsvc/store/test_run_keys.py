"""What of a run is an integrity incident, and that finding it reads no other sample."""

from sqlalchemy import event

from evalsvc.store import writer
from evalsvc.store.run_keys import incidents


def test_incidents_are_counted_by_arm_through_an_index_of_their_own(store, build):
    run_id = build.run()
    base, other = build.arm(run_id), build.arm(run_id, "other")
    lost = [build.error(i, error_class="integrity") for i in range(2)]
    writer.add_samples(store, run_id, base, [build.sample(9), build.error(8, error_class="timeout")])
    writer.add_samples(store, run_id, other, [build.sample(9), *lost])
    lite = store.engine.dialect.name == "sqlite"  # a server reads so few rows without an index
    plans: list[str] = []

    def explain(_connection, cursor, statement, parameters, _context, _many):
        if statement.startswith("SELECT samples.arm_id") and lite:
            plans.extend(row[3] for row in cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters))

    event.listen(store.engine, "before_cursor_execute", explain)
    found = incidents(store, run_id)
    assert found == {"base": "", "other": "pages of its KV cache failed their check in 2 samples"}
    assert ["INDEX ix_samples_of_incidents" in plan for plan in plans] == [True] * lite
