"""Suites of lm-eval tasks beside lm-eval's own evaluator over the same model: item by item and to the last digit."""

import json
import shutil
from collections import defaultdict

import pytest

from evalsvc.engine.requests import RequestFailure, ScoreResult
from evalsvc.suites.lmeval import LmEvalSuite
from evalsvc.suites.task_questions import Asking

pytest.importorskip("lm_eval")

CODE = """\
def f1(doc, results):
    ours, theirs = set(results[0]), set(doc["text"])
    return {"f1": 2 * len(ours & theirs) / (len(ours) + len(theirs)), "em": float(len(ours) % 2)}
"""
BASE = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "test.jsonl", "shots": "shots.jsonl"}},
    "test_split": "test",
    "fewshot_split": "shots",
    "doc_to_text": "Q: {{question}}\nA:",
    "doc_to_target": "answer",
    "metadata": {"version": 1},
}
CHOICE = {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "gold"}
GENERATE = {"output_type": "generate_until", "generation_kwargs": {"until": ["\n", "e"], "max_gen_toks": 12}}


VOWEL = {"function": "regex", "regex_pattern": "([aiou])"}
NO_VOWEL = "{{'[invalid]' if gold == 0 else 'a'}}"  # right for some of a random model's texts


def mean(*names):
    return [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]


