"""Figures of an arm's tool calls, by suite, from stored scores: when it calls, and how many calls fit their schemas."""

from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy import select

from evalsvc.store.records import ArmRecord
from evalsvc.store.schema import ItemRow, Sample, ScoreRow
from evalsvc.store.session import Store
from evalsvc.suites.toolcall.figures import Triggering, schema_accuracy, triggering

METRICS = ("triggered", "trigger_right", "schema_valid")
_Place = tuple[str, str, int]  # suite, item, repeat


@dataclass(frozen=True, kw_only=True)
class CallFigures:
    """Tool calls of one suite. A conversation is one answer: its calls are right where those of all turns are.

    Attributes:
        answers: Scored answers.
        valid: Of those with a call, the ones whose calls all fit their schemas.
        expected: When the arm calls against when a call is expected.
        reference: The same against the run's baseline; None for the baseline itself.
    """

    answers: int
    valid: int
    expected: Triggering
    reference: Triggering | None

    @property
    def triggered(self) -> int:
        """Answers with a call, whole or begun."""
        return self.expected.both + self.expected.ours

    @property
    def schema_accuracy(self) -> float | None:
        """`valid / triggered`, a proportion, as K2 Vendor Verifier defines it; None without a call."""
        return schema_accuracy(self.valid, self.triggered)


def call_figures(store: Store, arm: ArmRecord, baseline: ArmRecord | None = None) -> dict[str, CallFigures]:
    """Figures of every suite of tool calls that an arm answered, under the scoring version that counts.

    Args:
        store: Where the scores are.
        arm: Whose answers.
        baseline: The arm that serves as reference.
    """
    ours = _scores(store, arm)
    theirs = None if baseline is None or baseline.id == arm.id else _scores(store, baseline)
    suites = sorted({suite for suite, _, _ in ours})
    return {suite: _figures(suite, ours, theirs) for suite in suites}


def _figures(
    suite: str, ours: dict[_Place, dict[str, float]], theirs: dict[_Place, dict[str, float]] | None
) -> CallFigures:
    mine = {place: found for place, found in ours.items() if place[0] == suite}
    called = {place: bool(found["triggered"]) for place, found in mine.items()}
    wanted = ((called[place], called[place] == bool(found["trigger_right"])) for place, found in mine.items())
    both = None
    if theirs is not None:
        both = triggering((called[place], bool(theirs[place]["triggered"])) for place in mine if place in theirs)
    return CallFigures(
        answers=len(mine),
        valid=sum(bool(found.get("schema_valid")) for place, found in mine.items() if called[place]),
        expected=triggering(wanted),
        reference=both,
    )


def _scores(store: Store, arm: ArmRecord) -> dict[_Place, dict[str, float]]:
    query = (
        select(ItemRow.suite, ItemRow.item_id, Sample.repeat, ScoreRow.scoring_version, ScoreRow.metric, ScoreRow.value)
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .join(ScoreRow, ScoreRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm.id, Sample.status == "scored", ScoreRow.metric.in_(METRICS))
        .order_by(ScoreRow.id)
    )
    newest: dict[_Place, str] = {}
    found: dict[tuple[_Place, str], dict[str, float]] = defaultdict(dict)
    with store.session() as session:
        for suite, item, repeat, version, metric, value in session.execute(query):
            if not arm.reads(suite, version):
                continue
            place = (suite, item, repeat)
            newest[place] = version
            found[place, version][metric] = value
    return {place: scores for place, version in newest.items() if "triggered" in (scores := found[place, version])}
