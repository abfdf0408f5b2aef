"""An experiment with everything that its file names, read and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalsvc.errors import ConfigError
from evalsvc.experiment import Experiment, experiment_hash, load_experiment
from evalsvc.questions import Question, hash_of, questions
from evalsvc.suites.load import load_suite
from evalsvc.templates import known_template


@dataclass(frozen=True)
class Prepared:
    """An experiment with everything that its file names, read and checked; nothing heavy is loaded."""

    path: Path
    experiment: Experiment
    base_dir: Path
    asked: list[Question]
    hash: str
    passages: list[str]
    allow_code: bool = False
    template: str | None = None

    @property
    def own_prompts(self) -> list[Question]:
        """What the suites of kind `prompts` ask."""
        names = {suite.name for suite in self.experiment.suites if suite.kind == "prompts"}
        return [question for question in self.asked if question.suite.name in names]

    def hash_under(self, versions: Mapping[str, str]) -> str:
        """The experiment's hash if suites were scored under these versions, the others under their own."""
        asked = [
            {
                "key": list(q.key),
                "chance": q.item.chance,
                "scoring": versions.get(q.suite.name, q.suite.scoring_version),
            }
            for q in self.asked
        ]
        return experiment_hash(self.experiment, asked, self.passages)

    @property
    def versions(self) -> dict[str, Any]:
        """What a history names when it changed: of each suite a hash of all that it asks and its scoring version."""
        asked: dict[str, list[list[Any]]] = {}
        for question in self.asked:
            asked.setdefault(question.suite.name, []).append([*question.key, question.item.chance])
        scoring = {question.suite.name: question.suite.scoring_version for question in self.asked}
        suites = {name: {"items": hash_of(sorted(keys)), "scoring": scoring[name]} for name, keys in asked.items()}
        return {"suites": suites, "template": None if self.template is None else hash_of(self.template)}

    def items_by_suite(self) -> dict[str, int]:
        """Items of each suite that carry a verdict, each item once; suites without any are left out."""
        items = {(q.suite.name, q.item.id) for q in self.asked if q.item.metric}
        counts = {s.name: sum(name == s.name for name, _ in items) for s in self.experiment.suites}
        return {name: count for name, count in counts.items() if count}


def prepare(path: Path, *, allow_code: bool = False) -> Prepared:
    """Reads an experiment and its suites.

    Args:
        path: The experiment file.
        allow_code: Whether Python that a user's task files name may run.

    Raises:
        ConfigError: A file that cannot be used; names it and the line.
    """
    experiment = load_experiment(path)
    base_dir = path.parent
    for name, arm in experiment.arms.items():
        for key, file in (("calibration", arm.calibration), ("scales", arm.scales)):
            if file is None or (base_dir / file).is_file() or (key == "scales" and (base_dir / file).is_dir()):
                continue
            raise ConfigError(f"{path}: arm {name}: {key} {base_dir / file} does not exist")
    passages = [] if experiment.probe is None else _passages(base_dir / experiment.probe)
    template = known_template(experiment.model, base_dir)
    if template is None and (base_dir / Path(experiment.model).expanduser()).is_dir():
        chatting = next((spec.name for spec in experiment.suites if spec.apply_chat_template), None)
        if chatting is not None:
            raise ConfigError(
                f"{path}: suite {chatting} says apply_chat_template, and model {experiment.model} has no chat template"
            )
    suites = [load_suite(spec, base_dir, template, allow_code=allow_code) for spec in experiment.suites]
    asked = questions(suites, experiment.throughs)
    prepared = Prepared(path, experiment, base_dir, asked, "", passages, allow_code, template)
    return replace(prepared, hash=prepared.hash_under({}))


def _passages(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"probe {path}: cannot be read ({error})") from None
    passages = [part.strip() for part in text.split("\n\n") if part.strip()]
    if not passages:
        raise ConfigError(f"probe {path}: holds no text")
    return passages
