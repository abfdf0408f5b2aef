"""Task files that cannot be used as written, and tasks that this version does not serve."""

import json

import pytest

from evalsvc.errors import CapabilityError, ConfigError, EvalsvcError, EvidenceError
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


def refused(folder, text=None, kind: type[EvalsvcError] = ConfigError, spec="mine.yaml", **options):
    if text is not None:
        (folder / "mine.yaml").write_text(text)
    with pytest.raises(kind) as caught:
        LmEvalSuite("t", [spec], base_dir=folder, **options)
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
        ("doc_to_target: a", "doc_to_target: a\nmetadata: {version: 2024-13-45}", 8, "'2024-13-45' is no timestamp"),
        ("doc_to_target: a", "doc_to_target: a\nnum_fewshot: !!int few", 8, "'few' is no int"),
        ("doc_to_target: a", "doc_to_target: a\nmetadata: {<<: 3}", 8, "for merging"),
        ("doc_to_target: a", "doc_to_target: a\nmetadata: !!omap [a: 1, b]", 8, "broken YAML"),
        ("doc_to_target: a", "doc_to_target: a\nmetadata: &m {version: *m}", 8, "inside what it stands for"),
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
    assert "nested too deep" in refused(folder, f"{TASK}metadata: {'[' * 3000}{']' * 3000}\n")


@pytest.mark.parametrize(
    ("docs", "complaint"), [("{\n", ":1: not a JSON object"), ("[1]\n", ":1: a document"), ("", "no documents")]
)
def test_broken_documents_are_named_with_their_line(folder, docs, complaint):
    (folder / "d.jsonl").write_text(docs)
    message = refused(folder)
    assert message.startswith(str(folder / "d.jsonl"))
    assert complaint in message


def test_documents_in_another_encoding_are_named(folder):
    (folder / "d.jsonl").write_bytes('{"a": "café"}\n'.encode("latin-1"))
    assert refused(folder) == f"{folder / 'd.jsonl'}: is not UTF-8 text; save it as UTF-8"


def test_what_keeps_documents_from_being_read_is_said_and_not_that_something_did(folder):
    (folder / "d.jsonl").write_text('{"a": "x", "a": "y"}\n')
    assert "specified twice" in refused(folder)


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
        ("max_gen_toks: 4", "max_gen_toks: 4, num_beams: 4", "num_beams: 4 is not served"),
        ("max_gen_toks: 4", "max_gen_toks: 4, typical_p: 0.5", "typical_p: 0.5 is not served"),
        ("metric: exact_match", "metric: bleu", "no metric of it is a number"),
        ("test_split: test", "test_split: test\nunsafe_code: true", "unsafe_code"),
        ("doc_to_target: a", "doc_to_target: a\ndoc_to_image: a", "doc_to_image"),
    ],
)
def test_what_is_not_served_is_refused_by_name(folder, old, new, complaint):
    assert complaint in refused(folder, TASK.replace(old, new), kind=CapabilityError)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("max_gen_toks: 4", "max_gen_toks: 4, do_sample: true", "do_sample: true needs a temperature above 0"),
        ("max_gen_toks: 4", "max_gen_toks: 4, temperature: 0.5, top_p: high", "top_p: 'high' is not a number"),
        ("max_gen_toks: 4", "max_gen_toks: 0", "max_gen_toks: 0 is not a number of tokens"),
        ("test_split: test", "test_split: test\nrepeats: 0", "repeats 0 is not a number from 1"),
    ],
)
def test_settings_that_cannot_be_used_are_named(folder, old, new, complaint):
    assert complaint in refused(folder, TASK.replace(old, new))


GROUP = """\
group: both
task: [mine, other]
aggregate_metric_list: [{metric: exact_match, weight_by_size: false}]
"""