TASKS = {
    "choice": CHOICE | {"metric_list": mean("acc", "acc_norm", "acc_bytes", "exact_match")},
    "corpus": CHOICE
    | {
        "metric_list": [
            *mean("acc"),
            {"metric": "mcc", "aggregation": "matthews_corrcoef", "higher_is_better": True},
            {"metric": "brier_score", "aggregation": "brier_score", "higher_is_better": False},
        ]
    },
    "informed": CHOICE | {"metric_list": mean("acc", "acc_mutual_info")},
    "inputs": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{gold}}",
        "doc_to_target": "{{question}}",
        "doc_to_choice": "choices",
        "metric_list": mean("acc"),
    },
    "last_word": {
        "output_type": "loglikelihood",
        "metric_list": [
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
            *mean("acc"),
        ],
    },
    "texts": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [
            {"metric": name, "aggregation": how, "higher_is_better": False}
            for name, how in (
                ("word_perplexity", "weighted_perplexity"),
                ("byte_perplexity", "weighted_perplexity"),
                ("bits_per_byte", "bits_per_byte"),
            )
        ],
    },
    "answers": GENERATE
    | {
        "metric_list": [{**mean("exact_match")[0], "ignore_case": True}],
        "filter_list": [
            {
                "name": "strict",
                "filter": [VOWEL, {"function": "take_first"}],
            },
            {"name": "loose", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]},
        ],
        "doc_to_target": NO_VOWEL,
    },
    "voted": GENERATE
    | {
        "repeats": 3,
        "doc_to_target": NO_VOWEL,
        "metric_list": mean("exact_match"),
        "filter_list": [
            {
                "name": "two",
                "filter": [
                    VOWEL,
                    {"function": "take_first_k", "k": 2},
                    {"function": "majority_vote"},
                    {"function": "take_first"},
                ],
            },
        ],
    },
    "overlap": GENERATE | {"process_results": "!function code.f1", "metric_list": mean("f1", "em")},
    "begun": GENERATE | {"gen_prefix": "Well", "metric_list": mean("exact_match")},
    "begun_choice": CHOICE | {"gen_prefix": "Well", "metric_list": mean("acc")},
}
GROUPS = {
    "by_size": {"task": ["choice", "corpus"], "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}]},
    "evenly": {"task": ["corpus", "informed"], "aggregate_metric_list": [{"metric": "acc", "weight_by_size": False}]},
}
MOVING = {
    *(("choice", f"acc{how}") for how in ("", "_norm", "_bytes")),
    *(("informed", f"acc{how}") for how in ("", "_mutual_info")),
    *(("answers", "exact_match"), ("voted", "exact_match"), ("overlap", "f1"), ("overlap", "em")),
    *(("corpus", "mcc"), ("inputs", "acc"), ("last_word", "perplexity"), ("texts", "word_perplexity")),
    ("begun_choice", "acc"),
}
ASKED = {
    "plain": {},
    "five_shots": {"num_fewshot": 5},
    "instructed": {"num_fewshot": 1, "system": "Be brief."},
    "chat": {"num_fewshot": 2, "chat": True, "system": "Be brief."},
    "chat_in_one_turn": {"num_fewshot": 2, "chat": True, "multiturn": False},
}
TEMPLATE = (
    "<bos>{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if not loop.last or add_generation_prompt %}\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]\n' }}{% endif %}"
)


def documents(count, salt):
    words = ["wind", "hill", "old dog", "door", "sun", "rain", "a", "tree on it"]
    return [
        {
            "question": f"{salt} {words[n % 8]} and {words[(3 * n + 1) % 8]}?",
            "answer": words[(5 * n + 2) % 8],
            "choices": [words[(n + k) % 8] for k in range(3)],
            "gold": n % 3,
            "text": " ".join(words[(n * k + k) % 8] for k in range(1, 4 + 9 * n)),
        }
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks")
    for name, rows in (("test", documents(7, "Which")), ("shots", documents(9, "What"))):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "code.py").write_text(CODE)
    for name, task in TASKS.items():
        text = json.dumps(BASE | task | {"task": name}, indent=1).replace('"!function code.f1"', "!function code.f1")
        (path / f"{name}.yaml").write_text(text)
    for name, group in GROUPS.items():
        (path / f"{name}.yaml").write_text(json.dumps(group | {"group": name}))
    return path


@pytest.fixture(scope="module")
def lm(tiny_model, tmp_path_factory):
    """The harness's model over a tiny random one with a chat template, in bf16: bits do not hang on the batch."""
    from evalsvc.harness import EvalsvcLM

    model = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return EvalsvcLM(str(model), plan="w=bf16,kv=bf16", threads=1, kv_tokens=8192, max_batch=32)


def answered(suite, engine):
    """Answers by item."""
    held = {item.id: (item, []) for item in suite.items()}
    pending = [suite.next_request(item, ()) for item in suite.items()]
    while pending:
        following = []
        for answer in engine.answer(pending):
            assert not isinstance(answer, RequestFailure), answer.message
            item, answers = held[answer.id]
            answers.append(answer)
            if (request := suite.next_request(item, answers)) is not None:
                following.append(request)
        pending = following
    return {name: answers for name, (_, answers) in held.items()}


def scores_of(suite, engine):
    """Scores by item, of the engine's answers."""
    answers = answered(suite, engine)
    return {item.id: suite.score(item, answers[item.id]) for item in suite.items()}


def lm_evals(lm, folder, tmp_path, monkeypatch, names, asking, **options):
    from datasets import config as settings
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(settings, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(folder)  # lm-eval's data files are relative to the working directory
    found = simple_evaluate(
        model=lm,
        tasks=names,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        num_fewshot=asking.get("num_fewshot"),
        apply_chat_template=asking.get("chat", False),
        fewshot_as_multiturn=asking.get("multiturn", True),
        system_instruction=asking.get("system"),
        bootstrap_iters=0,
        log_samples=True,
        **options,
    )
    assert found is not None
    return found


def same_answer(answer, responses):
    """Whether an answer is what the harness's model gave to lm-eval, to the last bit."""
    if not isinstance(answer, ScoreResult):
        return all(text == answer.text for text in responses[0])
    ours = list(zip(answer.logprobs, answer.greedy, strict=True))
    theirs = [first for first, *_ in responses]
    return theirs == (ours if isinstance(theirs[0], tuple) else [value for value, _ in ours])


@pytest.mark.parametrize("asked", ASKED)
def test_every_value_and_every_aggregate_is_lm_evals(asked, folder, lm, tmp_path, monkeypatch):
    """To the last digit: the harness's model asks the same engine for lm-eval's own evaluator."""
    asking = ASKED[asked]
    names = list(TASKS) if asked != "chat_in_one_turn" else ["choice", "answers", "begun", "begun_choice", "inputs"]
    theirs = lm_evals(lm, folder, tmp_path, monkeypatch, names, asking)
    suite = LmEvalSuite(
        "t", [f"{name}.yaml" for name in names], base_dir=folder, asking=Asking(**asking), allow_code=True
    )
    answers = answered(suite, lm.engine)
    scores = {item.id: suite.score(item, answers[item.id]) for item in suite.items()}
    compared = 0
    values = defaultdict(set)
    for task, samples in theirs["samples"].items():
        for sample in samples:
            item_id = f"{task}:{sample['doc_id']}"
            assert same_answer(answers[item_id][0], sample["resps"]), item_id
            mine = {s.metric: s.value for s in scores[item_id] if s.filter == sample["filter"]}
            for metric in sample["metrics"]:
                value = sample[metric]
                if metric == "brier_score":
                    continue
                if isinstance(value, tuple):
                    assert [mine[f"{metric}.{i}"] for i in range(len(value))] == list(value), (task, sample["doc_id"])
                else:
                    assert mine.get(metric, mine.get(f"{metric}.0")) == value, (task, metric, sample["doc_id"])
                values[task, metric].add(value)
                compared += 1
    assert compared >= 7 * len(names)
    assert {key for key, found in values.items() if len(found) > 1} >= {key for key in MOVING if key[0] in names}
    ours = suite.aggregate(scores)
    assert set(ours) == set(names)
    for task, metrics in ours.items():
        expected = {key: value for key, value in theirs["results"][task].items() if "," in key and "_stderr" not in key}
        assert metrics == pytest.approx(expected, rel=1e-14), task
        assert {k: v for k, v in metrics.items() if "brier" not in k} == {
            k: v for k, v in expected.items() if "brier" not in k
        }


def test_groups_are_aggregated_as_lm_eval_does(folder, lm, tmp_path, monkeypatch):
    for name in GROUPS:
        theirs = lm_evals(lm, folder, tmp_path, monkeypatch, [name], {})
        suite = LmEvalSuite("t", [f"{name}.yaml"], base_dir=folder, allow_code=True)
        ours = suite.aggregate(scores_of(suite, lm.engine))
        assert ours[name]["acc,none"] == theirs["results"][name]["acc,none"]
        assert {item.family for item in suite.items()} == set(GROUPS[name]["task"])


def test_the_verdict_reads_the_first_right_or_wrong_metric(folder):
    suite = LmEvalSuite("t", [f"{name}.yaml" for name in TASKS], base_dir=folder, allow_code=True)
    metrics = {item.family: (item.metric, item.filter, item.scored_by) for item in suite.items()}
    assert metrics == {
        "choice": ("acc", "none", "loglikelihood"),
        "corpus": ("acc", "none", "loglikelihood"),
        "informed": ("acc", "none", "loglikelihood"),
        "inputs": ("acc", "none", "loglikelihood"),
        "last_word": ("acc", "none", "loglikelihood"),
        "texts": ("word_perplexity", "none", "loglikelihood"),
        "answers": ("exact_match", "strict", "generation"),
        "voted": ("exact_match", "two", "generation"),
        "overlap": ("em", "none", "generation"),
        "begun": ("exact_match", "none", "generation"),
        "begun_choice": ("acc", "none", "loglikelihood"),
    }
    chances = {item.family: item.chance for item in suite.items()}
    assert chances["inputs"] == chances["choice"] == pytest.approx(1 / 3) and chances["last_word"] == 0


def test_metrics_of_the_whole_corpus_have_the_parts_that_policies_read(folder, lm):
    from evalsvc.verdict.corpus import corpus_value

    suite = LmEvalSuite("t", ["texts.yaml", "last_word.yaml"], base_dir=folder)
    scores = scores_of(suite, lm.engine)
    ours = suite.aggregate(scores)
    by_name = {name: {s.metric: s.value for s in each} for name, each in scores.items()}
    for task, metric, statistic in (
        ("texts", "word_perplexity", "perplexity"),
        ("texts", "bits_per_byte", "bits_per_byte"),
        ("last_word", "perplexity", "perplexity"),
    ):
        import numpy as np

        rows = [v for name, v in by_name.items() if name.startswith(f"{task}:")]
        parts = np.array([[row[f"{metric}.0"], row.get(f"{metric}.1", 1.0)] for row in rows])
        assert corpus_value(statistic, parts) == pytest.approx(ours[task][f"{metric},none"], rel=1e-12)
