"""lm-eval tasks give lm-eval's own prompts, choices and values."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections import defaultdict

import pytest

from evalsvc.errors import ConfigError
from evalsvc.suites.lmeval import LmEvalSuite, tie_of
from evalsvc.suites.task_questions import Asking

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
    assert [(i.id, i.family, i.cluster, i.filter, i.right_answer) for i in items] == [
        ("mine:0", "mine", "", "none", "x"),
        ("mine:1", "mine", "", "none", "y"),
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


# -- how documents become prompts --------------------------------------------------------------------------------------


def with_shots(tmp_path, pool, **changes):
    path = write_task(
        tmp_path,
        docs=[{"q": f"d{n}", "a": "x", "c": ["x", "y"]} for n in range(12)],
        dataset_kwargs={"data_files": {"test": "d.jsonl", "shots": "s.jsonl"}},
        fewshot_split="shots",
        doc_to_text="{{q}}:",
        num_fewshot=2,
        **changes,
    )
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in pool))
    return path


POOL = [{"q": f"s{n}", "a": "x", "c": ["x", "y"]} for n in range(9)]


def prompts_of(suite):
    return {item.id: suite.next_request(item, ()).prompt for item in suite.items()}


def test_drawn_examples_are_one_set_for_all_documents_of_a_draw(tmp_path):
    """Documents take turns with the sets, so each is asked once and a set is a cluster."""
    suite = LmEvalSuite("t", [with_shots(tmp_path, POOL)], asking=Asking(draws=4))
    clusters = [item.cluster for item in suite.items()]
    assert clusters == [f"mine examples {1234 + n % 4}" for n in range(12)]
    prompts = prompts_of(suite)
    heads = defaultdict(set)
    for item in suite.items():
        head, own = prompts[item.id].rsplit("\n\n", 1)
        assert own == f"{item.payload.doc['q']}:" and head.count("\n\n") == 1
        heads[item.cluster].add(head)
    assert all(len(same) == 1 for same in heads.values())
    assert len(set.union(*heads.values())) == 4
    again = LmEvalSuite("t", [with_shots(tmp_path, POOL)], asking=Asking(draws=4))
    assert prompts_of(again) == prompts
    assert {
        i.cluster for i in LmEvalSuite("t", [tmp_path / "mine.yaml"], asking=Asking(draws=4), limit=4).items()
    } == set(clusters)


def test_a_document_is_never_its_own_drawn_example(tmp_path):
    """Also where the pool is what is asked, and holds rows twice."""
    docs = [{"q": "dup", "a": "x", "c": []}, {"q": "dup", "a": "x", "c": []}, *POOL[:3]]
    path = write_task(tmp_path, docs=docs, fewshot_split="test", num_fewshot=2, doc_to_text="{{q}}:")
    for draws in range(2, 40, 7):
        for item_id, prompt in prompts_of(LmEvalSuite("t", [path], asking=Asking(draws=draws))).items():
            *shots, own = prompt.split("\n\n")
            assert len(shots) == 2 and not any(shot.startswith(own) for shot in shots), item_id


def test_draws_that_draw_nothing_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no task has few-shot examples to draw"):
        LmEvalSuite("t", [write_task(tmp_path)], asking=Asking(draws=3))
    with pytest.raises(ConfigError, match=r"task 'mine': the pool holds 1 examples .* num_fewshot is 2"):
        LmEvalSuite("t", [with_shots(tmp_path, POOL[:1])], asking=Asking(draws=3))


def test_one_set_of_first_examples_is_one_cluster(tmp_path):
    first = with_shots(tmp_path, POOL, fewshot_config={"sampler": "first_n"})
    assert {item.cluster for item in LmEvalSuite("t", [first]).items()} == {"mine"}
    assert {item.cluster for item in LmEvalSuite("t", [with_shots(tmp_path, POOL)]).items()} == {""}
    none = LmEvalSuite("t", [with_shots(tmp_path, POOL)], asking=Asking(num_fewshot=0))
    assert {item.cluster for item in none.items()} == {""}


def test_the_number_of_examples_is_the_suites_unless_a_task_says_0(tmp_path):
    def shots(asking, **changes):
        suite = LmEvalSuite("t", [with_shots(tmp_path, POOL, **changes)], asking=asking)
        return prompts_of(suite)["mine:0"].count("\n\n")

    assert shots(Asking()) == 2 and shots(Asking(num_fewshot=5)) == 5 and shots(Asking(num_fewshot=0)) == 0
    none = write_task(tmp_path, num_fewshot=0, fewshot_split="test", docs=POOL)
    assert prompts_of(LmEvalSuite("t", [none], asking=Asking(num_fewshot=3)))["mine:0"].count("\n\n") == 0


def test_a_conversation_is_asked_as_messages(tmp_path):
    path = with_shots(tmp_path, POOL, description="Answer.", gen_prefix="So")
    turns = prompts_of(LmEvalSuite("t", [path], asking=Asking(chat=True, system="Be brief.")))["mine:0"]
    assert [message["role"] for message in turns] == ["system", *["user", "assistant"] * 3]
    assert turns[0]["content"] == "Be brief.\n\nAnswer."
    assert turns[-1] == {"role": "assistant", "content": "So", "prefix": True}
    single = prompts_of(LmEvalSuite("t", [path], asking=Asking(chat=True, multiturn=False)))["mine:0"]
    assert [message["role"] for message in single] == ["system", "user", "assistant"]
    assert "prefix" not in single[1] and single[1]["content"].count("\n\n") == 2


def test_sampled_answers_carry_their_settings_and_repeats(tmp_path):
    drawn = {"until": ["\n"], "max_gen_toks": 4, "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 5}
    suite = LmEvalSuite("t", [write_task(tmp_path, generation_kwargs=drawn, repeats=3)])
    item = suite.items()[0]
    request = suite.next_request(item, ())
    assert (request.temperature, request.top_p, request.top_k, item.repeats) == (0.7, 0.9, 5, 3)
    greedy = LmEvalSuite("t", [write_task(tmp_path, repeats=3)]).items()[0]
    assert greedy.repeats == 1, "the same answer three times"
    cold = drawn | {"do_sample": False}
    request = LmEvalSuite("t", [write_task(tmp_path, generation_kwargs=cold)])
    assert request.next_request(request.items()[0], ()).temperature == 0


def test_a_majority_is_taken_of_all_repeats_together(tmp_path, answer):
    drawn = {"until": ["\n"], "max_gen_toks": 4, "temperature": 0.7}
    vote = [{"name": "vote", "filter": [{"function": "majority_vote"}, {"function": "take_first"}]}]
    suite = LmEvalSuite("t", [write_task(tmp_path, generation_kwargs=drawn, repeats=3, filter_list=vote)])
    item = suite.items()[0]
    assert item.repeats == 1
    answers = []
    for text in ("x", "z", "x"):
        assert suite.next_request(item, answers) is not None
        answers.append(answer(text))
    assert suite.next_request(item, answers) is None
    assert [score.value for score in suite.score(item, answers)] == [1.0]
    assert [score.value for score in suite.score(item, [answer(t) for t in ("z", "z", "x")])] == [0.0]


def test_fractions_and_lower_is_better_have_no_wrong_answers(tmp_path, answer):
    (tmp_path / "code.py").write_text("def score(doc, results):\n    return {'f1': 0.4, 'wer': 0.3, 'bleu': 37.0}\n")
    listed = [
        {"metric": name, "aggregation": "mean", "higher_is_better": name != "wer"} for name in ("wer", "f1", "bleu")
    ]
    path = write_task(tmp_path, metric_list=listed, process_results="CODE")
    path.write_text(path.read_text().replace('"CODE"', "!function code.score"))
    suite = LmEvalSuite("t", [path], allow_code=True)
    item = suite.items()[0]
    assert item.metric == "f1"
    found = {s.metric: (s.value, s.error_class) for s in suite.score(item, [answer("x")])}
    assert found == {"f1": (0.4, "wrong_answer"), "wer": (0.3, None), "bleu": (37.0, None)}


# -- what others reported ----------------------------------------------------------------------------------------------

FLEXIBLE = "(-?[$0-9.,]{2,})|(-?[0-9]+)"
GSM8K = {
    "metric": "exact_match",
    "aggregation": "mean",
    "higher_is_better": True,
    "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
}


def judged(tmp_path, answer, target, response, steps=(), metric=None):
    """lm-eval's value for one answer."""
    filters = [{"name": "own", "filter": [*steps, {"function": "take_first"}]}]
    metrics = [metric or {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    path = write_task(
        tmp_path, docs=[{"a": target}], doc_to_target="a", doc_to_text="Q:", filter_list=filters, metric_list=metrics
    )
    suite = LmEvalSuite("t", [path])
    (score,) = suite.score(suite.items()[0], [answer(response)])
    return score.value


@pytest.fixture
def samples_file(tmp_path):
    """`samples_file(arm, samples)`: a file as lm-eval writes it."""

    def call(arm, samples):
        path = tmp_path / arm / "samples_mine_2026-11-30T01-15-25.614686.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps(sample, default=str) + "\n" for sample in samples))
        return path

    return call


def regex(pattern, select=0):
    return {"function": "regex", "regex_pattern": pattern, "group_select": select}


@pytest.mark.parametrize(
    ("target", "response", "value"),
    [
        ("#### 41", "So the bill comes to $41.00.", 0.0),
        ("#### 41", "So the bill comes to $41.", 1.0),
        ("#### 1,041", "1041 in all", 1.0),
        ("58", "You need 58 tiles, then.", 1.0),
        ("58", "Fifty-eight, I say.", 0.0),
    ],
)
def test_lm01_lm03_the_flexible_extract_of_gsm8k_gives_lm_evals_value(tmp_path, answer, target, response, value):
    """The amount with decimals is right in plain meaning; what is called exact_match gives lm-eval's 0."""
    assert judged(tmp_path, answer, target, response, [regex(FLEXIBLE, -1)], GSM8K) == value


@pytest.mark.parametrize(
    ("response", "before", "value"),
    [
        ("So the answer is (D).", [], 1.0),
        ("So the answer is (D). ", [], 0.0),
        ("So the answer is (D). ", [{"function": "remove_whitespace"}], 1.0),
        (" So the answer is (D).", [{"function": "remove_whitespace"}], 1.0),
    ],
)
def test_lm05_a_space_after_the_last_stop_costs_what_it_costs_in_lm_eval(tmp_path, answer, response, before, value):
    """And a task that removes it says so in its filters."""
    assert judged(tmp_path, answer, "(D)", response, [*before, regex("(?<=the answer is )(.*)(?=.)")]) == value


@pytest.mark.parametrize("response", ["Lake Como ", "Lake Como\n", " Lake Como", "\u00a0Lake Como"])
def test_lm25_spaces_around_an_answer_count_unless_the_task_removes_them_at_both_ends(tmp_path, answer, response):
    assert judged(tmp_path, answer, "Lake Como", "Lake Como") == 1
    assert judged(tmp_path, answer, "Lake Como", response) == 0
    assert judged(tmp_path, answer, "Lake Como", response, [{"function": "remove_whitespace"}]) == 1


def test_lm13_a_target_that_spells_a_list_is_text_by_its_column_and_a_list_by_its_template(tmp_path, answer):
    """lm-eval reads what a template wrote as a list where it can; the name of the column keeps it as it is."""

    def values(doc, target):
        suite = LmEvalSuite("t", [write_task(tmp_path, docs=[doc], doc_to_text="Q:", doc_to_target=target)])
        return [suite.score(suite.items()[0], [answer(text)])[0].value for text in ("[4, 0, 7]", "4")]

    assert values({"answer": "[4, 0, 7]"}, "answer") == [1.0, 0.0]
    assert values({"answer": ["4", "[4, 0, 7]"]}, "answer") == [1.0, 1.0]
    assert values({"answer": ["5", "6"]}, "answer") == [0.0, 0.0]
    assert values({"answer": "['4', '5']"}, "{{answer}}") == [0.0, 1.0]


@pytest.mark.parametrize("seed", range(51))
def test_lm09_equal_rows_in_the_pool_of_examples_stop_nothing(tmp_path, seed, monkeypatch):
    from evalsvc.suites import task_build

    docs = [{"q": "dup", "a": "x"}, {"q": "dup", "a": "x"}, {"q": "p", "a": "y"}, {"q": "r", "a": "z"}]
    path = write_task(tmp_path, docs=docs, fewshot_split="test", num_fewshot=2, doc_to_text="{{q}}:")
    monkeypatch.setattr(task_build, "FEWSHOT_SEED", seed)
    for prompt in prompts_of(LmEvalSuite("t", [path])).values():
        *shots, own = prompt.split("\n\n")
        assert len(shots) == 2 and not any(shot.startswith(own) for shot in shots)


@pytest.mark.parametrize(
    ("pattern", "select", "response", "filtered"),
    [
        (FLEXIBLE, -1, "So the bill comes to $41.00.", "$41.00."),
        (FLEXIBLE, -1, "You need 58 tiles, then.", "58"),
        ("(?<=the answer is )(.*)(?=.)", 0, "So the answer is (D).", "(D)"),
        ("(?<=the answer is )(.*)(?=.)", 0, "So the answer is (D). ", "(D)."),
    ],
)
def test_lm01_lm03_lm05_what_a_filter_leaves_is_lm_evals(tmp_path, answer, pattern, select, response, filtered):
    steps = [regex(pattern, select), {"function": "take_first"}]
    filters = [{"name": "own", "filter": steps}]
    suite = LmEvalSuite("t", [write_task(tmp_path, docs=[{"a": filtered}], doc_to_text="Q:", filter_list=filters)])
    (score,) = suite.score(suite.items()[0], [answer(response)])
    assert (score.value, score.filter, score.filtered) == (1.0, "own", filtered)


def test_what_several_filters_leave_is_told_by_filter_and_nothing_of_an_answer_left_whole(tmp_path, answer):
    strict = [regex("(?<=the answer is )(.*)(?=.)"), {"function": "take_first"}]
    filters = [
        {"name": "strict", "filter": strict},
        {"name": "whole", "filter": [{"function": "take_first"}]},
        {"name": "listed", "filter": [regex("(?<=the answer is )(.*)(?=.)")]},
    ]
    suite = LmEvalSuite("t", [write_task(tmp_path, docs=[{"a": "(D)"}], doc_to_text="Q:", filter_list=filters)])
    scores = suite.score(suite.items()[0], [answer("So the answer is (D). ")])
    assert {(s.filter, s.filtered) for s in scores} == {("strict", "(D)."), ("whole", None), ("listed", '["(D)."]')}


@pytest.mark.parametrize("order", [[5, 2, 9], [2, 5, 9], [9, 5, 2]])
def test_lm17_documents_that_lm_eval_numbers_wrongly_are_paired_with_no_other(
    order, tmp_path, monkeypatch, samples_file
):
    """`--samples` with an unsorted list: where the number is another document's, the hashes differ."""
    from datasets import config as settings
    from lm_eval.tasks import TaskManager

    from evalsvc.recorded.lmeval import read_arms

    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(settings, "HF_HUB_OFFLINE", True)
    docs = [{"q": f"q{n}", "value": f"w{n}"} for n in range(12)]
    write_task(tmp_path, docs=docs, doc_to_text="{{q}}:", doc_to_target="{{value}}")
    monkeypatch.chdir(tmp_path)

    def arm(name, numbers):
        found = lm_eval.simple_evaluate(
            model=fake_lm(),
            tasks=["mine"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            samples={"mine": numbers},
            bootstrap_iters=0,
            log_samples=True,
        )
        samples = read_arms({name: [samples_file(name, found["samples"]["mine"])]}, None, None)[0][name]
        return {s.item_id: (s.item_hash, s.request_hash, s.prompt) for s in samples}

    plain, other = arm("a", list(range(12))), arm("b", order)
    assert len(other) == 3
    for item, (item_hash, asked, prompt) in other.items():
        same = (item_hash, asked) == plain[item][:2]
        assert same == (prompt == plain[item][2]), "one number with two questions is told by its hashes"
    items = LmEvalSuite("t", [tmp_path / "mine.yaml"]).items()
    assert all(item.payload.doc["q"] == f"q{item.id.removeprefix('mine:')}" for item in items)


def test_lm11_an_error_of_a_group_follows_its_weighting():
    """lm-eval's group of the pinned version: the error of a mean of means is no error of a pooled sample."""
    from lm_eval.api.metrics import pooled_sample_stderr, unweighted_mean_stderr

    errors, sizes = [0.114708, 0.01598], [20, 980]
    assert unweighted_mean_stderr(errors) == pytest.approx(0.057908, abs=1e-6)
    assert pooled_sample_stderr(errors, sizes) == pytest.approx(0.015827, abs=2e-5)


def test_lm21_the_right_choice_is_the_likeliest_and_not_the_greedy_one(tmp_path, ranking):
    docs = [{"q": "one", "gold": 2, "c": ["a", "b", "c", "d"]}]
    suite = LmEvalSuite(
        "t", [write_task(tmp_path, docs=docs, **{**CHOICE, "doc_to_text": "q", "doc_to_target": "gold"})]
    )
    (score,) = suite.score(suite.items()[0], [ranking(-2.64, -2.39, -2.27, -4.64)])
    assert (score.value, score.error_class) == (1.0, None)


def test_lm23_a_tie_at_the_top_takes_the_first_as_lm_eval_and_is_counted(tmp_path, ranking):
    docs = [{"q": "one", "gold": 1, "c": ["A", "B", "C", "D"]}]
    suite = LmEvalSuite(
        "t", [write_task(tmp_path, docs=docs, **{**CHOICE, "doc_to_text": "q", "doc_to_target": "gold"})]
    )
    (score,) = suite.score(suite.items()[0], [ranking(-1.748702, -1.748702, -2.748702, -3.248702)])
    assert (score.value, score.error_class) == (0.0, "tie_at_top")
