"""Which room imports which: the rules under "Never", held over the sources themselves."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {"evalsvc": ROOT / "evalsvc", "evalsvc.engine": ROOT / "engine", "evalsvc.kernels": ROOT / "kernels"}
ROOMS["evalsvc.dashboards"] = ROOT / "dashboards"
HEAVY = {"torch", "triton", "transformers", "datasets", "lm_eval", "safetensors", "gguf"}
LIGHT_ENGINE = {
    *("evalsvc.engine.precision", "evalsvc.engine.requests", "evalsvc.engine.sizes"),
    *(f"evalsvc.engine.checkpoint.{name}_config" for name in ("awq", "compressed", "gptq", "words")),
}


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in ROOMS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            found[name] = path
    return found


MODULES = modules()


def imports(name: str) -> set[str]:
    """Every module that a source file names in an import, at any depth, made absolute."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            whole = {f"{base}.{alias.name}" for alias in node.names}
            found |= {w if w in MODULES else base for w in whole}
    return found


def ours(name: str) -> set[str]:
    return {i for i in imports(name) if i == "evalsvc" or i.startswith("evalsvc.")} - {"evalsvc.errors"}


def within(name: str, *rooms: str) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def of(*rooms: str) -> list[str]:
    found = [name for name in MODULES if within(name, *rooms)]
    assert found, rooms
    return found


def test_the_walk_sees_all_rooms():
    assert {"evalsvc.errors", "evalsvc.engine.engine", "evalsvc.kernels.fp8", "evalsvc.verdict.rule"} <= set(MODULES)
    assert "evalsvc.engine.kv.pool" in imports("evalsvc.engine.kv.handoff")


@pytest.mark.parametrize("name", of("evalsvc.kernels"))
def test_kernels_import_nothing_of_ours(name):
    assert all(within(i, "evalsvc.kernels") for i in ours(name))


@pytest.mark.parametrize("name", of("evalsvc.engine"))
def test_the_engine_imports_only_kernels(name):
    assert all(within(i, "evalsvc.kernels", "evalsvc.engine") for i in ours(name))


@pytest.mark.parametrize("name", of("evalsvc.verdict"))
def test_verdicts_import_nothing_of_ours_and_neither_torch_nor_sqlalchemy(name):
    assert all(within(i, "evalsvc.verdict") for i in ours(name))
    assert not {i.partition(".")[0] for i in imports(name)} & (HEAVY | {"sqlalchemy"})


@pytest.mark.parametrize("name", of("evalsvc.store"))
def test_the_store_imports_neither_engine_nor_suites(name):
    assert not any(within(i, "evalsvc.engine", "evalsvc.kernels", "evalsvc.suites") for i in ours(name))


@pytest.mark.parametrize("name", of("evalsvc.suites", "evalsvc.targets"))
def test_suites_and_targets_do_not_know_each_other(name):
    other = "evalsvc.targets" if within(name, "evalsvc.suites") else "evalsvc.suites"
    assert not any(within(i, other) for i in ours(name))


@pytest.mark.parametrize("name", of("evalsvc.dashboards", "evalsvc.gate", "evalsvc.capacity"))
def test_dashboards_gate_and_capacity_never_reach_torch_or_the_engine(name):
    """Through any chain of our own modules, not only in their own lines."""
    seen, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module in seen or module not in MODULES or module in LIGHT_ENGINE:
            continue
        seen.add(module)
        assert not {i.partition(".")[0] for i in imports(module)} & HEAVY, module
        assert not within(module, "evalsvc.kernels"), (name, module)
        assert not (within(module, "evalsvc.engine") and module != "evalsvc.engine"), (name, module)
        waiting += sorted(ours(module))


@pytest.mark.parametrize("name", [n for n in MODULES if not within(n, "evalsvc.cli", "evalsvc.dashboards")])
def test_nothing_imports_the_command_line_or_the_dashboards(name):
    assert not any(within(i, "evalsvc.cli", "evalsvc.dashboards") for i in ours(name))


@pytest.mark.parametrize("name", sorted(LIGHT_ENGINE))
def test_plans_and_requests_are_free_of_torch(name):
    assert not {i.partition(".")[0] for i in imports(name)} & HEAVY
    assert ours(name) <= LIGHT_ENGINE


def test_transformers_looks_for_kernels_and_does_not_find_ours():
    """A top-level package `kernels` of ours would break model loading there."""
    code = (
        "import evalsvc.kernels.fp8, transformers.integrations.hub_kernels\n"
        "import importlib.util, pathlib\n"
        "spec = importlib.util.find_spec('kernels')\n"
        f"assert spec is None or not str(spec.origin).startswith({str(ROOT)!r}), spec"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")
