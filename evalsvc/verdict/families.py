"""Several tests at once."""

from collections.abc import Sequence


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given, that control the chance of any false rejection.

    The i-th smallest of m becomes the running maximum of `(m - i + 1) p_(i)`, at most 1.

    Source: Holm 1979, Scand J Stat 6:65.
    """
    adjusted = [0.0] * len(p)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, (len(p) - rank) * p[index])
        adjusted[index] = min(running, 1.0)
    return adjusted
