"""Format cases: what a case file says, and the scores of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field, model_validator

from evalsvc.engine.requests import Answer
from evalsvc.errors import ConfigError
from evalsvc.suites.base import Item, Score
from evalsvc.suites.cases import CaseSuite
from evalsvc.suites.formats import code, documents, language, lengths, marks, tables, wording
from evalsvc.suites.formats.base import Constraint, named
from evalsvc.suites.formats.check import Check, errors_of
from evalsvc.suites.formats.command import files_hash, refused_by
from evalsvc.suites.prompts import Case, answer_text

AnyConstraint: TypeAlias = Annotated[
    documents.Json
    | documents.Yaml
    | documents.Xml
    | tables.Csv
    | tables.MarkdownTable
    | code.Code
    | lengths.Words
    | lengths.Sentences
    | lengths.Characters
    | lengths.Lines
    | lengths.Paragraphs
    | lengths.ParagraphStart
    | lengths.StopWords
    | marks.Bullets
    | marks.NumberedList
    | marks.Highlights
    | marks.Sections
    | marks.Placeholders
    | marks.Title
    | marks.Quoted
    | marks.Postscript
    | marks.TwoResponses
    | wording.Include
    | wording.Exclude
    | wording.Frequency
    | wording.Letter
    | wording.NoCommas
    | wording.Choice
    | wording.Pattern
    | wording.StartsWith
    | wording.EndsWith
    | wording.Repeats
    | wording.StopsAt
    | wording.NothingAfter
    | language.Language
    | language.Casing
    | language.CapitalWords,
    Field(discriminator="kind"),
]


class Verifiable(Case):
    """A case whose answer may have a form.

    Attributes:
        check: A form and the one right content.
        constraints: What can be verified, each on its own.
        example: A right answer, which `suite validate` scores; no score depends on it.
    """

    check: Check | None = None
    constraints: list[AnyConstraint] = Field(default=[])
    example: str | None = None

    @property
    def verified(self) -> bool:
        """Whether there is anything to verify."""
        return self.check is not None or bool(self.constraints)


class FormatCase(Verifiable):
    """A case whose answer has a form: a `check`, `constraints`, or both."""

    @model_validator(mode="after")
    def _something_to_verify(self) -> "FormatCase":
        if not self.verified:
            raise ValueError("has `constraints` or a `check`")
        return self


@dataclass(frozen=True)
class Followed:
    """How an answer follows its case; one entry a constraint, the check first.

    Attributes:
        strict: Error class of each in the answer as it is, None where it is met.
        loose: The same, met where any of `variants` meets it.
    """

    strict: tuple[str | None, ...]
    loose: tuple[str | None, ...]


def variants(text: str) -> list[str]:
    """The answer, and as IFEval's loose reading takes it too: without first line, last line or both, and asterisks."""
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return list(dict.fromkeys([*cut, *(part.replace("*", "") for part in cut)]))


def followed(text: str, case: Verifiable, commanded: str | None = None) -> Followed:
    """Each constraint's error class, strictly and loosely. A blank answer breaks all.

    Args:
        text: The answer.
        case: What it has to follow.
        commanded: Error class that the check's own program gave, which reads the answer once, as it is.
    """
    read = variants(text)
    strict = tuple(error for error in _errors(text, case, commanded))
    others = [_errors(other, case, commanded) for other in read[1:]] if any(strict) else []
    loose = tuple(
        error if error is None or all(other[i] is not None for other in others) else None
        for i, error in enumerate(strict)
    )
    return Followed(strict, loose)


def _errors(text: str, case: Verifiable, commanded: str | None) -> list[str | None]:
    return [*_check_error(text, case.check, commanded), *(_error(text, constraint) for constraint in case.constraints)]


def _check_error(text: str, check: Check | None, commanded: str | None) -> list[str | None]:
    if check is None:
        return []
    return [errors_of(text, check)[1] if check.command is None else commanded]


def _error(text: str, constraint: Constraint) -> str | None:
    if not text.strip():
        return "empty"
    detail = constraint.broken(text)
    return None if detail is None else named(constraint, detail)


class FormatSuite(CaseSuite[Verifiable]):
    """Cases of one file.

    Metrics: `correct` (every constraint met), `constraints` (share of them met), both again read loosely
    (`correct_loose`, `constraints_loose`), and for a `check` that is no command `valid` (its form alone). The error
    class is the first constraint's that broke.
    """

    scoring_version = "formats-2"

    def __init__(
        self,
        name: str,
        path: Path,
        limit: int | None = None,
        kind: type[Verifiable] = FormatCase,
        levels: Sequence[str] | None = None,
        *,
        allow_code: bool = False,
    ) -> None:
        self._allow_code, self._folder = allow_code, path.resolve().parent
        super().__init__(name, path, kind, limit, levels)
        commands = [item.payload.check.command for item in self.items() if _commanded(item.payload)]
        if commands:
            self.scoring_version = f"{self.scoring_version}/command-2-{files_hash(commands, self._folder)}"

    def check(self, case: Verifiable, where: str) -> None:
        """Refuses a constraint that cannot be verified, and a command that may not run."""
        if _commanded(case) and not self._allow_code:
            raise ConfigError(f"{where}: check.command is refused: commands of case files run only with --allow-code")
        if case.check is not None:
            case.check.ready(f"{where}: check")
        for number, constraint in enumerate(case.constraints):
            constraint.ready(f"{where}: constraints.{number}.{constraint.kind}")

    def score(self, item: Item, answers: Sequence[Answer]) -> list[Score]:
        """All metrics, `correct` first. Any text has scores, however hostile.

        Raises:
            EvidenceError: A check's own program did not say whether the answer is right.
        """
        case, text = item.payload, answer_text(answers)
        check: Check | None = case.check
        commanded = None
        if check is not None and check.command is not None:
            wrong = refused_by(check.command, text, self._folder, check.timeout_s)
            commanded = "command" if wrong else None
        found = followed(text, case, commanded)
        scores = [*_metrics("", found.strict), *_metrics("_loose", found.loose)]
        if check is not None and check.command is None:
            form, _ = errors_of(text, check)
            scores.append(Score(metric="valid", value=float(form is None), error_class=form))
        return scores


def _commanded(case: Verifiable) -> bool:
    return case.check is not None and case.check.command is not None


def _metrics(reading: str, errors: Sequence[str | None]) -> list[Score]:
    first = next((error for error in errors if error is not None), None)
    share = sum(error is None for error in errors) / len(errors)
    return [
        Score(metric=f"correct{reading}", value=float(first is None), error_class=first),
        Score(metric=f"constraints{reading}", value=share),
    ]
