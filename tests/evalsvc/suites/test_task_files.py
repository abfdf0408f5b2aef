"""Task files that cannot be used as written, and tasks that this version does not serve."""

import json

import pytest

from evalsvc.errors import CapabilityError, ConfigError, EvalsvcError
from evalsvc.suites.lmeval import LmEvalSuite

pytest.importorskip("lm_eval")

TASK = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: d.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "Say {{a}}:"
doc_to_target: a
generation_kwargs: {until: ["\\n"], max_gen_toks: 4}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "d.jsonl").write_text(json.dumps({"a": "x", "c": ["x", "y"]}) + "\n")
    (tmp_path / "mine.yaml").write_text(TASK)
    return tmp_path


def refused(folder, text=None, kind: type[EvalsvcError] = ConfigError, spec="mine.yaml"):
    if text is not None:
        (folder / "mine.yaml").write_text(text)
    with pytest.raises(kind) as caught:
        LmEvalSuite("t", [spec], base_dir=folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_task_used_here_loads(folder):
    assert len(LmEvalSuite("t", ["mine.yaml"], base_dir=folder).items()) == 1


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ("doc_to_target: a", "doc_to_target: !function utils.target", 7, "!function is refused"),
        ("doc_to_target: a", "doc_to_target: !!python/name:os.system a", 7, "is refused"),
        ("doc_to_target: a", "doc_to_targets: a", 7, "knows no key 'doc_to_targets'"),
        ("doc_to_target: a", "task: other", 7, "the key 'task' is repeated"),
        ("doc_to_target: a", "doc_to_target: [a", 8, "broken YAML"),
        ("test: d.jsonl", "test: gone.jsonl", 3, "no data file"),
        ("test: d.jsonl", "test: 'gone*.jsonl'", 3, "no data file"),
        ("test: d.jsonl", "test: 5", 3, "names files"),
    ],
)
def test_a_broken_task_file_is_named_with_its_line(folder, old, new, line, complaint):
    message = refused(folder, TASK.replace(old, new))
    assert message.startswith(f"{folder / 'mine.yaml'}:{line}: ")
    assert complaint in message


def test_what_a_base_says_wrongly_is_named_in_the_base(folder):
    (folder / "_base.yaml").write_text(TASK.replace("doc_to_target: a", "doc_to_target: !function utils.x"))
    assert f"{folder / '_base.yaml'}:7: " in refused(folder, "include: _base.yaml\ntask: other\n")
    assert "gone.yaml" in refused(folder, "include: gone.yaml\ntask: other\n")
    assert "cycle" in refused(folder, "include: mine.yaml\ntask: other\n")


def test_files_that_are_not_tasks(folder):
    assert "needs the key `task`" in refused(folder, "dataset_path: json\n")
    assert "mapping" in refused(folder, "- 1\n")
    assert "no such task file" in refused(folder, spec="gone.yaml")
    (folder / "empty").mkdir()
    assert "holds no task files" in refused(folder, spec="empty")


@pytest.mark.parametrize(
    ("docs", "complaint"), [("{\n", ":1: not a JSON object"), ("[1]\n", ":1: a document"), ("", "no documents")]
)
def test_broken_documents_are_named_with_their_line(folder, docs, complaint):
    (folder / "d.jsonl").write_text(docs)
    message = refused(folder)
    assert message.startswith(str(folder / "d.jsonl"))
    assert complaint in message


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("test_split: test", "test_split: exam", "lm-eval cannot load the task"),
        ("{{a}}", "{{a", "lm-eval cannot"),
        ("output_type: generate_until", "output_type: poem", "poem"),
        ("metric: exact_match", "metric: charm", "charm"),
        ("max_gen_toks: 4", "max_gen_toks: many", "max_gen_toks"),
        ('until: ["\\n"]', 'until: [""]', "until"),
    ],
)
def test_what_lm_eval_refuses_is_one_sentence_with_the_file(folder, old, new, complaint):
    message = refused(folder, TASK.replace(old, new), kind=EvalsvcError)
    assert complaint in message
    assert "mine" in message


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("max_gen_toks: 4", "max_gen_toks: 4, do_sample: true", "do_sample: True is not served"),
        ("max_gen_toks: 4", "max_gen_toks: 4, temperature: 0.7", "temperature: 0.7 is not served"),
        ("max_gen_toks: 4", "max_gen_toks: 4, num_beams: 4", "num_beams: 4 is not served"),
        ("metric: exact_match", "metric: bleu", "right or wrong"),
        ("test_split: test", "test_split: test\nrepeats: 4", "repeats"),
        ("test_split: test", "test_split: test\nunsafe_code: true", "unsafe_code"),
        ("task: mine", "group: mine", "groups of tasks"),
        ("task: mine", "task: mine\nclass: x", "written in Python"),
    ],
)
def test_what_is_not_served_is_refused_by_name(folder, old, new, complaint):
    assert complaint in refused(folder, TASK.replace(old, new), kind=CapabilityError)


@pytest.mark.parametrize("output", ["loglikelihood", "loglikelihood_rolling"])
def test_other_output_types_are_refused_by_name(folder, output):
    text = TASK.replace("generate_until", output).replace("metric: exact_match", "metric: perplexity")
    text = text.replace('generation_kwargs: {until: ["\\n"], max_gen_toks: 4}\n', "").replace(
        "aggregation: mean", "aggregation: perplexity"
    )
    assert f"output_type {output} is not served" in refused(folder, text, kind=CapabilityError)


def test_one_task_named_twice_is_refused(folder):
    with pytest.raises(ConfigError, match="named twice"):
        LmEvalSuite("t", ["mine.yaml", "mine.yaml"], base_dir=folder)


def test_loading_leaves_progress_bars_and_network_settings_alone(folder):
    import datasets
    from datasets import config as settings

    before = (datasets.are_progress_bars_disabled(), settings.HF_HUB_OFFLINE)
    LmEvalSuite("t", ["mine.yaml"], base_dir=folder)
    assert (datasets.are_progress_bars_disabled(), settings.HF_HUB_OFFLINE) == before


def test_data_that_would_have_to_be_fetched_are_said_to_be_missing(folder, monkeypatch):
    from datasets import config as settings
    from huggingface_hub import constants

    monkeypatch.setattr(settings, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", folder / "cache")
    text = TASK.replace("dataset_path: json", "dataset_path: nobody/nothing").replace("dataset_kwargs", "metadata")
    assert "cannot be reached over the network" in refused(folder, text)


@pytest.mark.slow
def test_a_name_that_lm_eval_does_not_know_gets_those_near_it(tmp_path):
    """Slow: the index of all its tasks takes some ten seconds."""
    assert "near it: arc_easy" in refused(tmp_path, spec="arc_eazy")
