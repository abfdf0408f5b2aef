"""Lost and gained while a run goes on: whoever answers first, and whatever was stored before."""

from dataclasses import replace

from evalsvc.store.records import NewSample
from evalsvc.tally import Tally
from tests.evalsvc import by_hand


def sample(item: str, value: float | None, metric: str = "acc") -> NewSample:
    own = by_hand.sample(item, value, metric="acc", status="error" if value is None else "scored")
    return replace(own, metric=metric)


def test_flips_are_counted_once_in_whichever_order_the_arms_answer():
    tally = Tally("base", {"base": {}, "a": {}, "b": {}})
    assert tally.of("a") == (None, None), "nothing is known of the baseline"
    tally.add("a", sample("1", 0.0))
    tally.add("base", sample("1", 1.0))
    tally.add("base", sample("2", 0.0))
    tally.add("a", sample("2", 1.0))
    tally.add("b", sample("2", 0.0))
    tally.add("base", sample("3", None))
    tally.add("b", sample("3", 1.0))
    tally.add("b", sample("4", 1.0, metric=""))
    assert (tally.of("base"), tally.of("a"), tally.of("b")) == ((None, None), (1, 1), (0, 0))


def test_what_is_stored_counts_and_an_item_without_a_verdict_does_not():
    key = sample("1", 1.0).key
    tally = Tally("base", {"a": {key: 0.0}, "base": {key: 1.0}})
    tally.add("a", sample("2", 1.0, metric=""))
    assert tally.of("a") == (1, 0)