def test_a_group_is_its_tasks_and_lm_evals_mean_of_them(folder, answer):
    (folder / "d.jsonl").write_text("".join(json.dumps({"a": a}) + "\n" for a in "xyz"))
    (folder / "e.jsonl").write_text(json.dumps({"a": "x"}) + "\n")
    (folder / "other.yaml").write_text(
        "include: mine.yaml\ntask: other\ndataset_kwargs: {data_files: {test: e.jsonl}}\n"
    )
    (folder / "group.yaml").write_text(GROUP)
    for spec in ("group.yaml", "."):
        suite = LmEvalSuite("t", [spec], base_dir=folder)
        assert [(i.id, i.family, i.cluster) for i in suite.items()] == [
            ("mine:0", "mine", ""),
            ("mine:1", "mine", ""),
            ("mine:2", "mine", ""),
            ("other:0", "other", ""),
        ]
        scores = {item.id: suite.score(item, [answer("x")]) for item in suite.items()}
        assert suite.aggregate(scores) == {
            "mine": {"exact_match,none": 1 / 3},
            "other": {"exact_match,none": 1.0},
            "both": {"exact_match,none": 2 / 3},
        }
    (folder / "unrelated.yaml").write_text("name: an experiment\n")
    (folder / "broken.yaml").write_text("a: [\n")
    (folder / "group.yaml").write_text(GROUP.replace("false", "true"))
    suite = LmEvalSuite("t", ["group.yaml"], base_dir=folder)
    assert suite.aggregate(scores)["both"] == {"exact_match,none": 0.5}


def test_tasks_of_a_large_group_are_clusters_and_a_small_ones_are_not(folder):
    names = [f"subject{n}" for n in range(6)]
    for name in names:
        (folder / f"{name}.yaml").write_text(f"include: mine.yaml\ntask: {name}\n")
    (folder / "g.yaml").write_text(f"group: g\ntask: {json.dumps(names)}\n")
    assert {i.cluster for i in LmEvalSuite("t", ["g.yaml"], base_dir=folder).items()} == set(names)
    (folder / "g.yaml").write_text(f"group: g\ntask: {json.dumps(names[1:])}\n")
    assert {i.cluster for i in LmEvalSuite("t", ["g.yaml"], base_dir=folder).items()} == {""}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("group: g\n", "needs a name and, as `task`"),
        ("group: g\ntask: []\n", "needs a name and, as `task`"),
        ("group: g\ntask: [{task: mine, num_fewshot: 2}]\n", "tasks written inside a group"),
        ("group: g\ntask: [mine]\nnum_fewshot: 2\n", "takes no key 'num_fewshot'"),
        ("group: g\ntask: [g]\n", "contains itself"),
        ("group: g\ntask: [mine]\naggregate_metric_list: [{metric: a, aggregation: odd}]\n", "odd"),
    ],
)
def test_a_group_that_cannot_be_used_is_named(folder, text, complaint):
    (folder / "g.yaml").write_text(text)
    message = refused(folder, spec="g.yaml")
    assert message.startswith(str(folder / "g.yaml")) and complaint in message


CODED = TASK.replace("doc_to_target: a", "doc_to_target: !function code.target")


def test_code_runs_where_it_is_allowed_and_nowhere_else(folder):
    (folder / "code.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\ntarget = len\n")
    assert "--allow-code" in refused(folder, CODED)
    assert "--allow-code" in refused(folder, "class: !function code.Task\ntask: mine\n")
    assert "--allow-code" in refused(folder, "class: code.Task\ntask: mine\n")
    assert not (folder / "ran").exists()
    (item,) = (
        LmEvalSuite("t", ["mine.yaml"], base_dir=folder, allow_code=True).items() if rewrite(folder, CODED) else ()
    )
    assert (folder / "ran").exists()
    assert item.payload.task.doc_to_target(item.payload.doc) == 2


