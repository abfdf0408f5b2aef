"""From what an experiment file says of a suite to the suite."""

from pathlib import Path

from evalsvc.suites.base import Suite
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.lmeval import LmEvalSuite
from evalsvc.suites.spec import SuiteSpec
from evalsvc.suites.toolcall import ToolCallSuite


def load_suite(spec: SuiteSpec, base_dir: Path, template: str | None = None) -> Suite:
    """The suite, its files read and checked.

    Args:
        spec: What the experiment file says.
        base_dir: Folder that relative paths start from: the experiment file's.
        template: The model's chat template, where it is known before anything is loaded.

    Raises:
        ConfigError: A file is missing or wrong; names it and the line.
        CapabilityError: A task needs what this version does not serve.
    """
    if spec.kind == "lmeval":
        return LmEvalSuite(spec.name, spec.tasks, base_dir=base_dir, limit=spec.limit)
    path = base_dir / (spec.cases or "")
    if spec.kind == "toolcall":
        return ToolCallSuite(spec.name, path, spec.limit, form=spec.format, template=template)
    return FormatSuite(spec.name, path, spec.limit)
