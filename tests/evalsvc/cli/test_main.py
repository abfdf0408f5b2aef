"""Errors become one sentence and an exit code; help is quick."""

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

import evalsvc as evalsvc_package
from evalsvc.cli import ls
from evalsvc.cli.main import build_app
from evalsvc.errors import CapabilityError, EvidenceError

# typer, and what its versions bring with them.
LIGHT = {"evalsvc", "typer", "click", "rich", "shellingham", "annotated_doc", "typing_extensions", "pygments"}


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nbefore = set(sys.modules)\nimport evalsvc.cli.main as m\n"
        "try:\n    m.main(['--help'])\n"
        "except SystemExit as e:\n"
        "    print(e.code, *{n.partition('.')[0] for n in set(sys.modules) - before} - sys.stdlib_module_names)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    code, *loaded = found.stdout.splitlines()[-1].split()
    assert code == "0" and set(loaded) <= LIGHT
    for command in ("gate", "compare", "verdict", "ls", "show", "dashboard"):
        assert f"  {command} " in found.stdout


@pytest.mark.parametrize("group", [(), ("jobs",), ("db",), ("suite",), ("baseline",), ("model",)])
def test_what_a_command_is_for_is_read_whole_in_a_terminal_of_80_columns(evalsvc, group):
    code, out, _ = evalsvc(*group, "--help")
    listed = out.partition("Commands:")[2]
    assert code == 0 and listed.strip() and "..." not in listed


@pytest.mark.parametrize("command", ["gate", "compare", "verdict", "ls", "show", "dashboard"])
def test_every_command_has_help(evalsvc, command):
    code, out, _ = evalsvc(command, "--help")
    assert code == 0 and "Usage: evalsvc" in out and "--json" in out


@pytest.mark.parametrize("group", [(), ("jobs",)])
def test_nothing_typed_is_answered_with_the_help(evalsvc, group):
    code, out, err = evalsvc(*group)
    assert code == 2 and "Usage: evalsvc" in out + err and "Commands:" in out + err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "evalsvc: no such command 'nonsense'; did you mean 'noise'?"),
        (["jobs", "nope"], "evalsvc jobs: no such command 'nope'; `evalsvc jobs --help` says what it takes"),
        (["gate"], "evalsvc gate: missing option '--policy'; `evalsvc gate --help` says what it takes"),
        (["run", "--new=3"], "evalsvc run: option '--new' does not take a value; `evalsvc run --help` says"),
        (["db", "check", "--db"], "evalsvc db: option '--db' requires an argument; `evalsvc db --help` says"),
        (["verdict", "--lost", "x"], "evalsvc verdict: invalid value for '--lost': "),
    ],
)
def test_a_usage_error_is_a_sentence_that_names_the_command_and_where_to_look(evalsvc, arguments, says):
    code, out, err = evalsvc(*arguments)
    assert (code, out) == (2, "") and err.startswith(f"error: {says}") and err.count("\n") == 1


