"""`evalsvc suite import ifeval`: a case file, and what was left out and why."""

import json

import pytest

from evalsvc.cli.main import main
from evalsvc.suites.formats import FormatSuite


def test_what_is_mapped_is_written_and_the_rest_is_named(tmp_path, capsys):
    rows = [
        {"key": 1, "prompt": "No commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {"key": 2, "prompt": "Rhyme.", "instruction_id_list": ["poetry:rhyme"], "kwargs": [{}]},
        {
            "key": 3,
            "prompt": "Write at least 400 words.",
            "instruction_id_list": ["length_constraints:number_words"],
            "kwargs": [{"relation": "at least", "num_words": 336}],
        },
    ]
    source, out = tmp_path / "set.jsonl", tmp_path / "cases.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SystemExit) as left:
        main(["suite", "import", "ifeval", str(source), "--out", str(out)])
    assert left.value.code == 0
    assert [item.id for item in FormatSuite("f", out).items()] == ["ifeval-1", "ifeval-3"]
    said = " ".join(capsys.readouterr().err.split())
    assert "left out 2: the instruction poetry:rhyme is not known" in said
    assert "3: the prompt says 400 words, the constraint at least 336" in said
    assert "2 cases written" in said


def test_another_file_is_one_sentence_and_exit_2(tmp_path, capsys):
    source = tmp_path / "set.jsonl"
    source.write_text('{"a": 1}\n')
    with pytest.raises(SystemExit) as left:
        main(["suite", "import", "ifeval", str(source), "--out", str(tmp_path / "cases.jsonl")])
    assert left.value.code == 2
    assert "not a prompt of IFEval" in capsys.readouterr().err
    assert not (tmp_path / "cases.jsonl").exists()