def rewrite(folder, text):
    return (folder / "mine.yaml").write_text(text)


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("", "has no function 'target'"),
        ("1 / 0", "ZeroDivisionError"),
        ("target = (", "SyntaxError"),
        (None, "Import"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_code_that_cannot_be_loaded_is_named_with_its_line(folder, code, complaint):
    if code is not None:
        (folder / "code.py").write_text(code)
    name = "code" if code is not None else "nowhere_at_all"
    message = refused(folder, CODED.replace("code.target", f"{name}.target"), allow_code=True)
    assert message.startswith(f"{folder / 'mine.yaml'}:7: ") and complaint in message


@pytest.mark.parametrize("key", ["doc_to_target", "doc_to_text", "process_results", "process_docs"])
def test_code_that_leaves_the_process_is_an_error_and_no_exit_code(folder, key):
    """`sys.exit()` in a task's function would otherwise end a gate with 0."""
    (folder / "code.py").write_text("import sys\ndef leave(*_):\n    sys.exit()\n")
    kept = "".join(line for line in TASK.splitlines(keepends=True) if not line.startswith(f"{key}:"))
    assert "SystemExit" in refused(folder, f"{kept}{key}: !function code.leave\n", allow_code=True)


def test_code_that_leaves_the_process_while_it_scores_makes_an_error_of_the_item(folder, answer):
    (folder / "code.py").write_text(
        "import sys\ndef score(doc, results):\n    return {'exact_match': 0.0} if results == [''] else sys.exit()\n"
    )
    rewrite(folder, f"{TASK}process_results: !function code.score\n")
    suite = LmEvalSuite("t", ["mine.yaml"], base_dir=folder, allow_code=True)
    (item,) = suite.items()
    with pytest.raises(EvidenceError, match="cannot score item mine:0: SystemExit"):
        suite.score(item, [answer("x")])


def test_a_metric_of_choices_does_not_hinder_a_task_without_any(folder, ranking):
    """lm-eval leaves `acc_mutual_info` out where nothing is chosen."""
    text = TASK.replace("generate_until", "loglikelihood").replace("metric: exact_match", "metric: acc")
    rewrite(folder, text.replace("true}]", "true}, {metric: acc_mutual_info}]"))
    suite = LmEvalSuite("t", ["mine.yaml"], base_dir=folder)
    (item,) = suite.items()
    assert [(s.metric, s.value, s.error_class) for s in suite.score(item, [ranking(-1.0)])] == [
        ("acc", 0.0, "wrong_choice")
    ]


def test_other_tags_are_refused_even_where_code_is_allowed(folder):
    text = TASK.replace("doc_to_target: a", "doc_to_target: !!python/name:os.system a")
    assert "is refused" in refused(folder, text, allow_code=True)


def test_a_score_hangs_on_the_functions_that_make_it(folder):
    """Their source is in the item's hash, and not where they lie in memory."""
    text = TASK.replace("doc_to_target: a", "doc_to_target: a\nprocess_results: !function code.score")
    hashes = []
    for body in ("1.0", "1.0", "0.0"):
        rewrite(folder, text)
        (folder / "code.py").write_text(f"def score(doc, results):\n    return {{'exact_match': {body}}}\n")
        hashes.append(LmEvalSuite("t", ["mine.yaml"], base_dir=folder, allow_code=True).items()[0].sha256)
    assert hashes[0] == hashes[1] != hashes[2]


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


# -- by name -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shipped(folder, monkeypatch, tmp_path, tmp_path_factory):
    """Tasks, a tag and a group that lm-eval knows by name; their code is lm-eval's own."""
    from datasets import config as settings
    from lm_eval.tasks import TaskManager

    from evalsvc.suites import task_build

    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", tmp_path / "cache")
    known = tmp_path_factory.mktemp("known")
    data = json.dumps({"data_files": {"test": str(folder / "d.jsonl")}})
    (known / "code.py").write_text("def target(doc):\n    return doc['a'] + '!'\n")
    for name, tag in (("first", "both_tagged"), ("second", "both_tagged"), ("third", "other_tag")):
        text = TASK.replace("task: mine", f"task: {name}\ntag: [{tag}]").replace("{data_files: {test: d.jsonl}}", data)
        (known / f"{name}.yaml").write_text(text.replace("doc_to_target: a", "doc_to_target: !function code.target"))
    (known / "group.yaml").write_text(GROUP.replace("[mine, other]", "[both_tagged, third]"))
    manager = TaskManager(include_path=str(known), include_defaults=False)
    monkeypatch.setattr(task_build, "_manager", lambda include_defaults: manager)
    return folder


@pytest.mark.parametrize(
    ("named", "tasks"),
    [
        (["first"], ["first"]),
        (["both_tagged"], ["first", "second"]),
        (["both"], ["first", "second", "third"]),
        (["other_tag", "first"], ["third", "first"]),
    ],
)
def test_names_of_tasks_tags_and_groups_stand_for_their_tasks(shipped, answer, named, tasks):
    suite = LmEvalSuite("t", named)
    assert [item.id for item in suite.items()] == [f"{task}:0" for task in tasks]
    scores = {item.id: suite.score(item, [answer("x!")]) for item in suite.items()}
    assert all(score.value == 1 for each in scores.values() for score in each), "the code of the task was run"
    assert set(suite.aggregate(scores)) == {*tasks, *(["both"] if named == ["both"] else [])}


def test_one_task_in_two_names_is_refused(shipped):
    for named in (["both", "first"], ["first", "both_tagged"]):
        with pytest.raises(ConfigError, match="'first' is named twice"):
            LmEvalSuite("t", named)


def test_a_group_of_yours_may_name_what_lm_eval_knows(shipped):
    (shipped / "g.yaml").write_text("group: g\ntask: [mine, both_tagged, third]\n")
    items = LmEvalSuite("t", ["g.yaml"], base_dir=shipped).items()
    assert [item.family for item in items] == ["mine", "first", "second", "third"]


def test_a_task_written_in_python_is_asked_as_it_says(folder):
    (folder / "code.py").write_text(
        "from lm_eval.api.task import ConfigurableTask\n"
        "class Mine(ConfigurableTask):\n"
        "    def __init__(self, config=None):\n"
        "        super().__init__(config={k: v for k, v in config.items() if k != 'class'})\n"
        "    def doc_to_text(self, doc, doc_to_text=None):\n"
        "        return f'Loudly: {doc[\"a\"]}'\n"
    )
    rewrite(folder, TASK + "class: !function code.Mine\n")
    suite = LmEvalSuite("t", ["mine.yaml"], base_dir=folder, allow_code=True)
    assert suite.next_request(suite.items()[0], ()).prompt == "Loudly: x"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("return [I('generate_until'), I('loglikelihood')]", "asks 2 times (generate_until, loglikelihood)"),
        ("return [I('generate_until'), I('generate_until')]", "asks 2 times (generate_until)"),
    ],
)
def test_a_document_that_asks_in_several_ways_is_refused_by_name(folder, body, complaint):
    (folder / "code.py").write_text(
        "from lm_eval.api.task import ConfigurableTask\n"
        "from lm_eval.api.instance import Instance\n"
        "class Mine(ConfigurableTask):\n"
        "    def __init__(self, config=None):\n"
        "        super().__init__(config={k: v for k, v in config.items() if k != 'class'})\n"
        "    def construct_requests(self, doc, ctx, metadata=None, **_):\n"
        "        def I(kind):\n"
        "            return Instance(kind, doc, (ctx, 'x'), 0, metadata)\n"
        f"        {body}\n"
    )
    text = TASK + "class: !function code.Mine\n"
    message = refused(folder, text, kind=CapabilityError, allow_code=True)
    assert message.startswith("task 'mine': document 0") and complaint in message


