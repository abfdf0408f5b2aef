"""Axes that several charts share."""

import math
from collections.abc import Sequence

import altair as alt

WHOLE_WIDTH = alt.expr("width - 8")  # a longer text would leave the plot itself no room


def log_axis(values: Sequence[float | None], *, form: str = "~g", inside: bool = False) -> alt.Axis:
    """An axis with ticks at powers of ten, and at 2 and 5 times them where the values span little.

    Args:
        values: What is drawn; at least one is above 0.
        form: Of the labels, as d3 formats numbers.
        inside: No tick beyond the values, for a scale that ends with them.
    """
    known = [value for value in values if value is not None and value > 0]
    low, high = (math.log10(find(known)) for find in (min, max))
    steps = (1,) if high - low > 2 else (1, 2, 5)
    ticks = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    ticks = [tick for tick in ticks if min(known) <= tick <= max(known)] if inside else ticks
    return alt.Axis(format=form, values=ticks, labelOverlap=True)


def tight_log_scale(values: Sequence[float]) -> alt.Scale:
    """A log scale that ends where the values do."""
    return alt.Scale(type="log", domain=[min(values), max(values)], nice=False)
