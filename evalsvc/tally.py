"""What a run says of itself while it goes on: the suite it is at, its tokens, and items lost and gained so far."""

from collections.abc import Mapping
from dataclasses import dataclass

from evalsvc.questions import Key
from evalsvc.store.records import NewSample


@dataclass(frozen=True)
class Doing:
    """Where an arm is.

    Attributes:
        suite: Of the sample that was stored last.
        tokens: Of prompts and answers that this process stored.
        lost: Samples right in the baseline only, so far; None for the baseline, and where none is known of it.
        gained: Samples right in the arm only, so far.
    """

    suite: str = ""
    tokens: int = 0
    lost: int | None = None
    gained: int | None = None


class Tally:
    """Counts each arm's answers against the baseline's, whichever comes first. For people who watch: no verdict."""

    def __init__(self, baseline: str, known: Mapping[str, Mapping[Key, float]]) -> None:
        """`known` holds by arm, the baseline among them, the values that are stored already."""
        self._baseline = baseline
        self._values: dict[str, dict[Key, float]] = {arm: {} for arm in known}
        self._flips: dict[str, list[int]] = {arm: [0, 0] for arm in known}
        for arm, values in known.items():
            for key, value in values.items():
                self._note(arm, key, value)

    def add(self, arm: str, sample: NewSample) -> None:
        """Notes an answer; one without a score of its item's own metric counts for nobody."""
        own = (score.value for score in sample.scores if (score.metric, score.filter) == (sample.metric, sample.filter))
        value = next(own, None) if sample.status == "scored" and sample.metric else None
        if value is not None:
            self._note(arm, sample.key, value)

    def of(self, arm: str) -> tuple[int | None, int | None]:
        """Lost and gained so far."""
        if arm == self._baseline or not self._values.get(self._baseline):
            return None, None
        return self._flips[arm][0], self._flips[arm][1]

    def _note(self, arm: str, key: Key, value: float) -> None:
        self._values[arm][key] = value
        others = [name for name in self._values if name != arm] if arm == self._baseline else [arm]
        for name in others:
            base, cand = self._values.get(self._baseline, {}).get(key), self._values[name].get(key)
            if base is not None and cand is not None and base != cand:
                self._flips[name][base < cand] += 1