def test_local_files_stand_in_for_the_hubs(shipped, tmp_path):
    """In the task by itself, in its tag and in its group; the next suite sees the hub's again."""
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"a": a}) + "\n" for a in "pqr"))
    mine = {"first": {"test": "mine.jsonl"}}
    for named, others in (("first", 0), ("both_tagged", 1), ("both", 2)):
        suite = LmEvalSuite("t", [named], base_dir=tmp_path, data_files=mine)
        found = [item.payload.doc["a"] for item in suite.items() if item.family == "first"]
        assert found == ["p", "q", "r"] and len(suite.items()) == 3 + others
    assert [item.payload.doc["a"] for item in LmEvalSuite("t", ["first"]).items()] == ["x"]


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"first": {"test": "gone.jsonl"}}, "data_files of 'first': no data file"),
        ({"first": {"test": "d.poem"}}, "all of one kind: .jsonl"),
        ({"first": {}}, "all of one kind: .jsonl"),
        ({"fist": {"test": "d.jsonl"}}, "'fist', which is no task of the suite"),
        ({"third": {"test": "d.jsonl"}}, "'third', which is no task of the suite"),
    ],
)
def test_local_files_that_cannot_be_used_are_named(shipped, files, complaint):
    assert complaint in refused(shipped, spec="first", data_files=files)
