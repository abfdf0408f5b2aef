"""What a CI job without torch does: decide, list, show and draw from a database that a run has written."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE_ONLY = ("torch", "triton", "transformers", "tokenizers", "lm_eval", "datasets", "safetensors", "gguf", "regex")
BLOCKED = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {ENGINE_ONLY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition('.')[0])
sys.meta_path.insert(0, Absent())
"""
PAGE = """
from streamlit.testing.v1 import AppTest
from evalsvc.dashboards.launch import APP
sys.argv = ['app.py']
from evalsvc.dashboards.pages import PAGES
app = AppTest.from_file(str(APP), default_timeout=120).run()
places = {found.get("url_pathname"): place for place, found in app._registered_pages.items()}
for page in PAGES:
    if page.path in places:
        app._page_hash = places[page.path]
    app.run()
    assert not app.exception, (page.path, app.exception[0].message)
    assert not app.error, (page.path, app.error[0].value)
assert len(places) >= len(PAGES) - 1, places
"""


@pytest.fixture
def db(six_arms, tmp_path) -> str:
    shutil.copy(six_arms[1], tmp_path / "runs.sqlite")
    return str(tmp_path / "runs.sqlite")


def without(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process in which nothing of the extra `engine` can be imported."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return without("from evalsvc.cli.main import main\nmain(sys.argv[1:])\n", *arguments)


def test_the_block_blocks():
    assert "No module named 'torch'" in without("import evalsvc.engine.engine").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "key"),
    [
        (["gate", "--policy", "POLICY", "--baseline", "bf16", "--candidate", "damaged"], 3, "decisions"),
        (["compare", "1:bf16", "1:mixed"], 0, "rows"),
        (["ls"], 0, "runs"),
        (["show", "1:mixed"], 0, "arm"),
    ],
)
def test_commands_answer_from_the_database(db, tmp_path, arguments, code, key):
    (tmp_path / "p.yaml").write_text("name: p\nmargin_points: 5\n")
    done = command(*(str(tmp_path / "p.yaml") if a == "POLICY" else a for a in arguments), "--db", db, "--json")
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)[key]


def test_a_verdict_from_counts():
    assert command("verdict", "--lost", "0", "--gained", "0", "--items", "300", "--margin", "2").returncode == 0


def test_evidence_of_others_is_imported(tmp_path):
    (tmp_path / "arms.csv").write_text("item,a,b\n" + "".join(f"{i},1,{i % 2}\n" for i in range(40)))
    asked = [
        "import",
        "n",
        "--table",
        str(tmp_path / "arms.csv"),
        "--baseline",
        "a",
        "--db",
        str(tmp_path / "r.sqlite"),
    ]
    done = command(*asked, "--json")
    assert done.returncode == 0, done.stderr
    assert [arm["samples"] for arm in json.loads(done.stdout)["arms"]] == [40, 40]


def test_every_page_is_drawn(db):
    done = without(PAGE, EVALSVC_DB=db)
    assert done.returncode == 0, done.stderr


def test_a_run_says_what_is_missing(write_experiment, tmp_path):
    suites = [{"name": "tools", "kind": "toolcall", "cases": "tools.jsonl"}]
    path = write_experiment(tmp_path / "experiment", suites=suites)
    done = command("run", str(path), "--db", str(tmp_path / "r.sqlite"))
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and said.startswith("error: ")
    assert said.endswith(" is not installed; a run needs `pip install 'evalsvc[engine]'`")


# Rooms of the extra; all else is core.
EXTRA = (
    "engine/",
    "kernels/",
    "evalsvc/harness.py",
    "evalsvc/targets/embedded.py",
    "evalsvc/suites/lmeval.py",
    "evalsvc/suites/task_",
)
DISTRIBUTIONS = {**metadata.packages_distributions(), "pydantic_core": ["pydantic"]}  # which pins it


def core_files() -> list[Path]:
    files = [*ROOT.joinpath("evalsvc").rglob("*.py"), *ROOT.joinpath("dashboards").rglob("*.py")]
    light = [ROOT / "engine" / name for name in ("precision.py", "requests.py", "__init__.py")]
    return [p for p in files if not p.relative_to(ROOT).as_posix().startswith(EXTRA)] + light


def declared() -> set[str]:
    """Names of the distributions that the core installs."""
    requires = metadata.requires("evalsvc") or []
    return {re.split(r"[^\w.-]", r)[0].lower() for r in requires if "extra ==" not in r}


@pytest.mark.parametrize("path", core_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_core_imports_only_what_it_declares(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for top in {name.partition(".")[0] for name in names} - {"evalsvc"} - set(sys.stdlib_module_names):
            of = {d.lower() for d in DISTRIBUTIONS.get(top, [top])}
            assert of & declared() or guarded(path, top), f"{path}:{node.lineno}: {top} is no dependency of the core"


def guarded(path: Path, name: str) -> bool:
    """Whether a file imports a module of the extra only inside functions, where its absence is answered."""
    top = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
    known = (("patterns.py", "regex"), ("language.py", "langdetect"), ("diagnosis.py", "torch"), ("bulk.py", "psycopg"))
    return (path.name, name) in known and not any(found.partition(".")[0] == name for found in names)
