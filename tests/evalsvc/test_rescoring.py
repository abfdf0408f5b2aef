"""Stored answers under changed rules: every arm alike, old scores kept, all or nothing."""

import json
import os
import shutil
import signal
import sqlite3
import sys
from contextlib import contextmanager
from dataclasses import fields

import pytest

from evalsvc.engine.requests import GenerateRequest, GenerateResult, ScoreResult
from evalsvc.errors import ConfigError, EvidenceError
from evalsvc.evidence import find_faults
from evalsvc.policy import Policy
from evalsvc.questions import questions
from evalsvc.rescoring import rescore, run_to_rescore
from evalsvc.runner import ArmRun, run_group
from evalsvc.store import queries, writer
from evalsvc.store.records import NewScore, Rescored
from evalsvc.store.session import Store, open_store
from evalsvc.suites import lmeval
from evalsvc.suites.base import Item, Score
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.own import PromptSuite
from evalsvc.suites.toolcall import ToolCallSuite
from evalsvc.targets.base import ArmFacts

SCORES = "SELECT sample_id, metric, filter, value, error_class FROM scores WHERE scoring_version {} ORDER BY 1, 2, 3"


def rows(db, query, *values):
    with sqlite3.connect(db) as connection:
        found = connection.execute(query, values).fetchall()
    connection.close()
    return found


@pytest.fixture
def finished(six_arms, tmp_path):
    """A copy of the finished six-arm run: experiment file and database."""
    shutil.copytree(six_arms[0].parent, tmp_path / "finished")
    shutil.copy(six_arms[1], tmp_path / "six.sqlite")
    return tmp_path / "finished" / "experiment.yaml", tmp_path / "six.sqlite"


@pytest.fixture
def again(finished):
    """Scores the run of `finished` again, as the suites score now."""
    from evalsvc.prepared import prepare

    def call():
        path, db = finished
        with open_store(db) as store:
            return rescore(store, prepare(path).asked, run_to_rescore(store, "tiny", None))

    return call


@pytest.fixture
def inverted(monkeypatch):
    """Format answers are right where they were wrong, under a version of their own."""
    score = FormatSuite.score

    def other(self, item, answers):
        return [Score(metric=s.metric, value=1 - s.value) for s in score(self, item, answers)]

    monkeypatch.setattr(FormatSuite, "score", other)
    monkeypatch.setattr(FormatSuite, "scoring_version", "formats-inverted")


def test_the_same_rules_under_another_version_give_the_same_scores(again, finished, monkeypatch):
    _, db = finished
    before = rows(db, SCORES.format("NOT LIKE 'again%'"))
    for suite in (FormatSuite, ToolCallSuite):
        monkeypatch.setattr(suite, "scoring_version", f"again-{suite.scoring_version}")
    monkeypatch.setattr(lmeval, "version", lambda name: "again")
    reports = again()
    new = rows(db, SCORES.format("LIKE '%again%'"))
    assert new == before and rows(db, SCORES.format("NOT LIKE '%again%'")) == before
    assert {(r.arm, r.suite) for r in reports} >= {("1:bf16", "tasks"), ("1:damaged", "tools"), ("2:bf16", "formats")}
    assert sum(r.added for r in reports) == len({row[0] for row in before}) and not any(r.left for r in reports)
    assert not any(r.changed for r in reports)


def test_what_is_read_changes_in_every_arm_and_the_aa(again, finished, inverted):
    _, db = finished
    with open_store(db, read_only=True) as store:
        pairs = queries.pairs(store, *queries.arms(store, 1)[:2])
    reports = {(r.arm, r.suite): r for r in again()}
    assert reports["2:bf16", "formats"].added == 14 and reports["2:bf16", "tasks"].added == 0
    assert reports["1:mixed", "formats"].changed == 14 and reports["1:mixed", "formats"].before == {"formats-2"}
    with open_store(db, read_only=True) as store:
        after = queries.pairs(store, *queries.arms(store, 1)[:2])
    for old, new in zip(pairs, after, strict=True):
        flipped = old.suite == "formats"
        assert new.candidate.value == (1 - old.candidate.value if flipped else old.candidate.value)
        assert (new.baseline.scoring_version == "formats-inverted") == flipped


