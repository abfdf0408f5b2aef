"""Next-token distributions of several arms, compared token by token while they are scored."""

from collections import defaultdict
from typing import TYPE_CHECKING

from torch import Tensor

from .jobs import Job
from .requests import Divergence
from .spans import Place

if TYPE_CHECKING:
    from .scoring import ScoreJob


class Comparison:
    """Whole next-token distributions of several arms against one arm's; one at a token is kept until all have met it.

    Attributes:
        reference: Whose distributions the others' are compared with.
        others: Who is compared.
    """

    def __init__(self, reference: "ScoreJob", others: "list[ScoreJob]"):
        self.reference, self.others = reference, others
        self._references: dict[Place, Tensor] = {}
        self._waiting: dict[Place, list[tuple[ScoreJob, Tensor]]] = defaultdict(list)
        self._met: dict[Place, int] = defaultdict(int)
        self._left = {id(job): sum(len(span.tokens) for span in job.spans) for job in others}
        for job in (reference, *others):
            job.comparison = self

    @property
    def held(self) -> int:
        """Distributions that are kept now."""
        return len(self._references) + sum(map(len, self._waiting.values()))

    def waits_for(self, job: "ScoreJob") -> bool:
        """Whether a job still has tokens to be compared."""
        return self._left.get(id(job), 0) > 0

    def add(self, job: "ScoreJob", place: Place, logprobs: Tensor) -> None:
        """Takes one arm's distribution at one token. `logprobs` Shape: (vocabulary,)."""
        if job is self.reference:
            if self.others:
                self._references[place] = logprobs.clone()  # not the whole forward's
            for other, theirs in self._waiting.pop(place, []):
                self._compare(other, place, theirs)
                other.finish_if_complete()
        elif place in self._references:
            self._compare(job, place, logprobs)
        else:
            self._waiting[place].append((job, logprobs.clone()))

    def _compare(self, job: "ScoreJob", place: Place, logprobs: Tensor) -> None:
        reference, theirs = self._references[place].double(), logprobs.double()
        kl = float((reference.exp() * (reference - theirs)).sum().clamp_min(0))
        job.diverged(place, Divergence(kl, int(reference.argmax()) == int(theirs.argmax())))
        self._left[id(job)] -= 1
        self._met[place] += 1
        if self._met[place] == len(self.others):
            del self._references[place]

    def failed(self, job: Job) -> "list[ScoreJob]":
        """Jobs that cannot be compared any more because this one has no answer."""
        return [other for other in self.others if not other.done] if job is self.reference else []
