"""What looking over a case file finds, without a model."""

from dataclasses import dataclass, field


@dataclass
class Found:
    """What `validate` found.

    Attributes:
        cases: How many cases there are.
        unproven: Cases whose right answer cannot be written: a pattern stands for it, or only constraints do.
        problems: One sentence each, with the case's id.
        faults: The same of faults that the cases name themselves, as published data have them.
    """

    cases: int
    unproven: int = 0
    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