def test_a_second_call_does_nothing(again, finished, inverted):
    again()
    stored = rows(finished[1], "SELECT * FROM scores"), rows(finished[1], "SELECT details FROM arms")
    reports = again()
    assert (rows(finished[1], "SELECT * FROM scores"), rows(finished[1], "SELECT details FROM arms")) == stored
    assert not any(r.added or r.switches for r in reports)


def test_rules_that_come_back_are_read_again_and_nothing_is_added(again, finished, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FormatSuite, "scoring_version", "formats-other")
        again()
    count = rows(finished[1], "SELECT count(*) FROM scores")
    assert not any(r.added for r in again())
    assert rows(finished[1], "SELECT count(*) FROM scores") == count
    with open_store(finished[1], read_only=True) as store:
        versions = {p.baseline.scoring_version for p in queries.pairs(store, *queries.arms(store, 1)[:2])}
    assert "formats-2" in versions and "formats-other" not in versions


def test_items_that_are_gone_or_changed_are_named_and_are_errors_from_then_on(again, finished, inverted):
    path, db = finished
    cases = (path.parent / "formats.jsonl").read_text().splitlines()
    cases[3] = cases[3].replace("[^e-t]*", "[^a-t]*")
    cases[5] = cases[5].replace("Write 5", "Write five")
    (path.parent / "formats.jsonl").write_text("\n".join([*cases[:7], *cases[8:]]))
    report = next(r for r in again() if (r.arm, r.suite) == ("1:mixed", "formats"))
    changed = "changed since it was answered"
    assert report.left == {"f3": changed, "f5": changed, "f7": "no longer in the suites"} and report.added == 11
    with open_store(db, read_only=True) as store:
        pairs = queries.pairs(store, *queries.arms(store, 1)[:2])
    lost = {p.item_id: (p.candidate.status, p.candidate.value, p.candidate.error_class) for p in pairs}
    assert {name for name, said in lost.items() if said == ("error", None, "not_rescored")} == {"f3", "f5", "f7"}


def test_other_limits_of_an_answer_do_not_change_what_it_says(again, finished, inverted):
    path, _ = finished
    cases = (path.parent / "formats.jsonl").read_text()
    (path.parent / "formats.jsonl").write_text(cases.replace('"max_tokens": 3', '"max_tokens": 9'))
    assert not any(r.left for r in again())


def test_a_scorer_that_fails_leaves_an_error_and_no_score(again, finished, inverted, monkeypatch):
    score = FormatSuite.score

    def fails(self, item, answers):
        if item.id == "f4":
            raise EvidenceError("the scorer broke")
        return score(self, item, answers)

    monkeypatch.setattr(FormatSuite, "score", fails)
    report = next(r for r in again() if (r.arm, r.suite) == ("1:bf16", "formats"))
    assert report.left == {"f4": "the scorer broke"} and report.added == 13
    with open_store(finished[1], read_only=True) as store:
        pairs = queries.pairs(store, *queries.arms(store, 1)[:2])
    assert [p.item_id for p in pairs if p.baseline.status == "error"] == ["f4"]


def test_choices_whose_greedy_flags_were_not_stored_are_refused_by_name(again, finished, monkeypatch):
    with sqlite3.connect(finished[1]) as connection:
        connection.execute("UPDATE samples SET answer = json_remove(answer, '$.greedy') WHERE through != ''")
    connection.close()
    monkeypatch.setattr(lmeval, "version", lambda name: "again")
    report = next(r for r in again() if (r.arm, r.suite) == ("1:bf16", "tasks"))
    assert set(report.left.values()) == {"which choices greedy decoding would have written was not stored"}
    assert report.added == 0 and not report.switches and "tiny_sums_one:0 through decode" in report.left


