"""What can be seen with n items at a discordance, before anything runs. Proportions throughout.

With psi = P(lost) + P(gained) (the discordance) and delta = P(lost) - P(gained) (the drop).
"""

from math import inf, sqrt

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom, norm

from evalsvc.verdict.paired import tango_upper


def items_needed(lost: float, gained: float, *, alpha: float = 0.05, power: float = 0.8, sides: int = 1) -> float:
    """Items with which McNemar's test finds a drop.

    `n = (z_alpha sqrt(psi) + z_beta sqrt(psi - delta^2))^2 / delta^2`

    Args:
        lost: Probability that an item is lost.
        gained: Probability that one is gained.
        alpha: Error rate.
        power: Wanted probability of finding it.
        sides: 1 or 2.

    Returns:
        Not rounded.

    Source: Connor 1987, Biometrics 43:207.
    """
    psi, delta = lost + gained, lost - gained
    if delta == 0:
        raise ValueError("without a drop no number of items finds one")
    needed = float(norm.isf(alpha / sides)) * sqrt(psi) + float(norm.isf(1 - power)) * sqrt(psi - delta * delta)
    return needed * needed / (delta * delta)


def detectable_drop(n: int, discordance: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest drop that n items find with this power, by Connor's formula solved for the drop.

    Returns:
        At most the discordance; infinite when even flips of one direction alone are too few.
    """

    def missing(drop: float) -> float:
        reach = float(norm.isf(alpha)) * sqrt(discordance) + float(norm.isf(1 - power)) * sqrt(
            discordance - drop * drop if discordance > drop * drop else 0.0
        )
        return reach - drop * sqrt(n)

    if n < 1 or discordance <= 0 or missing(discordance) > 0:
        return inf
    return float(brentq(missing, 0.0, discordance))  # pyright: ignore[reportArgumentType]


def exact_power(lost: float, gained: float, n: int, *, alpha: float = 0.05, sides: int = 1) -> float:
    """Unconditional power of the exact test: over the numbers of discordant items that may turn up.

    `sum_d P(Bin(n, psi) = d) P(rejected | d)`, with lost items of d discordant ones Bin(d, lost / psi).

    Args:
        lost: Probability that an item is lost.
        gained: Probability that one is gained.
        n: Items.
        alpha: Error rate.
        sides: 1 rejects for a drop alone, 2 for either direction at alpha / 2 each.
    """
    psi = lost + gained
    if psi == 0:
        return 0.0
    first, last = binom.interval(1 - 1e-12, n, psi)  # beyond it the sum gains less than 1e-12
    discordant = np.arange(int(first), int(last) + 1)
    critical = binom.isf(alpha / sides, discordant, 0.5) + 1  # smallest count with P(Bin(d, 1/2) >= count) <= alpha
    rejected = binom.sf(critical - 1, discordant, lost / psi)
    if sides == 2:
        rejected = rejected + binom.cdf(discordant - critical, discordant, lost / psi)
    return float((binom.pmf(discordant, n, psi) * rejected).sum())


def provable_margin(n: int, discordance: float, *, alpha: float = 0.05) -> float:
    """The margin that n items prove when as many are gained as lost: Tango's bound at that discordance."""
    flips = discordance * n / 2
    return 1.0 if n < 1 else tango_upper(flips, flips, n, alpha)


def items_to_prove(discordance: float, margin: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Items that prove a margin when there is no drop: `(z_alpha + z_beta)^2 psi / margin^2`, not rounded.

    At least as many as prove it when none flips, `z_alpha^2 (1 - margin) / margin`.
    """
    if margin <= 0:
        return inf
    z = float(norm.isf(alpha))
    reach = z + float(norm.isf(1 - power))
    return max(reach * reach * discordance / (margin * margin), z * z * (1 - margin) / margin)
