"""What looking over a case file finds, without a model."""

from collections.abc import Sequence
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

    def add(self, name: str, problems: Sequence[str], known: Sequence[str]) -> None:
        """Takes the problems of a case, those apart that it names itself; naming one that it has not is a problem."""
        self.faults += [f"{name}: {problem}" for problem in problems if problem in known]
        self.problems += [f"{name}: {problem}" for problem in problems if problem not in known]
        self.problems += [f"{name}: names a fault that it has not: {one}" for one in known if one not in problems]