def die(patch, committed):
    """SIGKILL to this process just before or just after its next commit."""
    transaction = Store.transaction

    @contextmanager
    def dying(store):
        with transaction(store) as session:
            yield session
            session.flush()
            if not committed:
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    patch.setattr(Store, "transaction", dying)


@pytest.mark.parametrize("committed", [False, True])
def test_killed_before_and_after_its_commit(again, finished, inverted, committed):
    before = rows(finished[1], "SELECT count(*) FROM scores")
    child = os.fork()
    if child == 0:
        try:
            die(pytest.MonkeyPatch(), committed)
            again()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 3)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert (rows(finished[1], "SELECT count(*) FROM scores") == before) is not committed
    assert any(r.added for r in again()) is not committed
    assert not any(r.added or r.switches for r in again())


def test_another_experiments_suites_and_an_aa_are_refused(again, finished):
    path, db = finished
    with open_store(db) as store:
        with pytest.raises(ConfigError, match="run 2 is the A/A of run 1"):
            run_to_rescore(store, "tiny", 2)
        with pytest.raises(ConfigError, match="no run of experiment 'other'; --run N names another"):
            run_to_rescore(store, "other", None)
    cases = (path.parent / "formats.jsonl").read_text()
    (path.parent / "formats.jsonl").write_text(cases.replace('"id": "f', '"id": "g'))
    text = path.read_text()
    path.write_text(text[: text.index("- name: tasks")] + text[text.index("- name: formats") :])
    with pytest.raises(ConfigError, match=r"no sample of the suites formats can be scored again: .* no longer in the"):
        again()


def test_a_score_that_is_no_number_is_refused_whole(finished):
    with open_store(finished[1]) as store, pytest.raises(Exception, match="acc of sample 2 is nan"):
        good, bad = (NewScore(metric="acc", filter="none", value=v) for v in (1.0, float("nan")))
        writer.add_scores(
            store,
            [Rescored(sample_id=1, scoring_version="x", scores=(good,))] * 1
            + [Rescored(sample_id=2, scoring_version="x", scores=(bad,))],
            {},
        )
    assert rows(finished[1], "SELECT count(*) FROM scores WHERE scoring_version = 'x'") == [(0,)]


class Talk:
    """Asks three times, each time after what was said; right when all that was said is `a b c` with its tokens."""

    name, scoring_version = "talk", "talk-1"

    def __init__(self, turns=3):
        self.turns = turns

    def items(self):
        return [Item(id="one", family="f", cluster="", sha256="h", metric="correct")]

    def next_request(self, item, answers):
        if len(answers) == self.turns:
            return None
        return GenerateRequest(prompt="say " + " ".join(a.text for a in answers), max_tokens=4)

    def score(self, item, answers):
        said = [(a.text, a.token_ids, a.finish_reason) for a in answers]
        wanted = [("a", (1,), "stop"), ("b", (2,), "length"), ("c", (3,), "stop")]
        return [Score(metric="correct", value=float(said == wanted))]


class Talker:
    def submit(self, requests):
        for request in requests:
            turn = len(request.prompt.split()) - 1
            for arm in request.arms:
                yield GenerateResult(
                    id=request.id,
                    arm=arm,
                    text="abc"[turn],
                    token_ids=(turn + 1,),
                    prompt_tokens=3,
                    prompt_sha256="r",
                    finish_reason="length" if turn == 1 else "stop",
                    stage_tokens={"prefill": 1, "decode": 0},
                )


@pytest.fixture
def talked(tmp_path):
    """A database with one conversation of three turns."""
    with open_store(tmp_path / "talk.sqlite", create=True) as store:
        run = writer.open_run(store, experiment="e", experiment_hash="h", resolved={}, baseline="base", seed=0)
        about = {"plan": "", "stages": {}, "injected": {}, "details": {}}
        arm = writer.open_arm(store, run, name="base", fingerprint="f", expected=1, **about)
        facts = ArmFacts(name="base", fingerprint="f", **about)
        run_group(store, Talker(), [ArmRun(run, arm, facts)], questions([Talk()], ()), 0)
        yield store


