"""How an experiment file names a suite."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

LMEVAL_KEYS = {
    "num_fewshot",
    "apply_chat_template",
    "fewshot_as_multiturn",
    "system_instruction",
    "prefix_draws",
    "data_files",
}


class SuiteSpec(BaseModel):
    """One suite of an experiment.

    Attributes:
        name: What tables and policies call it.
        kind: `lmeval` (lm-eval tasks), `toolcall`, `formats` or `prompts` (case files).
        tasks: For `lmeval`: task files, folders of task files, or names of lm-eval's own tasks.
        cases: For the other kinds: the case file.
        format: For `toolcall`: how calls are written (`hermes`, `kimi_k2`, ...); `auto` takes what the chat template
            teaches.
        levels: For case files: only cases of these levels (`small`, `medium`, `hard` in the shipped ones).
        limit: Most items of each family, spread evenly over its few-shot prefixes.
        num_fewshot: For `lmeval`, as the keys below: examples before each document, in place of what the tasks say; a
            task that says 0 keeps it, as in lm-eval.
        apply_chat_template: Prompts are conversations in the model's own template.
        fewshot_as_multiturn: In a conversation each example is a turn of its own.
        system_instruction: Stands before everything else; in a conversation it is the system's turn.
        prefix_draws: Sets of examples to draw from the tasks' pools (seeds 1234, 1235, ...). Documents take turns with
            the sets, and those under one set are a cluster; each document is asked once.
        data_files: Local files in place of the hub's for lm-eval's own tasks: by task, split and path.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(min_length=1)
    kind: Literal["lmeval", "toolcall", "formats", "prompts"]
    tasks: list[str] = []
    cases: str | None = None
    format: str = "auto"
    levels: list[str] | None = Field(default=None, min_length=1)
    limit: int | None = Field(default=None, ge=1)
    num_fewshot: int | None = Field(default=None, ge=0)
    apply_chat_template: bool = False
    fewshot_as_multiturn: bool = True
    system_instruction: str | None = Field(default=None, min_length=1)
    prefix_draws: int | None = Field(default=None, ge=2)
    data_files: dict[str, dict[str, str]] = {}

    @model_validator(mode="after")
    def _tasks_or_cases(self) -> "SuiteSpec":
        if self.kind == "lmeval" and (not self.tasks or self.cases is not None):
            raise ValueError("a suite of kind `lmeval` has `tasks` and no `cases`")
        if self.kind != "lmeval" and (self.tasks or self.cases is None):
            raise ValueError(f"a suite of kind `{self.kind}` has `cases` and no `tasks`")
        if self.kind == "lmeval" and self.levels is not None:
            raise ValueError("`levels` goes with suites of case files")
        if self.kind != "toolcall" and self.format != "auto":
            raise ValueError("`format` goes with suites of kind `toolcall`")
        if self.kind != "lmeval" and (foreign := sorted(self.model_fields_set & LMEVAL_KEYS)):
            raise ValueError(f"`{foreign[0]}` is for suites of kind `lmeval`")
        return self
