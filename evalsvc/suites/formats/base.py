"""What a constraint is: something that an answer's text either meets or breaks in a named way."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

FENCE = "```"


class Constraint(BaseModel):
    """One thing that can be verified of a text; each kind has the key `kind` and keys of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Any

    def ready(self, where: str) -> None:
        """Refuses what cannot be verified here.

        Raises:
            ConfigError: A pattern or a schema that is none.
            CapabilityError: A package that it needs is missing.
        """

    def broken(self, text: str) -> str | None:
        """How a text that is not blank breaks it, in a word; None where it is met. Takes linear time, raises nothing.

        An empty word says that the kind alone names the fault.
        """
        raise NotImplementedError


class Counted(Constraint):
    """A constraint on a number: at least `min`, at most `max`, or both."""

    min: int | None = Field(default=None, ge=0)
    max: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _bounds(self) -> "Counted":
        if self.min is None and self.max is None:
            raise ValueError("has `min`, `max` or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("`min` is above `max`")
        return self

    def outside(self, count: int) -> str | None:
        """`too_few` or `too_many`; None for a number within the bounds."""
        if self.min is not None and count < self.min:
            return "too_few"
        return "too_many" if self.max is not None and count > self.max else None


def unfenced(text: str, language: str) -> str:
    """The stripped text without a code fence that opens it and one that closes it; the first may name the language."""
    said = text.strip()
    if said.startswith(FENCE):
        said = said.removeprefix(FENCE)
        if said[: len(language)].lower() == language:
            said = said[len(language) :].removeprefix(FENCE)
    return said.removesuffix(FENCE).strip()


def named(constraint: Constraint, detail: str) -> str:
    """The error class of a broken constraint: its kind and, where there is one, the word for how."""
    return f"{constraint.kind}.{detail}" if detail else str(constraint.kind)
