"""What the README, the pages of docs/, the Makefile and the shipped files say is what the code does."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from typer.main import get_command

from evalsvc import errors
from evalsvc.cli.main import COMMANDS, build_app
from evalsvc.experiment import ArmConfig, Experiment, load_experiment
from evalsvc.jobs.spec import ALL_EVENTS, Command, Email, Job, JobsFile, Slack, Webhook, load_jobs
from evalsvc.limits import Margin, MoreSampling, Standing
from evalsvc.modes import MODES
from evalsvc.policy import Policy, load_policy
from evalsvc.suites.formats import FormatSuite
from evalsvc.suites.formats.case import AnyConstraint
from evalsvc.suites.toolcall import ToolCallSuite

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
README = PAGES[ROOT / "README.md"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
DEMO = ROOT / "data" / "experiments" / "demo.yaml"


def page(name: str) -> str:
    return PAGES[ROOT / "docs" / f"{name}.md"]


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_every_command_stands_in_the_readme_and_every_one_there_exists() -> None:
    named = set(re.findall(r"evalsvc ([a-z]+(?:-[a-z]+)*)\b(?! run `)", README))
    assert set(COMMANDS) - {"model"} <= named
    assert named & set(COMMANDS) >= {"run", "gate", "compare", "verdict", "ls", "show", "dashboard"}


def commands(command: Any) -> Iterator[Any]:
    """A command and all under it."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from commands(inner)


def test_every_option_in_the_docs_exists() -> None:
    known = {option for command in commands(get_command(build_app())) for p in command.params for option in p.opts}
    lines = [line for text in PAGES.values() for line in text.splitlines()]
    ours = "\n".join(line for line in lines if not line.startswith("python -m"))  # lm-eval's own options
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ours)) <= known | {"--help"}


def test_exit_codes_of_the_readme_are_those_of_the_code() -> None:
    table = dict(re.findall(r"^\| (\d) \| (\w+)", README, flags=re.MULTILINE))
    assert table == {
        str(errors.EXIT_PASS): "PASS",
        str(errors.EXIT_REGRESSED): "REGRESSED",
        str(errors.EXIT_ERROR): "usage",
        str(errors.EXIT_INCONCLUSIVE): "INCONCLUSIVE",
        str(errors.EXIT_INVALID): "INVALID",
    }


@pytest.mark.parametrize("key", [*Experiment.model_fields, *ArmConfig.model_fields])
def test_every_key_of_an_experiment_stands_in_the_docs(key: str) -> None:
    assert re.search(rf"\b{key}\b", page("experiment"))


@pytest.mark.parametrize(
    "key", [*Policy.model_fields, *Margin.model_fields, *Standing.model_fields, *MoreSampling.model_fields]
)
def test_every_key_of_a_policy_stands_in_the_docs(key: str) -> None:
    assert re.search(rf"\b{key}\b", page("policy"))


JOB_MODELS = (JobsFile, Job, Webhook, Slack, Email, Command)


@pytest.mark.parametrize("key", sorted({key for model in JOB_MODELS for key in model.model_fields}))
def test_every_key_of_a_jobs_file_stands_in_the_docs(key: str) -> None:
    assert re.search(rf"\b{key}\b", page("schedule"))


def test_every_event_stands_in_the_docs() -> None:
    assert all(f"`{event}`" in page("schedule") for event in ALL_EVENTS)


def test_the_jobs_file_in_the_docs_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(fenced(page("schedule"), "yaml")[0])
    read = load_jobs(path)
    assert set(Job.model_fields) == read.jobs["nightly"].model_fields_set, "it shows every key"
    assert {channel.kind for channel in read.channels.values()} == {"slack", "webhook", "email", "command"}


def test_the_policy_in_the_docs_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(fenced(page("policy"), "yaml")[0])
    policy = load_policy(path)
    assert set(Policy.model_fields) == policy.model_fields_set, "it shows every key"


