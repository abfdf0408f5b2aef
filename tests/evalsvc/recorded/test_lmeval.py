"""lm-eval's samples: rows become documents, documents samples, and arms are read by one rule."""

import json
import os
import subprocess
import sys

import pytest

from evalsvc.errors import ConfigError
from evalsvc.recorded.lmeval import read_arms
from evalsvc.recorded.rows import read_rows

from .conftest import DATE, chosen_row, written_row


def only(paths, metric=None, filter_=None):
    samples, notes = read_arms({"a": paths}, metric, filter_)
    return samples["a"], notes


def test_a_chosen_row_becomes_a_sample_with_its_choices_and_the_right_one(samples_file):
    path = samples_file("a", "sums", [chosen_row(0, [-3.0, -1.0, -2.0], 1), chosen_row(1, [-3.0, -1.0, -2.0], 2)])
    (right, wrong), notes = only([path])
    assert (right.suite, right.family, right.item_id, right.metric, right.filter) == (
        "sums",
        "sums",
        "sums:0",
        "acc",
        "none",
    )
    assert right.chance == pytest.approx(1 / 3) and right.through == "prefill" and right.stage_tokens == {"prefill": 1}
    assert right.prompt == "What is 0?" and right.rendered_hash is None and right.right_answer is None
    assert json.loads(right.answer) == {"choices": [" 0", " 1", " 2"], "logprobs": [-3.0, -1.0, -2.0], "gold": 1}
    assert [(s.metric, s.value, s.error_class) for s in right.scores] == [("acc", 1.0, None), ("acc_norm", 1.0, None)]
    assert [(s.value, s.error_class) for s in wrong.scores if s.metric == "acc"] == [(0.0, "wrong_choice")]
    assert notes == ["task sums: acc through filter none (stored beside it: acc_norm)"]


def test_a_document_has_one_sample_with_the_scores_of_all_its_filters(samples_file):
    rows = [written_row(i, "so it is 4", float(i)) for i in range(2)]
    rows += [written_row(i, "so it is 4", 1.0, "flexible") for i in range(2)]
    path = samples_file("a", "gsm8k", rows)
    (first, second), notes = only([path])
    assert {(s.metric, s.filter): s.value for s in first.scores} == {
        ("exact_match", "strict"): 0.0,
        ("exact_match", "flexible"): 1.0,
    }
    assert first.right_answer == rows[0]["target"]
    assert first.filter == "strict" and first.answer == "so it is 4" and first.through == ""
    assert first.stage_tokens == {"prefill": 1, "decode": 1} and first.handed_over
    assert notes == ["task gsm8k: exact_match through filter strict (stored beside it: exact_match/flexible)"]
    assert only([path], filter_="flexible")[0][0].filter == "flexible"
    assert second.item_hash != only([path], filter_="flexible")[0][1].item_hash


def test_lm05_what_a_filter_left_is_kept_with_its_scores(samples_file):
    said = "So the answer is (D). "
    rows = [written_row(0, said, 0.0, "strict", filtered_resps=["(D)."]), written_row(0, said, 0.0, "whole")]
    rows += [written_row(0, said, 1.0, "voted", filtered_resps=[["(D)", None]])]
    ((sample,), _) = only([samples_file("a", "bbh", rows)])
    assert {s.filter: s.filtered for s in sample.scores} == {"strict": "(D).", "whole": None, "voted": '["(D)", null]'}
    ((chosen,), _) = only([samples_file("b", "sums", [chosen_row(0, [-3.0, -1.0], 1)])])
    assert {s.filtered for s in chosen.scores} == {None}


def test_the_metric_can_be_named(samples_file):
    path = samples_file("a", "sums", [chosen_row(0, [-3.0, -1.0], 0)])
    (sample,), _ = only([path], metric="acc_norm")
    assert sample.metric == "acc_norm"


def test_arms_are_read_by_the_metric_that_serves_them_all(samples_file):
    """A metric that one arm lacks, or that leaves 0 to 1 there, carries no verdict in the other either."""
    good = samples_file("a", "t", [written_row(0, "x", 1.0, metrics=["bleu", "exact_match"], bleu=0.4)])
    far = samples_file("b", "t", [written_row(0, "x", 1.0, metrics=["bleu", "exact_match"], bleu=41.0)])
    samples, _ = read_arms({"a": [good], "b": [far]}, None, None)
    assert {s.metric for found in samples.values() for s in found} == {"exact_match"}
    assert [s.value for s in samples["b"][0].scores] == [41.0, 1.0]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_an_error(samples_file, value):
    path = samples_file("a", "t", [written_row(0, "x y", 1.0), written_row(1, "x y", 0.0, exact_match=value)])
    (_, sample), _ = only([path])
    assert (sample.status, sample.scores) == ("error", ())
    assert "no number for exact_match" in sample.error_message