def test_every_turn_of_a_conversation_is_scored_again(talked, monkeypatch):
    monkeypatch.setattr(Talk, "scoring_version", "talk-2")
    (report,) = rescore(talked, questions([Talk()], ()), queries.run_record(talked, 1))
    assert (report.added, report.changed) == (1, 0)
    assert [p.baseline.value for p in queries.pairs(talked, *queries.arms(talked) * 2)] == [1.0]


def test_a_conversation_that_goes_on_today_is_left(talked, monkeypatch):
    monkeypatch.setattr(Talk, "scoring_version", "talk-2")
    with pytest.raises(ConfigError, match="one its earlier turns were not stored, or its conversation goes on today"):
        rescore(talked, questions([Talk(turns=4)], ()), queries.run_record(talked, 1))


class Echo:
    """Answers every prompt with itself."""

    def submit(self, requests):
        for request in requests:
            yield GenerateResult(
                id=request.id,
                arm=request.arms[0],
                text=str(request.prompt),
                token_ids=(1, 2),
                prompt_tokens=3,
                prompt_sha256="r",
                finish_reason="stop",
                stage_tokens={"prefill": 1, "decode": 1},
            )


GATED = Policy(name="p", margins=[{"suite": "own", "metric": "free_of.any", "margin_points": 1.0}])  # pyright: ignore


def test_prompts_without_a_check_are_held_to_one_scoring_version(tmp_path, monkeypatch):
    """Their failure modes are scores, too: found by unequal rules, they are compared with nothing."""
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"id": f"i{n}", "prompt": f"Say {n}."}) + "\n" for n in range(4)))
    with open_store(tmp_path / "own.sqlite", create=True) as store:
        run = writer.open_run(store, experiment="e", experiment_hash="h", resolved={}, baseline="base", seed=0)
        about = {"plan": "", "stages": {}, "injected": {}, "details": {}}
        for name, version in (("base", "prompts-1"), ("other", "prompts-2")):
            monkeypatch.setattr(PromptSuite, "scoring_version", version)
            asked = questions([PromptSuite("own", path)], ())
            arm = writer.open_arm(store, run, name=name, fingerprint=name, expected=4, **about)
            run_group(store, Echo(), [ArmRun(run, arm, ArmFacts(name=name, fingerprint=name, **about))], asked, 0)

        def faults():
            arms = queries.arms(store, run)
            found = find_faults(*arms, queries.pairs(store, *arms, scores_of={"own"}), GATED)
            return [fault for fault in found if "unequal versions" in fault or "not_rescored" in fault]

        (fault,) = faults()
        assert fault.endswith("4 items, first own/i0")
        reports = {r.arm: r for r in rescore(store, asked, queries.run_record(store, run))}
        assert [(r.added, r.held, r.changed) for r in reports.values()] == [(4, 0, 0), (0, 4, 0)]
        assert reports["1:base"].before == {"prompts-1"} and reports["1:base"].switches
        assert faults() == []
        pairs = queries.pairs(store, *queries.arms(store, run), scores_of={"own"})
        assert {side.scoring_version for p in pairs for side in (p.baseline, p.candidate)} == {"prompts-2"}
        assert {side.scores["free_of.any"] for p in pairs for side in (p.baseline, p.candidate)} == {1.0}


def test_all_that_an_answer_is_made_of_is_stored_or_belongs_to_no_score():
    """Whoever gives an answer a new field decides here whether it is stored, for scoring again."""
    generated = {f.name for f in fields(GenerateResult)}
    assert generated == {
        *("id", "arm", "sample", "text", "token_ids", "logprobs", "texts", "prompt_tokens"),
        *("prompt_sha256", "finish_reason", "stage_tokens", "timings", "token_times_s", "tool_calls"),
    }
    assert {f.name for f in fields(ScoreResult)} - generated == {
        *("greedy", "continuation_tokens", "tokens", "divergences", "handed_over"),
    }
