"""How an experiment file names a suite."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SuiteSpec(BaseModel):
    """One suite of an experiment.

    Attributes:
        name: What tables and policies call it.
        kind: `lmeval` (lm-eval tasks), `toolcall` or `formats` (case files).
        tasks: For `lmeval`: task files, folders of task files, or names of lm-eval's own tasks.
        cases: For the other kinds: the case file.
        format: For `toolcall`: how calls are written (`hermes`, `kimi_k2`, ...); `auto` takes what the chat template
            teaches.
        limit: Most items of each family, spread evenly over its few-shot prefixes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    kind: Literal["lmeval", "toolcall", "formats"]
    tasks: list[str] = []
    cases: str | None = None
    format: str = "auto"
    limit: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _tasks_or_cases(self) -> "SuiteSpec":
        if self.kind == "lmeval" and (not self.tasks or self.cases is not None):
            raise ValueError("a suite of kind `lmeval` has `tasks` and no `cases`")
        if self.kind != "lmeval" and (self.tasks or self.cases is None):
            raise ValueError(f"a suite of kind `{self.kind}` has `cases` and no `tasks`")
        if self.kind != "toolcall" and self.format != "auto":
            raise ValueError("`format` goes with suites of kind `toolcall`")
        return self
