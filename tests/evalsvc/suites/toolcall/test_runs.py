"""Tool calls through a chat template, from the experiment file to the stored scores."""

import json
import shutil
import sqlite3

import pytest

TEMPLATE = (
    "{% if tools %}{{ tools[0].function.name }} by <tool_call>;{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
)
CASE = {
    "id": "a",
    "messages": [{"role": "user", "content": "Wait."}],
    "tools": [{"name": "set_timer", "arguments": {"minutes": "integer"}}],
    "expect": {"calls": [{"name": "set_timer", "arguments": {"minutes": {"any": True}}}]},
    "max_tokens": 6,
}


@pytest.fixture
def written(tiny_model, write_experiment, tmp_path, monkeypatch):
    """An experiment over a copy of the tiny model that has a template."""
    monkeypatch.setenv("EVALSVC_CACHE", str(tmp_path / "cache"))
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    folder = tmp_path / "experiment"
    folder.mkdir()
    refrain = CASE | {"id": "b", "expect": {"no_call": True}}
    (folder / "calls.jsonl").write_text("".join(json.dumps(case) + "\n" for case in (CASE, refrain)))

    def write(**suite):
        return write_experiment(
            folder,
            model=str(tmp_path / "model"),
            arms={"bf16": {"plan": "w=bf16"}, "fp8": {"plan": "w=fp8"}},
            suites=[{"name": "calls", "kind": "toolcall", "cases": "calls.jsonl", **suite}],
            aa=None,
            probe=None,
        )

    return write


@pytest.mark.parametrize(("suite", "form"), [({}, "hermes"), ({"format": "glm"}, "glm")])
def test_a_run_stores_what_was_asked_and_which_format_was_read(written, execute_file, tmp_path, suite, form):
    database = tmp_path / "runs.sqlite"
    execute_file(written(**suite), database)
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT i.item_id, s.status, s.prompt, s.prompt_tokens, c.metric, c.filter, c.value, c.error_class"
            " FROM samples s JOIN items i ON i.id = s.item_pk JOIN scores c ON c.sample_id = s.id"
        ).fetchall()
    connection.close()
    assert {row[1] for row in rows} == {"scored"}
    metrics = {row[4] for row in rows if row[0] == "a" and not row[4].startswith("failure.")}
    assert {row[5] for row in rows} == {form}
    assert metrics == {"correct", "correct_lenient", "triggered", "trigger_right", "function_right", "arguments_right"}
    correct = {(row[0], row[6], row[7]) for row in rows if row[4] == "correct"}
    assert correct == {("a", 0.0, "not_triggered"), ("b", 1.0, None)}, "six random bytes call nothing"
    assert {row[3] for row in rows} == {len("set_timer by <tool_call>;user:Wait.;")}, "tools were shown"