def test_an_option_that_no_command_has_is_such_a_sentence_for_every_command(evalsvc):
    from typer.main import get_command

    for path, _ in leaves(get_command(build_app())):
        code, out, err = evalsvc(*path, "--nonsense")
        name = f"evalsvc {' '.join(path)}"
        assert (code, out, err.count("\n")) == (2, "", 1), path
        assert err.startswith(f"error: {name}: no such option: --nonsense") and f"`{name} --help` says" in err


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (CapabilityError("not\nserved"), 2, "error: not served\n"),
        (EvidenceError("nothing"), 4, "error: nothing\n"),
        (
            RuntimeError("odd \x1b[31m"),
            2,
            "error: unexpected RuntimeError: odd \\x1b[31m; --debug shows the traceback\n",
        ),
        (AssertionError(), 2, "error: unexpected AssertionError"),
        (OSError(36, "too long", "a/b"), 2, "error: a/b: too long; name another path, or mend that\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_every_error_is_one_sentence(evalsvc, monkeypatch, raised, code, says):
    def fail(db="", json=False):
        raise raised

    monkeypatch.setattr(ls, "ls", fail)
    found, out, err = evalsvc("ls")
    assert (found, out) == (code, "") and err.startswith(says) and err.count("\n") == 1


def test_sigterm_is_as_ctrl_c_with_a_code_of_its_own_and_leaves_no_handler(evalsvc, evalsvc_json, monkeypatch):
    def terminated(db="", json=False):
        assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        monkeypatch.setattr(ls, "ls", terminated)
        assert evalsvc("ls") == (143, "", "error: interrupted by SIGTERM\n")
        code, document = evalsvc_json("ls")
        assert code == document["exit_code"] == 143 and document["error"]["kind"] == "Interrupted"
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_debug_shows_the_traceback(evalsvc, monkeypatch):
    def fail():
        raise RuntimeError("odd")

    monkeypatch.setattr(ls, "ls", fail)
    code, _, err = evalsvc("ls", "--debug")
    assert code == 2 and "Traceback" in err and err.endswith("error: unexpected RuntimeError: odd\n")


@pytest.mark.parametrize("arguments", [["show", "1:base"], ["show", "1:base", "--json"], ["ls"]])
def test_a_reader_that_leaves_is_neither_a_traceback_nor_a_regression(db, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "evalsvc.cli.main", *arguments, "--db", str(db)]
        found = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (found.returncode, found.stderr) == (2, "")


def test_notes_that_nobody_reads_end_no_run():
    """As in `evalsvc run FILE 2>&1 | head`."""
    code = (
        "from evalsvc.cli.progress import TerminalReporter\n"
        "with TerminalReporter() as reporter:\n    reporter.note('one')\n    reporter.note('two')\n"
        "print('done')\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    try:
        found = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writer, text=True, check=False
        )
    finally:
        os.close(writer)
    assert found.stdout == "done\n" and found.returncode != 1


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (["ls", "--db", "/no/such.sqlite"], "StoreError", 2),
        (["history", "nobody", "--baseline", "base"], "EvidenceError", 4),
        (["ls", "--nonsense"], "UsageError", 2),
        (["run", "/no/such.yaml"], "ConfigError", 2),
        (["jobs", "ls", "--jobs", "/no/such.yaml"], "ConfigError", 2),
    ],
)
def test_an_error_under_json_is_a_document_too(evalsvc, db, arguments, kind, code):
    arguments = [*arguments, *(["--db", db] if "--db" not in arguments and arguments[0] == "history" else [])]
    found, out, err = evalsvc(*arguments, "--json")
    document = json.loads(out)
    assert (found, document["exit_code"], document["schema"]) == (code, code, "evalsvc.error/1")
    assert document["error"]["kind"] == kind and document["error"]["message"] and err


def test_shell_completion_knows_the_commands():
    env = os.environ | {"_EVALSVC_COMPLETE": "complete_bash", "COMP_WORDS": "evalsvc run-", "COMP_CWORD": "1"}
    code = "import evalsvc.cli.main as m; m.main([])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (found.returncode, found.stdout.split()) == (0, ["run-due"])


def leaves(command, path=()):
    """Every command that does something, with the words that call it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    else:
        for name, one in inner.items():
            yield from leaves(one, (*path, name))


def test_the_version_is_said_by_the_option_that_everybody_tries(evalsvc):
    code, out, err = evalsvc("--version")
    assert (code, out, err) == (0, f"evalsvc {evalsvc_package.__version__}\n", "")


def test_no_example_is_wider_than_a_terminal():
    """Click prints them as they stand, two further in than the docstring has them."""
    from typer.main import get_command

    for path, command in leaves(get_command(build_app())):
        assert max(map(len, (command.help or "").split("\b")[-1].splitlines())) <= 78, path


def test_the_help_of_every_command_has_an_example_that_its_own_parser_takes():
    from typer.main import get_command

    for path, command in leaves(get_command(build_app())):
        said = (command.help or "").replace("\\\n", " ")  # a line may go on in the next
        assert "Example" in said, path
        lines = [line.strip() for line in said.splitlines() if line.strip().startswith("evalsvc ")]
        own = [line for line in lines if line.split()[1 : 1 + len(path)] == list(path)]
        assert own, path
        for line in own:
            words = shlex.split(line.partition(" && ")[0], comments=True)[1 + len(path) :]
            command.make_context("evalsvc", words, resilient_parsing=False)