@pytest.mark.parametrize("given", ["nan", 10**400])
def test_a_log_probability_that_is_no_number_is_an_error(samples_file, given):
    """The argmax over NaN is choice 0: an outage would be scored by position."""
    rows = [
        chosen_row(0, [-1.0, -2.0], 0),
        chosen_row(1, [-1.0, -2.0], 0, resps=[[[given, "False"]], [["-1", "False"]]]),
    ]
    (_, sample), _ = only([samples_file("a", "t", rows)])
    assert (sample.status, sample.scores, sample.answer) == ("error", (), "")


def test_lm22_choices_that_are_all_certain_are_an_error_and_no_first_choice(samples_file):
    """A server that returns log-probabilities of generated tokens alone leaves sums of nothing."""
    rows = [chosen_row(0, [0.0, 0.0, 0.0, 0.0], 0), chosen_row(1, [0.0, -9.0], 0), chosen_row(2, [-0.0, -0.0], 1)]
    none, certain, also = only([samples_file("a", "t", rows)])[0]
    assert [(s.status, s.scores, s.answer) for s in (none, also)] == [("error", (), "")] * 2
    assert "all 4 log-likelihoods are 0" in none.error_message and certain.status == "scored"


def test_ties_and_empty_answers_are_counted_and_said(samples_file):
    chosen = samples_file("a", "t", [chosen_row(0, [-1.0, -1.0], 0), chosen_row(1, [-1.0, -2.0], 0)])
    (tied, _), notes = only([chosen])
    assert {score.error_class for score in tied.scores} == {"tie"}
    assert "a: all choices of 1 of 2 items of t are equally likely: scored by their position" in notes
    written = samples_file("a", "w", [written_row(0, " ", 0.0), written_row(1, "x", 0.0)])
    assert any(note.startswith("a: 1 of 2 answers of w are empty") for note in only([written])[1])


def test_what_was_asked_is_in_the_hashes(samples_file):
    def sample(**changes):
        return only([samples_file("a", "t", [chosen_row(0, [-1.0, -2.0], 0, **changes)])])[0][0]

    plain = sample()
    assert sample(prompt_hash="other").request_hash != plain.request_hash
    assert sample(prompt="other").request_hash != plain.request_hash
    assert sample(doc_hash="other").item_hash != plain.item_hash
    assert sample(target="1").item_hash != plain.item_hash
    assert sample(resps=[[["-5", "False"]], [["-2", "False"]]]).key == plain.key

    def written(**settings):
        row = written_row(0, "x", 1.0)
        row["arguments"]["gen_args_0"]["arg_1"] |= settings
        return only([samples_file("a", "w", [row])])[0][0]

    assert written(max_gen_toks=8).settings_hash != written().settings_hash
    assert written(max_gen_toks=8).request_hash == written().request_hash


def test_targets_that_contradict_acc_are_no_indices_in_the_whole_task(samples_file):
    """Some tasks name their target by a text that is a number, and some of those agree by chance."""
    rows = [chosen_row(0, [-1.0, -2.0], 1), chosen_row(1, [-1.0, -2.0], 1, acc=1.0)]
    assert all("gold" not in json.loads(s.answer) for s in only([samples_file("a", "t", rows)])[0])
    assert all("gold" in json.loads(s.answer) for s in only([samples_file("a", "t", rows[:1])])[0])


def test_choices_that_differ_in_their_prompts_are_kept_by_them(samples_file):
    asked = {f"gen_args_{k}": {"arg_0": f"Ann {word}", "arg_1": " left."} for k, word in enumerate(("he", "she"))}
    (sample,), _ = only([samples_file("a", "wino", [chosen_row(0, [-1.0, -2.0], 0, arguments=asked)])])
    assert json.loads(sample.answer)["choices"] == ["Ann he", "Ann she"]
    assert json.loads(sample.prompt) == ["Ann he", "Ann she"]


def test_choices_without_their_prompt_are_no_choices(samples_file):
    """`acc_mutual_info` asks each choice a second time, alone."""
    row = chosen_row(0, [-1.0, -2.0, -3.0, -3.0], 0)
    for key in ("gen_args_2", "gen_args_3"):
        row["arguments"][key]["arg_0"] = ""
    (sample,), _ = only([samples_file("a", "t", [row])])
    assert json.loads(sample.answer)["logprobs"] == [-1.0, -2.0] and sample.chance == 0.5


