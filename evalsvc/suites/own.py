"""Own prompts: judged where something can be verified of an answer, else only compared between arms."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from evalsvc.engine.requests import Answer
from evalsvc.suites.base import Item, Score
from evalsvc.suites.formats.case import FormatSuite, Verifiable


class OwnCase(Verifiable):
    """A prompt, or messages for the model's chat template; `check` and `constraints` as in a format case, or neither.

    Nothing ends an answer but the model and `max_tokens` where nothing is said.
    """

    stop: list[str] = Field(default=[])
    max_tokens: int = Field(default=256, ge=1)


class PromptSuite(FormatSuite):
    """Prompts of one file. Those with something to verify are scored as format cases are; others have no metric."""

    scoring_version = f"prompts-1/{FormatSuite.scoring_version}"

    def __init__(
        self,
        name: str,
        path: Path,
        limit: int | None = None,
        levels: Sequence[str] | None = None,
        *,
        allow_code: bool = False,
    ) -> None:
        super().__init__(name, path, limit, OwnCase, levels, allow_code=allow_code)

    def _item(self, case: Verifiable) -> Item:
        item = super()._item(case)
        return item if case.verified else replace(item, metric="")

    def score(self, item: Item, answers: Sequence[Answer]) -> list[Score]:
        """As of a format case; nothing of a prompt without anything to verify."""
        return super().score(item, answers) if item.metric else []
