"""A page that lies is an error of its item and an incident in the database; the next run of it is an answer."""

from sqlalchemy import select

from evalsvc.engine.kv.guard import Check
from evalsvc.store import queries
from evalsvc.store.schema import IncidentRow, Sample
from evalsvc.store.session import open_store
from tests.evalsvc import by_hand

ARMS = {"bf16": {"plan": "w=bf16"}, "kv": {"plan": "kv=bf16 > kv=fp8"}}


def incidents(database):
    with open_store(database, read_only=True) as store, store.session() as session:
        return list(session.execute(select(IncidentRow, Sample).join(Sample, IncidentRow.sample_id == Sample.id)))


def test_it_is_stored_with_its_place(tmp_path, write_experiment, execute_file, monkeypatch):
    path, database = write_experiment(tmp_path / "experiment", arms=ARMS, aa=None), tmp_path / "runs.sqlite"
    real, checked = Check.layer, []

    def lying(self, layer):
        checked.append(layer)
        if len(checked) == 41:  # after the first layer of some step
            self._guard.stamps[layer, self.slots[3], 0] += 7
        real(self, layer)

    with monkeypatch.context() as patched:
        patched.setattr(Check, "layer", lying)
        run_id, heard = execute_file(path, database)
    found = incidents(database)
    assert found and any("of them have no score" in note for note in heard.notes)
    for incident, sample in found:
        assert (sample.status, sample.error_class) == ("error", "integrity") and incident.run_id == run_id
        assert incident.found_tag == incident.expected_tag + 7 and not incident.content
        assert incident.found_position == incident.expected_position
        assert incident.slot // 16 == incident.page and incident.step > 0
        assert str(incident.expected_tag) in sample.error_message
        assert "/" in incident.request and incident.arm in ARMS
    with open_store(database, read_only=True) as store:
        errors = sum(run.errors for run in queries.runs(store))
    assert errors == len({incident.sample_id for incident, _ in found})


def test_a_retried_sample_keeps_its_incident(tmp_path):
    from evalsvc.store import writer
    from evalsvc.store.records import NewIncident

    met = NewIncident(
        stage="decode", page=3, slot=50, layer=1, expected_tag=9, expected_position=18, found_tag=8,
        found_position=2, content=False, step=77,
    )  # fmt: skip
    error = {"status": "error", "error_class": "integrity", "error_message": "no", "incident": met}
    failed, scored = by_hand.sample("i", **error), by_hand.sample("i", 1.0)
    with open_store(tmp_path / "r.sqlite", create=True) as store:
        run = by_hand.open_run(store, baseline="a")
        arm = by_hand.open_arm(store, run, "a")
        writer.add_samples(store, run, arm, [failed])
        writer.add_samples(store, run, arm, [scored])
    ((incident, sample),) = incidents(tmp_path / "r.sqlite")
    assert sample.status == "scored" and (incident.request, incident.arm) == ("tasks/i", "a")
    names = ("stage", "page", "slot", "layer", "expected_tag", "expected_position", "found_tag", "found_position")
    assert [getattr(incident, name) for name in names] == ["decode", 3, 50, 1, 9, 18, 8, 2]


def test_the_mode_is_part_of_what_an_arm_is_and_of_its_proof(tmp_path, write_experiment, execute_file):
    prints, modes = {}, {}
    for mode in (False, "tags", "content"):  # YAML reads `off` as false
        path = write_experiment(tmp_path / "experiment", arms=ARMS, aa=None, integrity=mode)
        database = tmp_path / f"{mode}.sqlite"
        execute_file(path, database)
        with open_store(database, read_only=True) as store:
            arm = queries.arms(store, 1)[0]
        prints[mode], modes[mode] = arm.fingerprint, arm.details["integrity"]
        assert arm.proof_status == "matched"
        held = arm.proof["decode"]["integrity"]
        assert held["mode"] == modes[mode] and (held["slots_checked"] > 0) == (mode is not False)
    assert len(set(prints.values())) == 3 and modes == {False: "off", "tags": "tags", "content": "content"}
