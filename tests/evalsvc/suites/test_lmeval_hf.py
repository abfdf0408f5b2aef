"""Real documents on the small real model in fp32: our suites beside lm-eval with its own `hf` model, item by item.

MMLU and GSM8K in the forms that lm-eval gives them, from local files; a last word, whole texts and an F1 made of the
same documents. Log-likelihoods agree within 1e-4 nats, a perplexity within 1e-5 of itself; choices and texts are equal.
"""

import csv
import json
from pathlib import Path

import pytest
import yaml

from evalsvc.engine.requests import RequestFailure
from evalsvc.suites.lmeval import LmEvalSuite
from evalsvc.suites.task_questions import Asking

pytest.importorskip("lm_eval")
pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(1800)]

SHARED = Path(__file__).parents[4] / "shared" / "data"
NATS, PERPLEXITY = 1e-4, 1e-5
SUBJECTS = ("astronomy", "global_facts")
ACC = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
MMLU = {
    "dataset_path": "json",
    "test_split": "test",
    "fewshot_split": "dev",
    "fewshot_config": {"sampler": "first_n"},
    "output_type": "multiple_choice",
    "doc_to_text": "{{question.strip()}}\n"
    "A. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:",
    "doc_to_choice": ["A", "B", "C", "D"],
    "doc_to_target": "answer",
    "metric_list": ACC,
    "metadata": {"version": 1.0},
}
WORDED = MMLU | {
    "doc_to_text": "Question: {{question.strip()}}\nAnswer:",
    "doc_to_choice": "choices",
    "metric_list": [*ACC, {**ACC[0], "metric": "acc_norm"}],
}
GSM8K = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "gsm8k.jsonl", "train": "gsm8k_shots.jsonl"}},
    "output_type": "generate_until",
    "training_split": "train",
    "fewshot_split": "train",
    "test_split": "test",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "metric_list": [
        {
            "metric": "exact_match",
            "aggregation": "mean",
            "higher_is_better": True,
            "ignore_case": True,
            "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
        }
    ],
    "generation_kwargs": {"until": ["Question:", "</s>", "<|im_end|>"], "do_sample": False, "max_gen_toks": 96},
    "num_fewshot": 5,
    "filter_list": [
        {
            "name": "strict-match",
            "filter": [
                {"function": "regex", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"},
                {"function": "take_first"},
            ],
        },
        {
            "name": "flexible-extract",
            "filter": [
                {"function": "regex", "group_select": -1, "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)"},
                {"function": "take_first"},
            ],
        },
    ],
}
LAST_WORD = {
    **{key: GSM8K[key] for key in ("dataset_path", "dataset_kwargs", "test_split")},
    "output_type": "loglikelihood",
    "doc_to_text": "{{question.split(' ')[:-1]|join(' ')}}",
    "doc_to_target": "{{' '+question.split(' ')[-1]}}",
    "metric_list": [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}, *ACC],
}
TEXTS = LAST_WORD | {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{question}} {{answer}}",
    "metric_list": [
        {"metric": metric, "aggregation": how, "higher_is_better": False}
        for metric, how in (("word_perplexity", "weighted_perplexity"), ("bits_per_byte", "bits_per_byte"))
    ],
}
CODE = """\
import re

def f1(doc, results):
    ours, theirs = (set(re.findall("[a-z0-9]+", text.lower())) for text in (results[0], doc["answer"]))
    return {"f1": 2 * len(ours & theirs) / max(1, len(ours) + len(theirs)), "em": float(results[0] == doc["answer"])}
"""
OVERLAP = GSM8K | {
    "process_results": "F1",
    "filter_list": None,
    "num_fewshot": 1,
    "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 32},
    "metric_list": [{**ACC[0], "metric": "f1"}, {**ACC[0], "metric": "em"}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not SHARED.is_dir():
        pytest.skip(f"no public data sets at {SHARED}")
    path = tmp_path_factory.mktemp("real")
    tasks = {"gsm8k": GSM8K, "last_word": LAST_WORD, "texts": TEXTS, "overlap": OVERLAP}
    for subject in SUBJECTS:
        files = {"data_files": {"test": f"{subject}.jsonl", "dev": f"{subject}_dev.jsonl"}}
        for split, name in (("test", subject), ("dev", f"{subject}_dev")):
            write(path / f"{name}.jsonl", mmlu_rows(subject, split)[: 4 if split == "test" else 5])
        said = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
        tasks[f"mmlu_{subject}"] = MMLU | {"dataset_kwargs": files, "description": said}
        tasks[f"worded_{subject}"] = WORDED | {"dataset_kwargs": files}
    for split, name in (("test", "gsm8k"), ("train_first16", "gsm8k_shots")):
        lines = (SHARED / "gsm8k" / f"{split}.jsonl").read_text(encoding="utf-8").strip().split("\n")
        write(path / f"{name}.jsonl", [json.loads(line) for line in lines[: 3 if split == "test" else 16]])
    for name, task in tasks.items():
        text = yaml.safe_dump({"task": name} | {key: value for key, value in task.items() if value is not None})
        (path / f"{name}.yaml").write_text(text.replace("process_results: F1", "process_results: !function code.f1"))
    (path / "code.py").write_text(CODE)
    members = [f"mmlu_{subject}" for subject in SUBJECTS]
    group = {"group": "mmlu", "task": members, "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}]}
    (path / "mmlu.yaml").write_text(yaml.safe_dump(group))
    return path


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def mmlu_rows(subject, split):
    with (SHARED / "mmlu" / f"{subject}_{split}.csv").open(encoding="utf-8", newline="") as file:
        return [
            {
                "question": row["question"],
                "choices": [row[f"choice{n}"] for n in range(4)],
                "answer": int(row["answer"]),
            }
            for row in csv.DictReader(file)
        ]


@pytest.fixture(scope="module")
def hf(small_model):
    import torch
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(1)
    return HFLM(str(small_model), device="cpu", dtype="float32", batch_size=2)


@pytest.fixture(scope="module")
def engine(small_model):
    from evalsvc.engine.engine import Engine

    return Engine.load(str(small_model), plan="w=fp32,kv=fp32", kv_tokens=8192)


def test_lm_evals_own_gsm8k_over_local_files_is_the_form_used_here(folder):
    files = {"gsm8k": {"test": "gsm8k.jsonl", "train": "gsm8k_shots.jsonl"}}
    named = LmEvalSuite("t", ["gsm8k"], base_dir=folder, data_files=files)
    mine = LmEvalSuite("t", ["gsm8k.yaml"], base_dir=folder)
    for ours, theirs in zip(mine.items(), named.items(), strict=True):
        assert (ours.id, ours.metric, ours.filter) == (theirs.id, theirs.metric, theirs.filter)
        assert mine.next_request(ours, ()).prompt == named.next_request(theirs, ()).prompt


def answered(suite, engine):
    """Answers by item."""
    found = {}
    for answer in engine.answer([suite.next_request(item, ()) for item in suite.items()]):
        assert not isinstance(answer, RequestFailure), answer.message
        found[answer.id] = answer
    return found


@pytest.mark.parametrize(
    ("names", "asking"),
    [
        (["mmlu"], {"num_fewshot": 5}),
        (["mmlu"], {"num_fewshot": 1, "chat": True}),
        (["worded_astronomy", "worded_global_facts"], {"num_fewshot": 0}),
        (["gsm8k"], {}),
        (["gsm8k"], {"num_fewshot": 1, "chat": True, "multiturn": False, "system": "Answer in one line."}),
        (["last_word"], {}),
        (["texts"], {}),
        (["overlap"], {}),
    ],
    ids=["mmlu", "mmlu_chat", "acc_norm", "gsm8k", "gsm8k_chat", "last_word", "texts", "f1"],
)
def test_items_and_aggregates_are_those_of_lm_evals_hf(names, asking, folder, hf, engine, tmp_path, monkeypatch):
    from datasets import config as settings
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(folder)  # lm-eval's data files are relative to the working directory
    theirs = simple_evaluate(
        model=hf,
        tasks=names,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        num_fewshot=asking.get("num_fewshot"),
        apply_chat_template=asking.get("chat", False),
        fewshot_as_multiturn=asking.get("multiturn", True),
        system_instruction=asking.get("system"),
        bootstrap_iters=0,
        log_samples=True,
    )
    assert theirs is not None
    suite = LmEvalSuite(
        "t", [f"{name}.yaml" for name in names], base_dir=folder, asking=Asking(**asking), allow_code=True
    )
    answers = answered(suite, engine)
    scores = {item.id: suite.score(item, [answers[item.id]]) for item in suite.items()}
    for task, samples in theirs["samples"].items():
        for sample in samples:
            name = f"{task}:{sample['doc_id']}"
            compare(answers[name], sample["resps"])
            mine = {s.metric: s.value for s in scores[name] if s.filter == sample["filter"]}
            for metric in sample["metrics"]:
                if metric in mine:
                    assert mine[metric] == sample[metric], (name, metric)
    ours = suite.aggregate(scores)
    for name in set(ours) & set(theirs["results"]):
        for key, value in ours[name].items():
            assert value == pytest.approx(theirs["results"][name][key], rel=PERPLEXITY), (name, key)
    assert {item.payload.task.task_name for item in suite.items()} == set(theirs["samples"])


def compare(answer, responses):
    """One document: the same texts, or log-likelihoods within the tolerance and the same greedy flags."""
    if hasattr(answer, "text"):
        assert answer.text == responses[0][0]
        return
    for mine, greedy, (theirs,) in zip(answer.logprobs, answer.greedy, responses, strict=True):
        value, flag = theirs if isinstance(theirs, tuple) else (theirs, greedy)
        assert mine == pytest.approx(value, abs=NATS) and greedy == flag