def test_the_experiment_in_the_docs_can_be_read(tmp_path: Path) -> None:
    example = fenced(page("experiment"), "yaml")[0]
    path = tmp_path / "example.yaml"
    path.write_text(example)
    read, shipped = load_experiment(path), load_experiment(DEMO)
    assert read.suites == shipped.suites and read.baseline == shipped.baseline
    for name, arm in read.arms.items():
        assert arm.plan == shipped.arms[name].plan


def test_the_cases_in_the_docs_can_be_read(tmp_path: Path) -> None:
    tool, form = fenced(page("suites"), "json")[0].strip().splitlines()
    for kind, line in ((ToolCallSuite, tool), (FormatSuite, form)):
        path = tmp_path / f"{kind.__name__}.jsonl"
        path.write_text(line + "\n")
        (item,) = kind("own", path).items()
        assert item.id == json.loads(line)["id"]


def test_the_makefile_gates_the_arms_of_the_demo() -> None:
    experiment = load_experiment(DEMO)
    listed = re.search(r"^CANDIDATES := (.*)$", MAKEFILE, flags=re.MULTILINE)
    baseline = re.search(r"^BASELINE := (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert listed and listed[1].split() == experiment.arms_in_order[1:]
    assert baseline and baseline[1] == experiment.baseline


def test_every_kind_of_constraint_and_every_failure_mode_stands_in_the_docs() -> None:
    told = page("suites").split("- **Constraints**")[1].split("\n- **Few-shot")[0]
    for kind in get_args(get_args(AnyConstraint)[0]):
        (name,) = get_args(kind.model_fields["kind"].annotation)
        assert f"`{name}`" in told or f'"{name}"' in told
    for mode in MODES:
        assert mode.replace("_", " ") in " ".join(told.split())


def pins(name: str) -> dict[str, str]:
    """Package to version, as a file of constraints names them."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and line[0] != "#"]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in (line.split("==") for line in lines)}


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-gpu.txt"])
def test_the_pinned_versions_lie_in_the_ranges_that_the_package_asks(name: str) -> None:
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    normal = pins(name)
    for requirement in map(Requirement, asked):
        package = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if package != "evalsvc":
            assert requirement.specifier.contains(normal[package]), requirement


def test_the_two_sets_of_pins_differ_only_where_the_docs_say_so() -> None:
    usual, gpu = pins("constraints.txt"), pins("constraints-gpu.txt")
    differing = {name for name, version in usual.items() if gpu.get(name) != version}
    rows = re.findall(r"^\| ([a-z_]+) \| (\d[\w.]*) \| (\d[\w.]*) \|$", page("engine"), flags=re.MULTILINE)
    told = {name.replace("_", "-"): (left, right) for name, left, right in rows}
    assert told == {name: (usual[name], gpu[name]) for name in differing}
    added = set(gpu) - set(usual) - {"httpcore", "httpx", "setuptools"}  # what the older hub and torch ask for
    assert added and all(name.startswith(("cuda-", "nvidia-")) for name in added)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pictures_and_linked_files_are_there(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[path]):
        if target.startswith("https://"):
            continue
        file, _, section = target.partition("#")
        assert (path.parent / file).is_file(), target
        if section:
            headings = re.findall(r"^#+ (.+)$", (path.parent / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert section in {heading.lower().replace(" ", "-") for heading in headings}, target


def test_the_readme_names_every_page_by_its_title() -> None:
    for path, text in PAGES.items():
        title = text.split("\n", 1)[0].removeprefix("# ")
        assert text == README or f"| [{title}](docs/{path.name}) |" in README


def test_the_verdicts_in_the_readme_are_those_of_the_whole_output() -> None:
    table = next(
        block for block in re.findall(r"```\n(.*?)```", README, flags=re.DOTALL) if block.startswith("arm / suite")
    )
    assert table in page("demo")


def test_shipped_yaml_holds_no_tag_that_could_run_code() -> None:
    for path in (ROOT / "data").rglob("*.yaml"):
        yaml.safe_load(path.read_text(encoding="utf-8"))