def test_an_old_file_without_hashes_is_read(samples_file):
    row = written_row(0, "x y", 1.0)
    for key in ("doc_hash", "prompt_hash", "target_hash", "filter", "metrics"):
        del row[key]
    row["arguments"] = [["Q0", {"until": ["\n"]}]]
    (sample,), _ = only([samples_file("a", "t", [row])])
    assert (sample.metric, sample.filter, sample.prompt, sample.status) == ("exact_match", "none", "Q0", "scored")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([written_row(0, "x", 1.0)] * 2, r":2: document 0 stands already in line 1 \(filter strict\)"),
        (
            [written_row(0, "x", 1.0), written_row(0, "x", 1.0, "flexible", doc_hash="z")],
            r":2: document 0 has another doc_hash than in line 1",
        ),
        ([{"item": 1, "correct": 1}], r":1: is no lm-eval sample"),
        (
            [written_row(0, "x", 1.0, metrics=["bypass"], bypass=999)],
            "task t: no metric carries a verdict; it has none",
        ),
        ([written_row(0, "x", 1.0, metrics=["wer"], wer=0.2)], "task t: no metric carries a verdict; it has wer"),
        ([written_row(0, "x", 1.0, arguments=None, prompt_hash="")], r":1: has neither arguments nor a prompt_hash"),
        ([written_row(0, "x", 1.0, metrics=[["exact_match"]])], r":1: metrics names .* no text"),
        ([], "holds no samples"),
    ],
)
def test_what_cannot_carry_a_verdict_is_refused(samples_file, rows, says):
    with pytest.raises(ConfigError, match=says):
        only([samples_file("a", "t", rows)])


def test_a_metric_or_filter_that_no_task_has_names_those_that_are_there(samples_file):
    path = samples_file("a", "t", [written_row(0, "x", 1.0)])
    with pytest.raises(ConfigError, match="no task has a metric 'acc'; there are exact_match"):
        only([path], metric="acc")
    with pytest.raises(ConfigError, match="no task has a filter 'flexible'; there are strict"):
        only([path], filter_="flexible")
    path = samples_file("a", "t", [written_row(0, "x", 1.0, metrics=["exact_match", "brier_score"], brier_score=0.1)])
    with pytest.raises(ConfigError, match="less of 'brier_score' is better"):
        only([path], metric="brier_score")


def test_a_named_metric_and_filter_count_where_a_task_has_them(samples_file):
    first = samples_file("a", "t", [written_row(0, "x", 1.0), written_row(0, "x", 0.0, "flexible")])
    other = samples_file("a", "u", [chosen_row(0, [-1.0, -2.0], 0)])
    found, _ = only([first, other], metric="acc_norm", filter_="flexible")
    assert [(s.suite, s.metric, s.filter) for s in found] == [
        ("t", "exact_match", "flexible"),
        ("u", "acc_norm", "none"),
    ]


def rolling_row(doc_id, loglikelihood, words):
    return {
        "doc_id": doc_id,
        "doc": {"page": doc_id},
        "target": "a page",
        "arguments": {"gen_args_0": {"arg_0": "a page"}},
        "resps": [[str(loglikelihood)]],
        "filtered_resps": [str(loglikelihood)],
        "filter": "none",
        "metrics": ["word_perplexity", "bits_per_byte"],
        "doc_hash": f"d{doc_id}",
        "prompt_hash": "p",
        "target_hash": "t",
        "word_perplexity": [loglikelihood, words],
        "bits_per_byte": [loglikelihood, 5 * words],
    }


def test_a_metric_of_the_whole_corpus_comes_with_its_parts(samples_file):
    (sample,), notes = only([samples_file("a", "wiki", [rolling_row(0, -120.5, 40)])])
    assert (sample.metric, sample.scored_by, sample.status) == ("word_perplexity", "loglikelihood", "scored")
    assert {s.metric: s.value for s in sample.scores} == {
        "word_perplexity.0": -120.5,
        "word_perplexity.1": 40.0,
        "bits_per_byte.0": -120.5,
        "bits_per_byte.1": 200.0,
    }
    assert notes == [
        "task wiki: word_perplexity through filter none (stored beside it: bits_per_byte); a policy judges it by a "
        "rule with `metric` and `margin`"
    ]
    lost = rolling_row(1, -1.0, 40) | {"word_perplexity": [float("nan"), 40]}
    assert [s.status for s in only([samples_file("a", "wiki", [rolling_row(0, -120.5, 40), lost])])[0]] == [
        "scored",
        "error",
    ]


