"""lm-eval tasks give lm-eval's own prompts, choices and values."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections import defaultdict

import pytest

from evalsvc.suites.lmeval import LmEvalSuite, tie_of

lm_eval = pytest.importorskip("lm_eval")


def draw(*parts):
    """A number in [0, 1) that only the parts decide."""
    return int(hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8], 16) / 16**8


def pseudo_text(context, target):
    roll = draw(context)
    return f" {target}" if roll < 0.4 else f" {target} or so" if roll < 0.7 else ""


def pseudo_score(context, continuation):
    return -10 * draw(context, continuation), draw(continuation, context) < 0.5


def fake_lm():
    from lm_eval.api.model import LM

    class Pseudo(LM):
        def loglikelihood(self, requests, disable_tqdm=False):
            return [pseudo_score(*request.args) for request in requests]

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            raise NotImplementedError

        def generate_until(self, requests, disable_tqdm=False):
            return [pseudo_text(request.args[0], target_of(request.doc)) for request in requests]

    return Pseudo()


def target_of(doc):
    return doc.get("value") or f"{doc['year']}-{doc['month']}-{doc['day']}"


def own_scores(suite, answer, ranking):
    """Per task: metric values by document, as our suite finds them for the same pseudo answers."""
    values = defaultdict(lambda: defaultdict(list))
    prompts = defaultdict(list)
    for item in suite.items():
        request = suite.next_request(item, [])
        task = item.payload.task.task_name
        if item.scored_by == "loglikelihood":
            pairs = [(request.context, continuation) for continuation in request.continuations]
            prompts[task] += pairs
            reply = ranking(*(pseudo_score(*pair)[0] for pair in pairs))
        else:
            prompts[task].append((request.prompt, list(request.stop), request.max_tokens))
            reply = answer(pseudo_text(request.prompt, target_of(item.payload.doc)))
        for score in suite.score(item, [reply]):
            values[task][score.metric, score.filter].append(score.value)
    return values, prompts


@pytest.mark.parametrize("family", ["addition", "copying", "dates"])
def test_values_and_prompts_equal_lm_evals_own(family, data, tmp_path, monkeypatch, answer, ranking):
    from datasets import config as settings
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(settings, "HF_HUB_OFFLINE", True)
    folder = tmp_path / family
    shutil.copytree(data / "tasks" / family, folder)
    monkeypatch.chdir(folder)  # lm-eval's data files are relative to the working directory
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    theirs = lm_eval.simple_evaluate(
        model=fake_lm(), tasks=manager.all_subtasks, task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    assert theirs is not None

    values, prompts = own_scores(LmEvalSuite("t", [data / "tasks" / family]), answer, ranking)

    assert set(values) == set(theirs["samples"])
    for task, metrics in values.items():
        samples = sorted(theirs["samples"][task], key=lambda sample: sample["doc_id"])
        for (metric, chosen), mine in metrics.items():
            assert mine == [sample[metric] for sample in samples if sample["filter"] == chosen]
            assert sum(mine) / len(mine) == theirs["results"][task][f"{metric},{chosen}"]
        asked = [args for sample in samples for args in sample["arguments"]]
        if family == "addition":
            assert prompts[task] == [tuple(pair) for pair in asked]
        else:
            assert prompts[task] == [(ctx, kwargs["until"], kwargs["max_gen_toks"]) for ctx, kwargs in asked]
    reached = {value for metrics in values.values() for value in metrics[next(iter(metrics))]}
    assert reached == {0.0, 1.0}


def write_task(folder, docs=None, **changes):
    folder.mkdir(exist_ok=True)
    docs = docs or [{"q": "one", "a": "x", "c": ["x", "y"]}, {"q": "two", "a": "y", "c": ["x", "y"]}]
    (folder / "d.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    config = {
        "task": "mine",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "d.jsonl"}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "Say {{a}}:",
        "doc_to_target": "{{a}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    } | changes
    path = folder / "mine.yaml"
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_choice": "c",
    "generation_kwargs": None,
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def test_a_users_task_is_its_own_family_without_clusters(tmp_path):
    items = LmEvalSuite("t", [write_task(tmp_path)]).items()
    assert [(i.id, i.family, i.cluster, i.filter) for i in items] == [
        ("mine:0", "mine", "", "none"),
        ("mine:1", "mine", "", "none"),
    ]


def test_an_edited_data_file_is_seen_and_nothing_is_left_beside_it(tmp_path):
    path = write_task(tmp_path)
    first = LmEvalSuite("t", [path]).items()[0]
    write_task(tmp_path, docs=[{"q": "one", "a": "z", "c": ["x", "z"]}])
    (second,) = LmEvalSuite("t", [path]).items()
    assert second.payload.doc["a"] == "z"
    assert second.sha256 != first.sha256
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.jsonl", "mine.yaml"]


def test_the_hash_follows_target_and_metric_but_not_the_prompt(tmp_path):
    def hash_of(**changes):
        return LmEvalSuite("t", [write_task(tmp_path, **changes)]).items()[0].sha256

    assert hash_of() == hash_of(doc_to_text="Now say {{a}}:")
    assert hash_of() != hash_of(doc_to_target="{{q}}")
    loose = [{"metric": "exact_match", "ignore_case": True, "aggregation": "mean", "higher_is_better": True}]
    assert hash_of() != hash_of(metric_list=loose)


def test_a_limit_leaves_every_prompt_as_it_was(data):
    whole = LmEvalSuite("t", [data / "tasks" / "copying"])
    part = LmEvalSuite("t", [data / "tasks" / "copying"], limit=3)
    requests = {i.id: whole.next_request(i, []) for i in whole.items()}
    assert [part.next_request(i, []) for i in part.items()] == [requests[i.id] for i in part.items()]
    assert len({i.cluster for i in part.items()}) == 3


def test_equal_choices_are_counted_as_ties(tmp_path, ranking):
    suite = LmEvalSuite("t", [write_task(tmp_path, **CHOICE)])
    first, second = suite.items()
    assert (first.chance, first.scored_by, first.metric) == (0.5, "loglikelihood", "acc")
    for item, value in ((first, 1.0), (second, 0.0)):
        (score,) = suite.score(item, [ranking(-2.0, -2.0)])
        assert (score.value, score.error_class) == (value, "tie")  # lm-eval takes the first choice
    (score,) = suite.score(second, [ranking(-1.0, -2.0)])
    assert (score.value, score.error_class) == (0.0, "wrong_choice")


def test_metrics_of_the_whole_corpus_leave_their_parts(tmp_path, ranking):
    """lm-eval aggregates (right class, given class) of all documents, and so do its functions on these parts."""
    from lm_eval.api import metrics

    listed = [
        {"metric": name, "aggregation": name if name != "acc" else "mean", "higher_is_better": True}
        for name in ("acc", "f1", "mcc")
    ]
    suite = LmEvalSuite("t", [write_task(tmp_path, **{**CHOICE, "metric_list": listed})])
    first, second = suite.items()
    found = [{s.metric: s.value for s in suite.score(item, [ranking(-1.0, -2.0)])} for item in (first, second)]
    assert found[0] == {"acc": 1.0, "f1.0": 0.0, "f1.1": 0.0, "mcc.0": 0.0, "mcc.1": 0.0}
    assert found[1] == {"acc": 0.0, "f1.0": 1.0, "f1.1": 0.0, "mcc.0": 1.0, "mcc.1": 0.0}
    assert metrics.matthews_corrcoef([(int(f["mcc.0"]), int(f["mcc.1"])) for f in found]) == 0
    assert all(s.error_class is None for s in suite.score(second, [ranking(-1.0, -2.0)]) if "." in s.metric)


def test_the_right_choice_is_known_by_its_number_or_its_text(tmp_path):
    assert [item.gold for item in LmEvalSuite("t", [write_task(tmp_path, **CHOICE)]).items()] == [0, 1]
    numbered = [{"q": "one", "a": "x", "n": 1, "c": ["x", "y"]}, {"q": "two", "a": "y", "n": 0, "c": ["x", "y"]}]
    suite = LmEvalSuite("t", [write_task(tmp_path, docs=numbered, **{**CHOICE, "doc_to_target": "n"})])
    assert [item.gold for item in suite.items()] == [1, 0]
    assert [item.gold for item in LmEvalSuite("t", [write_task(tmp_path)]).items()] == [None, None]


@pytest.mark.parametrize(
    ("logprobs", "tie"),
    [
        ([-1.0, -2.0], None),
        ([-1.0, -1.0], "tie"),
        ([-1.0, -1.0, -2.0], "tie_at_top"),
        ([-1.0, -2.0, -2.0], None),
        ([-1.0], None),
        ([float("-inf")] * 3, "tie"),
    ],
)
def test_ties(logprobs, tie):
    assert tie_of(logprobs) == tie


@pytest.mark.parametrize("text", ["", "[" * 100_000, "x" * 1_000_000, "\ud800", "\0", " x\0", "NaN"])
def test_a_hostile_answer_has_a_score(tmp_path, answer, text):
    suite = LmEvalSuite("t", [write_task(tmp_path)])
    (score,) = suite.score(suite.items()[0], [answer(text)])
    assert (score.value, score.error_class) == (0.0, "wrong_answer")


def test_importing_the_suite_is_cheap():
    probe = (
        "import sys, evalsvc.suites.load as _; print([m for m in ('torch', 'lm_eval', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
