"""BLEU, chrF and TER of a corpus: counts of documents, whose sums are what sacreBLEU makes of all texts together."""

import json
import random

import numpy as np
import pytest

from evalsvc.recorded.lmeval import read_arms
from evalsvc.suites.lmeval import LmEvalSuite
from evalsvc.suites.task_texts import NAMES, of_sums, statistics
from evalsvc.verdict.corpus import METRICS, corpus_value, measure_corpus

pytest.importorskip("lm_eval")
WORDS = [
    "the",
    "old",
    "dog",
    "slept",
    "on",
    "by",
    "a",
    "door",
    "hills;",
    "«ça",
    "va»",
    "你好",
    "it's",
    "3.5",
    "%",
    ",",
    ".",
]


def pairs(count, seed, damage=0.3):
    """References and answers with some of their words lost, swapped or made up; some empty."""
    rng = random.Random(seed)
    made = []
    for n in range(count):
        reference = [rng.choice(WORDS) for _ in range(rng.randint(1, 18))]
        answer = [w if rng.random() > damage else rng.choice([*WORDS, "", "…"]) for w in reference]
        if rng.random() < damage:
            rng.shuffle(answer)
        made.append((" ".join(reference), "" if n % 11 == 5 else " ".join(answer)))
    return made


def theirs(name, documents):
    from lm_eval.api.registry import get_aggregation

    return get_aggregation(name)([list(pair) for pair in documents])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "documents",
    [
        *[pairs(40, seed) for seed in range(4)],
        pairs(3, 9, damage=0.9),
        [("a b", "c d"), ("e", "")],
        [("one", "one")],
        [("a b c d e", "a b c d e"), ("f", "f")],
        [("", "a"), ("b", "")],
    ],
)
def test_sums_of_counts_are_the_corpus_value_to_the_last_digit(name, documents):
    counts = [statistics(name, pair) for pair in documents]
    assert of_sums(name, counts) == theirs(name, documents)
    assert {len(each) for each in counts} == {METRICS[name].width}
    assert corpus_value(name, np.array(counts)) == pytest.approx(theirs(name, documents), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_reference_and_answer_has_no_counts(name):
    for value in ((["a", "b"], "a"), ("a",), ("a", 3), ({"a": 1}, "b"), "ab", 1.0, None, ("a", "b", "c")):
        assert statistics(name, value) is None
    assert statistics(name, (["a b"], ["a b"])) == statistics(name, ["a b", "a b"])


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_arm_is_seen_and_an_equal_one_is_not(name):
    better = "lower" if name == "ter" else "higher"
    clean, worse = (
        np.array([statistics(name, pair) for pair in pairs(120, 3, damage)], dtype=float) for damage in (0.1, 0.5)
    )
    found = measure_corpus(name, clean, worse, better=better)
    assert found.p == pytest.approx(1 / 2000) and 0 < found.lower < found.drop < found.upper
    assert found.lost > 60 > found.gained
    same = measure_corpus(name, clean, clean, better=better)
    assert (same.p, same.drop, same.lost, same.gained) == (1.0, 0.0, 0, 0) and same.upper > 0


TASK = {
    "task": "translate",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "d.jsonl"}},
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{n}}:",
    "doc_to_target": "{{wanted}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
    "metric_list": [{"metric": name, "aggregation": name, "higher_is_better": name != "ter"} for name in NAMES],
}


@pytest.fixture
def translated(tmp_path, monkeypatch):
    """A task of translations, lm-eval's results of made-up answers, and the answers by document."""
    import lm_eval
    from datasets import config as settings
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    said = dict(enumerate(pairs(30, 5)))
    rows = [{"n": n, "wanted": wanted} for n, (wanted, _) in said.items()]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "translate.yaml").write_text(json.dumps(TASK))

    class Translator(LM):
        def loglikelihood(self, requests, disable_tqdm=False):
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

        def generate_until(self, requests, disable_tqdm=False):
            return [said[request.doc["n"]][1] for request in requests]

    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(settings, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    found = lm_eval.simple_evaluate(
        model=Translator(),
        tasks=["translate"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    return tmp_path / "translate.yaml", found, said


def test_a_task_of_translations_is_aggregated_as_lm_eval_does(translated, answer):
    path, found, said = translated
    suite = LmEvalSuite("t", [path])
    assert {(item.metric, item.filter) for item in suite.items()} == {("bleu", "none")}
    scores = {item.id: suite.score(item, [answer(said[item.payload.doc["n"]][1])]) for item in suite.items()}
    ours = suite.aggregate(scores)["translate"]
    assert ours == {f"{name},none": found["results"]["translate"][f"{name},none"] for name in NAMES}
    assert 0 < ours["bleu,none"] < 100 and {s.error_class for each in scores.values() for s in each} == {None}


def test_samples_that_lm_eval_logged_of_translations_are_read(translated, tmp_path):
    _, found, _ = translated
    path = tmp_path / "samples_translate_2026-11-30T01-15-25.614686.jsonl"
    path.write_text("".join(json.dumps(sample, default=str) + "\n" for sample in found["samples"]["translate"]))
    samples, notes = read_arms({"a": [path]}, None, None)
    assert notes[0].startswith("task translate: bleu through filter none (stored beside it: chrf, chrf++, ter)")
    assert "a policy judges it by a rule with `metric` and `margin`" in notes[0]
    assert {sample.status for sample in samples["a"]} == {"scored"}
    for name in NAMES:
        counts = [[s.value for s in sample.scores if s.metric.rpartition(".")[0] == name] for sample in samples["a"]]
        assert of_sums(name, counts) == found["results"]["translate"][f"{name},none"]
