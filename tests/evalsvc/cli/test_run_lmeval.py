"""Runs of lm-eval tasks from the experiment file to the exit code: corpus metrics, repeats, conversations, code."""

import json
import shutil
import sqlite3

import pytest

from evalsvc.store import queries
from evalsvc.store.session import open_store

TWO = {"bf16": {"plan": "w=bf16"}, "int4": {"plan": "w=int4:g32:asym > w=bf16"}}
TASK = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "docs.jsonl"}},
    "test_split": "test",
    "doc_to_text": "Say {{word}}:",
    "doc_to_target": "word",
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 6},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
PERPLEXITY = {"metric": "word_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False}
WHOLE = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{word}} and then {{word}}",
    "generation_kwargs": None,
    "metric_list": [PERPLEXITY],
}


@pytest.fixture
def run(evalsvc, write_experiment, tmp_path):
    """`run(task, *arguments, suite={}, **keys)`: an experiment over one task; returns exit code, out and err."""

    def call(task, *arguments, suite=None, **keys):
        folder = tmp_path / "an experiment"
        spec = {"name": "s", "kind": "lmeval", "tasks": ["mine.yaml"]} | (suite or {})
        given = {"arms": TWO, "suites": [spec], "probe": None, "aa": None, "score_through": "prefill"}
        path = write_experiment(folder, **given | keys)
        (folder / "docs.jsonl").write_text("".join(json.dumps({"word": f"word{n}"}) + "\n" for n in range(12)))
        config = {k: v for k, v in ({"task": "mine"} | TASK | task).items() if v is not None}
        text = json.dumps(config, indent=1).replace('"CODE"', "!function code.score")
        (folder / "mine.yaml").write_text(text)
        return evalsvc("run", path, "--db", tmp_path / "r.sqlite", *arguments)

    return call


def rows(tmp_path, query):
    connection = sqlite3.connect(tmp_path / "r.sqlite")
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def test_a_whole_text_is_gated_by_a_rule_about_its_perplexity(run, evalsvc, evalsvc_json, tmp_path):
    code, _, err = run(WHOLE)
    assert code == 0, err
    found = rows(
        tmp_path, "SELECT metric, COUNT(*), MIN(value), MAX(value) FROM scores GROUP BY metric ORDER BY metric"
    )
    assert [(name, count) for name, count, *_ in found] == [("word_perplexity.0", 24), ("word_perplexity.1", 24)]
    assert found[0][3] < 0 and found[1][2:] == (4, 4)
    gate = ["gate", "--baseline", "bf16", "--candidate", "int4", "--db", tmp_path / "r.sqlite", "--policy"]
    (tmp_path / "bare.yaml").write_text("name: p\n")
    assert evalsvc(*gate, tmp_path / "bare.yaml")[0] == 4, "nobody said what a perplexity may lose"
    rule = "{suite: s, metric: word_perplexity, margin: 1.0e+300, better: lower, statistic: perplexity}"
    (tmp_path / "rule.yaml").write_text(f"name: p\nmargins:\n  - {rule}\n")
    code, document = evalsvc_json(*gate, tmp_path / "rule.yaml")
    assert code == 0, document["decisions"][0]["sentence"]


def test_repeats_are_samples_of_one_item_with_the_same_seeds_in_every_arm(run, tmp_path):
    drawn = {"until": ["\n"], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0}
    code, _, err = run({"generation_kwargs": drawn, "repeats": 3})
    assert code == 0, err
    found = rows(
        tmp_path,
        "SELECT a.name, i.item_id, s.repeat, s.settings_hash, s.answer FROM samples s"
        " JOIN arms a ON a.id = s.arm_id JOIN items i ON i.id = s.item_pk",
    )
    assert len(found) == 2 * 12 * 3
    settings = {arm: {row[1:4] for row in found if row[0] == arm} for arm in TWO}
    assert settings["bf16"] == settings["int4"] and len({row[2] for row in settings["bf16"]}) == 36
    answers = [{row[4] for row in found if row[:2] == ("bf16", f"mine:{n}")} for n in range(12)]
    assert max(map(len, answers)) > 1, "another draw may give another answer"
    code, _, err = run({"generation_kwargs": drawn, "repeats": 3})
    assert code == 0 and "nothing is computed" in err


def test_code_in_task_files_runs_with_allow_code_alone(run, tmp_path):
    coded = {"process_results": "CODE", "metric_list": [{**PERPLEXITY, "metric": "f1", "aggregation": "mean"}]}
    code, out, err = run(coded)
    said = err.splitlines()[-1]
    assert (code, out) == (2, "") and said.startswith("error: ") and "mine.yaml:" in said and "--allow-code" in said
    body = "def score(doc, results):\n    return {'f1': len(results[0]) % 4 / 4}\n"
    (tmp_path / "an experiment" / "code.py").write_text(body)
    code, _, err = run(coded, "--allow-code", workers=2)
    assert code == 0, err
    values = {value for (value,) in rows(tmp_path, "SELECT value FROM scores WHERE metric = 'f1'")}
    assert values <= {0, 0.25, 0.5, 0.75} and len(values) > 1