def test_of_a_folder_the_newest_of_each_task_counts(samples_file, tmp_path):
    samples_file("a/model", "t", [written_row(0, "old", 0.0)], "2026-11-29T01-00-00.5")
    samples_file("a/model", "t", [written_row(0, "new", 1.0)])
    samples_file("a/model", "t_more", [written_row(0, "other", 1.0)], "2026-11-28T01-00-00.5")
    found, notes = only([tmp_path / "a"])
    assert [(s.suite, s.answer) for s in found] == [("t", "new"), ("t_more", "other")]
    assert any(f"1 older file left out; read samples_t_{DATE}.jsonl" in note for note in notes)


def test_files_with_names_of_their_own_hold_one_task(samples_file, write):
    """Else every item of `base.jsonl` would be one that `int4.jsonl` lacks."""
    line = json.dumps(written_row(0, "x y", 1.0)) + "\n"
    samples, _ = read_arms({"a": [write("base.jsonl", line)], "b": [write("int4.jsonl", line)]}, None, None, "nightly")
    assert samples["a"][0].key == samples["b"][0].key and samples["a"][0].suite == "nightly"
    with pytest.raises(ConfigError, match=r"task task stands in .* name them samples_TASK\.jsonl"):
        only([write("one.jsonl", line), write("two.jsonl", line)])


def test_a_folder_of_several_models_or_of_none_is_refused(samples_file, tmp_path):
    samples_file("a/one", "t", [written_row(0, "x", 0.0)])
    samples_file("a/two", "t", [written_row(0, "x", 0.0)])
    with pytest.raises(ConfigError, match="samples in 2 folders"):
        only([tmp_path / "a"])
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="run lm_eval with --log_samples"):
        only([tmp_path / "b"])
    with pytest.raises(ConfigError, match="task t stands in"):
        only([tmp_path / "a/one", tmp_path / "a/two"])


def results(**changes):
    return json.dumps(
        {
            "group_subtasks": {"mmlu": ["mmlu_stem", "mmlu_other"], "mmlu_stem": ["mmlu_physics"], "mmlu_other": []},
            "configs": {"mmlu_physics": {"metadata": {"version": 1, "prefix": "p7"}}},
            "higher_is_better": {"mmlu_physics": {"acc": True, "strange": False}},
            "versions": {"mmlu_physics": 1},
        }
        | changes
    )


def test_the_results_file_names_group_prefix_and_what_is_better(samples_file, write):
    row = chosen_row(0, [-1.0, -2.0], 0, metrics=["strange", "acc"], strange=0.5)
    paths = {arm: [samples_file(arm, "mmlu_physics", [row])] for arm in "ab"}
    write(f"a/results_{DATE}.json", results())
    samples, _ = read_arms(paths, None, None)
    one, other = samples["a"][0], samples["b"][0]
    assert (one.suite, one.family, one.cluster, one.metric) == ("mmlu", "mmlu_physics", "p7", "acc")
    assert one.key == other.key  # the arm without a results file is named alike
    assert one.scoring_version == other.scoring_version == "lm-eval"
    write(f"b/results_{DATE}.json", results(versions={"mmlu_physics": 2}))
    samples, _ = read_arms(paths, None, None)
    assert {s.scoring_version for found in samples.values() for s in found} == {"lm-eval task 1", "lm-eval task 2"}


@pytest.mark.parametrize(
    "content", ['{"group_subtasks": {"a": ["b"], "b": ["a"]}}', "[]", '{"configs": 3, "versions": []}']
)
def test_an_odd_results_file_is_no_hindrance(samples_file, write, content):
    path = samples_file("a", "a", [written_row(0, "x", 1.0)])
    write(f"a/results_{DATE}.json", content)
    assert len(only([path])[0]) == 1
    write(f"a/results_{DATE}.json", '{"configs"')
    with pytest.raises(ConfigError, match="was it written to its end"):
        only([path])


TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "Question: What is {{{{a}}}} plus {{{{b}}}}?\\nAnswer:"
metadata: {{version: 3, family: sums, prefix: p0}}
"""
CHOSEN = """\
doc_to_target: gold
output_type: multiple_choice
doc_to_choice: choices
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
WRITTEN = """\
doc_to_target: "{{choices[gold]}}"
output_type: generate_until
generation_kwargs: {until: ["\\n"], max_gen_toks: 6, do_sample: false}
metric_list: [{metric: exact_match}]
filter_list:
  - {name: strip, filter: [{function: remove_whitespace}, {function: take_first}]}
  - {name: first, filter: [{function: take_first}]}
"""


