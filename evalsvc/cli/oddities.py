"""What a run's answers show that a score alone hides: stops that fire at once, choices that nothing tells apart."""

from collections.abc import Iterator

from evalsvc.store import queries
from evalsvc.store.rates import failure_rates
from evalsvc.store.scores import tied_items, ties
from evalsvc.store.session import Store

_NAMED = 10  # items of one suite


def oddities(store: Store, run_id: int) -> Iterator[str]:
    """Sentences about suites most of whose answers are empty, and about ties among likeliest choices."""
    for arm in queries.arms(store, run_id):
        for suite, rates in failure_rates(store, arm).items():
            empty = rates.shown.get("empty", 0)
            if 2 * empty > rates.answers:
                yield (
                    f"{arm.name}: {empty:,} of {rates.answers:,} answers of suite {suite} are empty; "
                    "does a stop string stand where answers begin?"
                )
        for suite, (tied, items) in ties(store, arm.id).items():
            named = tied_items(store, arm.id, suite)
            more = f" and {len(named) - _NAMED:,} more" if len(named) > _NAMED else ""
            yield (
                f"{arm.name}: the likeliest choices of {tied:,} of {items:,} items of suite {suite} are equally "
                f"likely; the first of them was taken, as lm-eval does ({', '.join(named[:_NAMED])}{more})"
            )
