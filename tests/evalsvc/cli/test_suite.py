"""`evalsvc suite`: public sets become case files, and case files are looked over."""

import json
from pathlib import Path

import pytest

from evalsvc.cli.main import main

BFCL = {
    "id": "a",
    "question": [[{"role": "user", "content": "Wait five minutes."}]],
    "function": [
        {
            "name": "set.timer",
            "description": "waits",
            "parameters": {"type": "dict", "properties": {"minutes": {"type": "float"}}, "required": ["minutes"]},
        }
    ],
}
IFEVAL = {
    "key": 1,
    "prompt": "No commas, please.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{}],
}


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(["suite", *map(str, arguments)])
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


@pytest.fixture
def bfcl(tmp_path: Path) -> Path:
    (tmp_path / "possible_answer").mkdir()
    path = tmp_path / "BFCL_v4_simple.json"
    path.write_text(json.dumps(BFCL) + "\n")
    answer = {"id": "a", "ground_truth": [{"set.timer": {"minutes": [5]}}]}
    (tmp_path / "possible_answer" / path.name).write_text(json.dumps(answer) + "\n")
    return path


def test_an_imported_set_is_valid_in_every_format(capsys, bfcl, tmp_path):
    out = tmp_path / "cases.jsonl"
    assert run(capsys, "import", "bfcl", bfcl, "--out", out) == (0, "", f"1 cases written to {out}\n")
    assert json.loads(out.read_text())["expect"] == {
        "calls": [{"name": "set.timer", "arguments": {"minutes": {"number": 5}}}]
    }
    code, said, _ = run(capsys, "validate", out, "--format", "all", "--json")
    found = json.loads(said)
    assert code == 0 and found["problems"] == [] and found["cases"] == 1
    assert {"hermes", "kimi_k2", "harmony"} <= set(found["formats"])


def test_faults_of_the_set_are_named_when_it_is_imported_and_are_no_problems(capsys, bfcl, tmp_path):
    answers = tmp_path / "possible_answer" / bfcl.name
    answers.write_text(json.dumps({"id": "a", "ground_truth": [{"set.timer": {"minutes": ["5"]}}]}) + "\n")
    out = tmp_path / "cases.jsonl"
    code, _, said = run(capsys, "import", "bfcl", bfcl, "--out", out)
    assert code == 0 and "kept and named as `faults` of their cases: a\n" in said
    code, said, err = run(capsys, "validate", out)
    assert (code, err) == (0, "")
    assert said.splitlines() == [
        "known: a: set.timer: the schema refuses the right arguments: minutes: '5' is not of type 'number'",
        "1 case of kind toolcall, 1 known fault, 0 problems",
    ]


def test_a_file_of_the_set_itself_is_no_case_file_and_says_how_it_becomes_one(capsys, bfcl):
    code, _, said = run(capsys, "validate", bfcl)
    assert code == 2 and said == (
        f"error: {bfcl}: is a file of BFCL; `evalsvc suite import bfcl {bfcl} --out FILE` makes cases of it\n"
    )


def test_ifeval_is_imported_too(capsys, tmp_path):
    path, out = tmp_path / "input.jsonl", tmp_path / "cases.jsonl"
    path.write_text(json.dumps(IFEVAL) + "\n" + json.dumps(IFEVAL | {"key": 2, "instruction_id_list": ["new:one"]}))
    code, _, said = run(capsys, "import", "ifeval", path, "--out", out)
    assert code == 0 and said.endswith(f"1 cases written to {out}\n")
    assert "left out 2: the instruction new:one is not known" in said
    assert json.loads(out.read_text())["id"] == "ifeval-1"


def test_problems_end_with_exit_code_2_and_stand_on_lines_of_their_own(capsys, bfcl, tmp_path):
    out = tmp_path / "cases.jsonl"
    run(capsys, "import", "bfcl", bfcl, "--out", out)
    one = json.loads(out.read_text())
    out.write_text("".join(json.dumps(one | {"id": name}) + "\n" for name in ("a", "b\x1b[31m")))
    code, said, err = run(capsys, "validate", out)
    assert code == 2
    assert said.splitlines()[0] == "a: asks the same as b\\x1b[31m"
    assert err == f"error: {out}: 1 problem in 2 cases\n"


def test_prompts_of_ones_own_are_called_so_and_what_could_not_be_tried_is_said(capsys, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": "a", "prompt": "p"}\n{"id": "b", "prompt": "q", "check": {"regex": "x"}}\n')
    code, said, _ = run(capsys, "validate", path)
    assert code == 0 and said.splitlines() == [
        "2 cases of kind prompts, 0 problems",
        "without a right answer to try (`example` names one): 2",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("import", "bfcl", "{absent}", "--out", "{out}"), "no such file or folder; give a BFCL_v4_\\*.json"),
        (("import", "ifeval", "{absent}", "--out", "{out}"), "no such file or folder; give IFEval's input_data.jsonl"),
        (("import", "ifeval", "{cases}", "--out", "{out}"), "is a case file, and a file of a public set is wanted"),
        (("import", "bfcl", "{cases}", "--out", "{out}"), "is a case file, and a file of a public set is wanted"),
        (
            ("validate", "{cases}", "--format", "hermes"),
            "says how tool calls are written, and .* has none; leave it out",
        ),
        (("import", "bfcl", "{bfcl}", "--out", "{absent}/x"), "no file can be written there"),
        (("validate", "{absent}"), "cannot be read"),
        (("validate", "{absent}", "--format", "xml"), "not a format; known: all, harmony"),
        (("import", "mmlu", "{bfcl}", "--out", "{out}"), "mmlu: is no set that can be imported; known: bfcl, ifeval"),
    ],
)
def test_a_mistake_is_a_sentence(capsys, bfcl, tmp_path, arguments, complaint):
    import re

    cases = tmp_path / "c.jsonl"
    cases.write_text('{"id": "a", "prompt": "p"}\n')
    places = {"cases": cases, "absent": tmp_path / "absent", "out": tmp_path / "out", "bfcl": bfcl}
    code, said, err = run(capsys, *(argument.format(**places) for argument in arguments))
    assert code == 2 and said == ""
    assert re.search(complaint, err)