@pytest.mark.slow
def test_files_that_lm_eval_itself_writes_are_read(write, tmp_path):
    """Two tasks, answered at random by lm-eval's own dummy model."""
    rows = [{"a": a, "b": a + 1, "choices": [str(2 * a + k) for k in range(4)], "gold": 1} for a in range(4)]
    data = write("sums.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for name, rest in (("chosen", CHOSEN), ("written", WRITTEN)):
        write(f"tasks/{name}.yaml", TASK.format(name=f"sums_{name}", data=data) + rest)
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "dummy", "--tasks", "sums_chosen,sums_written"]
    command += ["--include_path", str(tmp_path / "tasks"), "--log_samples", "--output_path", str(tmp_path / "out")]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, notes = only([tmp_path / "out"])
    assert notes == [
        "task sums_chosen: acc through filter none (stored beside it: acc_norm)",
        "task sums_written: exact_match through filter strip (stored beside it: exact_match/first)",
    ]
    assert {(s.status, s.family, s.cluster, s.scoring_version) for s in found} == {
        ("scored", "sums", "p0", "lm-eval task 3")
    }
    chosen, written = found[:4], found[4:]
    assert {(s.suite, s.metric, s.chance, s.through) for s in chosen} == {("sums_chosen", "acc", 0.25, "prefill")}
    for sample in chosen:
        answer = json.loads(sample.answer)
        best = max(range(4), key=answer["logprobs"].__getitem__)
        assert {s.value for s in sample.scores if s.metric == "acc"} == {float(best == answer["gold"])}
        assert sample.prompt.endswith("Answer:")
    assert {(s.suite, s.metric, s.filter, s.answer, s.through, len(s.scores)) for s in written} == {
        ("sums_written", "exact_match", "strip", "lol", "", 2)
    }


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c"])
def test_lm16_a_record_ends_at_a_line_feed_alone(write, separator):
    """JSON forbids the last three inside a string unless they are escaped, so that they are escaped there."""
    rows = [written_row(7, f"first{separator}second", 1.0), written_row(8, "ok", 0.0)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    assert separator < " " or separator in lines[0]
    for end in ("\n", "\r\n"):
        path = write("a/samples_t_2026-11-30T01-15-25.614686.jsonl", end.join(lines) + end)
        samples, _ = only([path])
        assert [(s.item_id, s.answer) for s in samples] == [("t:7", f"first{separator}second"), ("t:8", "ok")]


@pytest.mark.parametrize("between", ["\r", "\v", "\f", "\x1c", "\u0085", "\u2028"])
def test_lm16_nothing_but_a_line_feed_parts_two_records(write, between):
    """A reader with universal newlines would find two records at a carriage return."""
    path = write("a.jsonl", between.join(json.dumps({"item": name, "correct": 1}) for name in "ab") + "\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl:1: is no JSON"):
        list(read_rows(path))
    path = write("b.jsonl", '{"item": "a",\r"correct": 1}\r\n{"item": "b", "correct": 0}\n')
    assert [(line, row["item"]) for line, row in read_rows(path)] == [(1, "a"), (2, "b")]


def test_lm21_the_flag_of_a_greedy_choice_says_nothing_of_right_and_wrong(samples_file):
    """Greedy is what the model would have written by itself; right is the likeliest of the choices."""
    row = chosen_row(3, [-2.64, -2.39, -2.27, -4.64], 2)
    assert {flag for ((_, flag),) in row["resps"]} == {"False"}
    (sample,), _ = only([samples_file("a", "t", [row])])
    assert json.loads(sample.answer)["gold"] == 2
    assert [(s.value, s.error_class) for s in sample.scores if s.metric == "acc"] == [(1.0, None)]


def test_lm17_one_documents_number_on_another_document_is_never_paired(samples_file):
    """lm-eval's `--samples` with an unsorted list numbers documents wrongly; the hashes tell."""
    right = only([samples_file("a", "t", [written_row(n, "x", 1.0) for n in (2, 5, 9)])])[0]
    swapped = [written_row(n, "x", 1.0, doc_hash=f"d{m}", prompt_hash=f"p{m}") for n, m in ((5, 2), (2, 5), (9, 9))]
    wrong = only([samples_file("b", "t", swapped)])[0]
    hashes = [{s.item_id: (s.item_hash, s.request_hash) for s in samples} for samples in (right, wrong)]
    assert {item for item in hashes[0] if hashes[0][item] == hashes[1][item]} == {"t:9"}
