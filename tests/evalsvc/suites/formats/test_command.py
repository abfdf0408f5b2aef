"""A check that is a user's own program: its exit status decides, and whatever else it does is no wrong answer."""

import json
import sys

import pytest

from evalsvc.errors import ConfigError, EvidenceError
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.formats.command import refused_by
from evalsvc.suites.formats.validate import validate
from evalsvc.suites.own import PromptSuite

PROGRAM = "import sys; text = sys.stdin.buffer.read(); sys.exit({})"


def suite_of(folder, *, kind=PromptSuite, allow_code=True, **check):
    path = folder / "own.jsonl"
    check = {"command": [sys.executable, "check.py"], **check}
    path.write_text(json.dumps({"id": "a", "prompt": "Say yes.", "check": check}) + "\n")
    return kind("own", path, allow_code=allow_code)


def scored(suite, text, answer):
    scores = suite.score(suite.items()[0], [answer(text)])
    return {s.metric: s.value for s in scores}, scores[0].error_class


@pytest.mark.parametrize("kind", [PromptSuite, FormatSuite])
def test_the_exit_status_is_the_score_and_the_answer_is_read_once(tmp_path, answer, kind):
    (tmp_path / "check.py").write_text("open('calls', 'a').write('x')\n" + PROGRAM.format("0 if b'yes' in text else 1"))
    suite = suite_of(tmp_path, kind=kind)
    found, error = scored(suite, "yes", answer)
    assert (found["correct"], found["correct_loose"], error) == (1, 1, None) and "valid" not in found
    found, error = scored(suite, "*no*\nno", answer)
    assert (found["correct"], found["correct_loose"], error) == (0, 0, "command")
    assert (tmp_path / "calls").read_text() == "xx", "the loose reading asks no second time"


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("2", "exit status 2"),
        ("__import__('os').abort()", "signal 6"),
        ("__import__('os').kill(__import__('os').getpid(), 9)", "signal 9"),
        ("text.nothing", "exit status 1: AttributeError: .*; a crash is no verdict"),
        ("__import__('nowhere')", "ModuleNotFoundError"),
        ("0 if", "SyntaxError"),
    ],
)
def test_a_program_that_fails_is_an_error_and_no_wrong_answer(tmp_path, answer, status, says):
    """An exception that nothing caught ends Python with status 1, which would call the answer wrong."""
    (tmp_path / "check.py").write_text(PROGRAM.format(status))
    with pytest.raises(EvidenceError, match=says):
        scored(suite_of(tmp_path), "yes", answer)


def test_a_program_that_is_not_there_or_never_ends_is_an_error(tmp_path, answer):
    """What it started never ends either, and holds its output: who waited for that would wait for ever."""
    with pytest.raises(EvidenceError, match="cannot be started"):
        scored(suite_of(tmp_path, command=["./nowhere"]), "yes", answer)
    (tmp_path / "check.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while 1: pass'])"
    )
    with pytest.raises(EvidenceError, match=r"ran for more than 0\.5 s"):
        scored(suite_of(tmp_path, timeout_s=0.5), "yes", answer)


@pytest.mark.parametrize(
    ("complaint", "crash"),
    [
        ("/usr/bin/python3: No module named nowhere", True),
        ("ReferenceError: x is not defined\n    at a.js:1\n\nNode.js v22.1.0", True),
        ('Exception in thread "main" java.lang.Error', True),
        ("check.rb:3:in `<main>': oops (RuntimeError)", True),
        ("wrong: expected a Traceback", False),
        ("the answer raises SyntaxError: invalid", False),
        ("", False),
    ],
)
def test_status_1_is_wrong_unless_an_interpreter_says_that_it_gave_up(tmp_path, complaint, crash):
    command = [sys.executable, "-c", f"import sys; sys.stderr.write({complaint!r}); sys.exit(1)"]
    if crash:
        with pytest.raises(EvidenceError, match="a crash is no verdict"):
            refused_by(command, "yes", tmp_path, 10)
    else:
        assert refused_by(command, "yes", tmp_path, 10)


@pytest.mark.parametrize("text", ["$(touch pwned); `touch pwned`", "\x00\ud800\u2028", "x" * 3_000_000])
def test_hostile_answers_are_input_and_nothing_else(tmp_path, text):
    """A program that reads nothing, and one that reads all of it."""
    assert not refused_by([sys.executable, "-c", PROGRAM.format("0 if text else 1")], text, tmp_path, 10)
    assert refused_by([sys.executable, "-c", "raise SystemExit(1)"], text, tmp_path, 10)
    assert list(tmp_path.iterdir()) == []


def test_without_permission_nothing_runs_and_the_file_is_refused(tmp_path):
    (tmp_path / "check.py").write_text("open('ran', 'w')")
    with pytest.raises(ConfigError, match=r"own\.jsonl:1: check\.command is refused: .* --allow-code"):
        suite_of(tmp_path, allow_code=False)
    assert validate(tmp_path / "own.jsonl").unproven == 1 and not (tmp_path / "ran").exists()


def test_an_edited_program_is_another_scoring_version(tmp_path):
    (tmp_path / "check.py").write_text("1")
    versions = [suite_of(tmp_path).scoring_version, suite_of(tmp_path).scoring_version]
    (tmp_path / "check.py").write_text("2")
    versions.append(suite_of(tmp_path).scoring_version)
    assert versions[0] == versions[1] != versions[2] and PromptSuite.scoring_version in versions[0]


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ({"command": []}, "command"),
        ({"command": [" "]}, "names no program"),
        ({"command": "ls"}, "list"),
        ({"command": ["x"], "regex": "y"}, "exactly one"),
        ({"command": ["x"], "timeout_s": 0}, "timeout_s"),
        ({"command": None, "regex": "y", "timeout_s": 3}, "goes with `command`"),
    ],
)
def test_what_is_no_command_is_refused(tmp_path, check, says):
    with pytest.raises(ConfigError, match=says):
        suite_of(tmp_path, **check)