def test_a_conversation_is_stored_as_messages_and_rendered_by_the_model(run, tiny_model, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text("<bos>{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    asked = {"apply_chat_template": True, "system_instruction": "Be brief."}
    code, _, err = run({}, suite=asked, model=str(model))
    assert code == 0, err
    ((prompt, rendered, tokens),) = rows(
        tmp_path,
        "SELECT DISTINCT s.prompt, s.rendered_hash, s.prompt_tokens FROM samples s JOIN items i ON i.id = s.item_pk"
        " WHERE i.item_id = 'mine:0'",
    )
    assert json.loads(prompt) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say word0:"},
    ]
    assert rendered and tokens == len("[system]Be brief.[user]Say word0:") + 1


def test_lm15_answers_that_a_stop_ends_at_once_are_wrong_and_said_to_be_empty(run, tmp_path):
    everything = [chr(n) for n in range(1, 127)] + ["\ufffd", *map(chr, range(128, 0x300))]
    code, out, err = run({"generation_kwargs": {"until": everything, "max_gen_toks": 6}}, "--json")
    assert code == 0, err
    said = [line for line in json.loads(out)["oddities"] if line.startswith("bf16: ")]
    (sentence,) = said
    count = int(sentence.split()[1])
    assert count > 6 and sentence.startswith(f"bf16: {count} of 12 answers of suite s are empty; ")
    assert rows(tmp_path, "SELECT SUM(value) FROM scores WHERE metric = 'exact_match'") == [(0,)]


def test_lm23_choices_that_nothing_tells_apart_are_counted_and_named(run):
    same = {
        "output_type": "multiple_choice",
        "doc_to_choice": ["a", "a"],
        "doc_to_target": 1,
        "generation_kwargs": None,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    code, out, err = run(same, "--json")
    assert code == 0, err
    tied = "the likeliest choices of 12 of 12 items of suite s are equally likely"
    odd = json.loads(out)["oddities"]
    assert [sentence.split("; ")[0] for sentence in odd] == [f"{arm}: {tied}" for arm in TWO]
    assert all("(mine:0, mine:1, mine:10, mine:11, mine:2," in line and line.endswith("and 2 more)") for line in odd)


def test_a_model_without_a_template_is_refused_before_anything_is_asked(run):
    code, out, err = run({}, suite={"apply_chat_template": True})
    assert (code, out) == (2, "") and err.splitlines()[-1].endswith("has no chat template")


def test_a_group_is_reported_as_lm_eval_would(run, tmp_path):
    folder = tmp_path / "an experiment"
    folder.mkdir()
    (folder / "again.yaml").write_text("include: mine.yaml\ntask: again\ndoc_to_text: 'Write {{word}}:'\n")
    names = {"group": "both", "task": ["mine", "again"], "aggregate_metric_list": [{"metric": "exact_match"}]}
    (folder / "both.yaml").write_text(json.dumps(names))
    first = {"doc_to_target": "{{word[:0]}}", "generation_kwargs": {"until": ["e"], "max_gen_toks": 3}}
    code, out, err = run(first, suite={"tasks": ["both.yaml"]})
    assert code == 0, err
    assert "s: both exact_match,none: bf16 " in out
    code, out, _ = run(first, "--json", suite={"tasks": ["both.yaml"]})
    found = json.loads(out)["lm_eval"]["s"]["bf16"][""]
    assert set(found) == {"mine", "again", "both"}
    each = [found[name]["exact_match,none"] for name in ("mine", "again")]
    assert found["both"]["exact_match,none"] == sum(each) / 2
    stored = dict(
        rows(
            tmp_path,
            "SELECT i.family, AVG(c.value) FROM scores c JOIN samples s ON s.id = c.sample_id"
            " JOIN items i ON i.id = s.item_pk JOIN arms a ON a.id = s.arm_id"
            " WHERE c.metric = 'exact_match' AND a.name = 'bf16' GROUP BY i.family",
        )
    )
    assert [stored["mine"], stored["again"]] == pytest.approx(each)


@pytest.mark.parametrize(
    ("suite", "complaint"),
    [
        ({"prefix_draws": 1}, "prefix_draws"),
        ({"num_fewshot": -1}, "num_fewshot"),
        ({"prefix_draws": 4}, "no task has few-shot examples to draw"),
        ({"kind": "formats", "tasks": [], "cases": "formats.jsonl", "num_fewshot": 2}, "for suites of kind `lmeval`"),
    ],
)
def test_keys_that_cannot_be_used_are_one_sentence(run, suite, complaint):
    code, out, err = run({}, suite=suite)
    assert (code, out) == (2, "") and complaint in err.splitlines()[-1]


DRAWN = {"until": ["\n"], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0}
CODED = {"process_results": "CODE", "metric_list": [{**PERPLEXITY, "metric": "f1", "aggregation": "mean"}]}


@pytest.mark.parametrize(
    "task", [WHOLE, {"generation_kwargs": DRAWN, "repeats": 3}, CODED], ids=["whole", "drawn", "code"]
)
def test_stored_answers_are_scored_again_as_they_were(run, evalsvc_json, monkeypatch, tmp_path, task):
    (tmp_path / "an experiment").mkdir()
    (tmp_path / "an experiment" / "code.py").write_text(
        "def score(doc, results):\n    return {'f1': len(results[0])}\n"
    )
    assert run(task, "--allow-code")[0] == 0
    scores = (
        "SELECT sample_id, metric, filter, value, error_class FROM scores WHERE scoring_version {} ORDER BY 1, 2, 3"
    )
    before = rows(tmp_path, scores.format("NOT LIKE '%again'"))
    monkeypatch.setattr("evalsvc.suites.lmeval.version", lambda name: "again")
    path, db = tmp_path / "an experiment" / "experiment.yaml", tmp_path / "r.sqlite"
    code, document = evalsvc_json("rescore", path, "--allow-code", "--db", db)
    assert code == 0 and [row["changed"] for row in document["suites"]] == [0, 0]
    assert rows(tmp_path, scores.format("LIKE '%again'")) == before and len(before) > 20
    with open_store(db, read_only=True) as store:
        pairs = queries.pairs(store, *queries.arms(store))
    assert {side.scoring_version.endswith("again") for pair in pairs for side in (pair.baseline, pair.candidate)} == {
        True
    }
    assert evalsvc_json("rescore", path, "--allow-code", "--db", db)[1]["suites"][0]["added"] == 0
