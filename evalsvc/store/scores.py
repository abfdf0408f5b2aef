"""Scores of an arm's samples, by item: all metrics of a suite, and choices that tie."""

from sqlalchemy import func, select

from evalsvc.modes import PREFIX
from evalsvc.store.schema import ItemRow, Sample, ScoreRow
from evalsvc.store.session import Store

_TIED = ("tie", "tie_at_top")  # error classes


def tied_items(store: Store, arm_id: int, suite: str) -> list[str]:
    """Names of the items of a suite whose likeliest choices tie, in the order of their names."""
    query = (
        select(ItemRow.item_id)
        .distinct()
        .join(Sample, Sample.item_pk == ItemRow.id)
        .join(ScoreRow, ScoreRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm_id, Sample.status == "scored", ItemRow.suite == suite)
        .where(ScoreRow.error_class.in_(_TIED))
        .order_by(ItemRow.item_id)
    )
    with store.session() as session:
        return list(session.scalars(query))


def ties(store: Store, arm_id: int) -> dict[str, tuple[int, int]]:
    """By suite the items whose likeliest choices tie, and all items scored by choices; suites without ties left out."""
    tied = func.count(Sample.item_pk.distinct()).filter(ScoreRow.error_class.in_(_TIED))
    query = (
        select(ItemRow.suite, tied, func.count(Sample.item_pk.distinct()))
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .join(ScoreRow, ScoreRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm_id, Sample.status == "scored", ItemRow.scored_by == "loglikelihood")
        .group_by(ItemRow.suite)
        .order_by(ItemRow.suite)
    )
    with store.session() as session:
        return {suite: (some, items) for suite, some, items in session.execute(query) if some}


def item_scores(
    store: Store, arm_id: int, suite: str, scoring_version: str
) -> dict[str, dict[str, list[tuple[str, str, float]]]]:
    """By scoring stage and item the metrics of an arm's scored samples: metric, filter and value.

    Of several repeats the first; nothing of failure modes.
    """
    query = (
        select(Sample.through, ItemRow.item_id, ScoreRow.metric, ScoreRow.filter, ScoreRow.value)
        .join(ItemRow, Sample.item_pk == ItemRow.id)
        .join(ScoreRow, ScoreRow.sample_id == Sample.id)
        .where(Sample.arm_id == arm_id, Sample.status == "scored", Sample.repeat == 0, ItemRow.suite == suite)
        .where(ScoreRow.scoring_version == scoring_version)
        .order_by(Sample.id, ScoreRow.id)
    )
    found: dict[str, dict[str, list[tuple[str, str, float]]]] = {}
    with store.session() as session:
        for through, item_id, metric, filter_, value in session.execute(query):
            if not metric.startswith(PREFIX):
                found.setdefault(through, {}).setdefault(item_id, []).append((metric, filter_, value))
    return found
