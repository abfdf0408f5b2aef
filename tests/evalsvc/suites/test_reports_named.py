"""Every fault that others reported of lm-eval tasks, tool calls, JSON Schema and IFEval is named by a test of it."""

import ast
import json
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
REPORTS = TESTS.parents[1] / "shared" / "reference" / "reports.jsonl"
AREAS = {"lm-eval", "tool-calls", "json-schema", "ifeval"}


def named():
    if not REPORTS.is_file():
        return [pytest.param("", marks=pytest.mark.skip(reason="no public list of reports beside the project"))]
    rows = [json.loads(line) for line in REPORTS.read_text(encoding="utf-8").split("\n") if line.strip()]
    return [row["id"] for row in rows if row["area"] in AREAS]


@pytest.fixture(scope="module")
def tests():
    """Names, documentation and parameters of all tests, in small letters, by name."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path != Path(__file__):
            module = ast.parse(path.read_text(encoding="utf-8"))
            about = f"{ast.get_docstring(module) or ''} ".lower()
            tables = [ast.unparse(node).lower() for node in module.body if isinstance(node, ast.Assign)]
            for node in module.body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    marks = " ".join(map(ast.unparse, node.decorator_list)).lower()
                    used = [table for table in tables if table.split(" = ")[0] in marks]
                    found[f"{path.name}::{node.name}"] = f"{about}{node.name} {marks} {' '.join(used)}"
    return found


def names(said, report):
    words = said.replace("_", " ").replace("'", " ").replace("(", " ").replace(")", " ").split()
    return report.lower() in words


@pytest.mark.parametrize("report", named())
def test_a_report_is_named_by_a_test_of_it(tests, report):
    assert [name for name, said in tests.items() if names(said, report)], f"no test says that it is of {report}"


def test_a_report_that_nobody_looked_at_would_be_seen(tests):
    assert len(tests) > 1_000 and not any(names(said, "LM99") for said in tests.values())
