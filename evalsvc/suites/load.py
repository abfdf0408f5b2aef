"""From what an experiment file says of a suite to the suite."""

from pathlib import Path

from evalsvc.errors import ConfigError
from evalsvc.suites.base import Suite
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.formats.validate import kind_of
from evalsvc.suites.lmeval import LmEvalSuite
from evalsvc.suites.own import PromptSuite
from evalsvc.suites.spec import SuiteSpec
from evalsvc.suites.task_questions import Asking
from evalsvc.suites.toolcall import ToolCallSuite


def load_suite(spec: SuiteSpec, base_dir: Path, template: str | None = None, *, allow_code: bool = False) -> Suite:
    """The suite, its files read and checked.

    Args:
        spec: What the experiment file says.
        base_dir: Folder that relative paths start from: the experiment file's.
        template: The model's chat template, where it is known before anything is loaded.
        allow_code: Whether Python that a user's task files name, and commands of case files, may run.

    Raises:
        ConfigError: A file is missing or wrong; names it and the line.
        CapabilityError: A task needs what this version does not serve.
    """
    if spec.kind == "lmeval":
        asking = Asking(
            num_fewshot=spec.num_fewshot,
            chat=spec.apply_chat_template,
            multiturn=spec.fewshot_as_multiturn,
            system=spec.system_instruction,
            draws=spec.prefix_draws,
        )
        return LmEvalSuite(
            spec.name,
            spec.tasks,
            base_dir=base_dir,
            limit=spec.limit,
            asking=asking,
            allow_code=allow_code,
            data_files=spec.data_files,
        )
    path = base_dir / (spec.cases or "")
    if spec.kind == "toolcall":
        return ToolCallSuite(spec.name, path, spec.limit, spec.levels, form=spec.format, template=template)
    if spec.kind == "prompts":
        return PromptSuite(spec.name, path, spec.limit, spec.levels, allow_code=allow_code)
    return FormatSuite(spec.name, path, spec.limit, levels=spec.levels, allow_code=allow_code)


def case_suite(name: str, path: Path, *, form: str = "auto", allow_code: bool = False) -> Suite:
    """The suite of a case file alone, of the kind that its first case shows.

    Args:
        name: The suite's name.
        path: The case file.
        form: Of tool calls, how they are written.
        allow_code: Whether commands of cases may run.

    Raises:
        ConfigError: The file is wrong, or has no tool calls and a form is named.
    """
    kind = kind_of(path)
    named = form if kind == "toolcall" else "auto"
    if form not in ("auto", "native", named):
        raise ConfigError(f"{path}: format {form!r} says how tool calls are written, and its cases have none")
    spec = SuiteSpec(name=name, kind=kind, cases=path.name, format=named)
    return load_suite(spec, path.parent, allow_code=allow_code)
