"""Methods that the service does not use, each from its formula, to hold ours against.

`lost` counts items right in the baseline only, `gained` in the candidate only; a drop is positive.
"""

from math import comb, log, sqrt

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betaln, rel_entr, softmax
from scipy.stats import chi2, norm, ttest_ind


def mcnemar_chi2(lost, gained, *, correction=False):
    """McNemar's asymptotic statistic, with or without Edwards' correction, and its p."""
    statistic = max(abs(lost - gained) - correction, 0) ** 2 / (lost + gained)
    return statistic, float(chi2.sf(statistic, 1))


def tango_statistic_numeric(lost, gained, n, margin):
    """Tango's score statistic with the constrained likelihood maximised by search instead of solved."""
    low, high = max(0.0, -margin), min(1.0, (1 - margin) / 2)

    def surprise(q):
        cells = ((lost, q + margin), (gained, q), (n - lost - gained, 1 - 2 * q - margin))
        return -sum(count * log(max(p, 1e-300)) for count, p in cells if count)

    q = minimize_scalar(surprise, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    return (lost - gained - n * margin) / sqrt(n * (2 * q + margin * (1 - margin)))


def tango_interval_numeric(lost, gained, n, level=0.95):
    """Two-sided interval of the drop from `tango_statistic_numeric`, for counts inside the table."""
    z, drop = float(norm.isf((1 - level) / 2)), (lost - gained) / n

    def end(sign):
        return brentq(lambda m: tango_statistic_numeric(lost, gained, n, m) + sign * z, drop, sign * 0.999)

    return end(-1), end(1)


def wald_paired(lost, gained, n, level=0.95):
    """Normal interval of the drop with the observed variance."""
    half = float(norm.isf((1 - level) / 2)) * sqrt(lost + gained - (lost - gained) ** 2 / n) / n
    return (lost - gained) / n - half, (lost - gained) / n + half


def agresti_min(lost, gained, n, level=0.95):
    """Wald's interval with half an item added to each of the four cells (Agresti & Min 2005)."""
    return wald_paired(lost + 0.5, gained + 0.5, n + 2, level)


def bonett_price(lost, gained, n, level=0.95):
    """Wald's interval with one item added to each discordant cell (Bonett & Price 2012)."""
    p, q = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    half = float(norm.isf((1 - level) / 2)) * sqrt((p + q - (p - q) ** 2) / (n + 2))
    return p - q - half, p - q + half


def newcombe_unpaired(first, second):
    """Difference of two independent proportions from their intervals: (proportion, lower, upper) each."""
    (p, l1, u1), (q, l2, u2) = first, second
    return p - q - sqrt((p - l1) ** 2 + (u2 - q) ** 2), p - q + sqrt((u1 - p) ** 2 + (q - l2) ** 2)


def theta(n, sigma, alpha, beta):
    """Smallest true difference that a one-sided two-sample z test of that sigma finds with power 1 - beta."""
    return (float(norm.isf(alpha)) + float(norm.isf(beta))) * sigma * sqrt(2 / n)


def allowed_drop(n, sigma, alpha):
    """Observed drop at which that test turns red."""
    return float(norm.isf(alpha)) * sigma * sqrt(2 / n)


def beta_mixture_e(lost, gained):
    """e-value of a uniform prior on the share of losses among flips against one half: `2^m B(b + 1, c + 1)`."""
    return 2.0 ** (lost + gained) * float(np.exp(betaln(lost + 1, gained + 1)))


def pass_at_k(n, right, k):
    """Chance that one of k answers drawn from n without replacement is right (Chen et al. 2021)."""
    return 1 - comb(n - right, k) / comb(n, k)


def kl_of_top(logits_p, logits_q, k):
    """Lower bound of KL(p || q) from p's k likeliest tokens and what is left of both, taken as one (log-sum)."""
    p, q = softmax(logits_p), softmax(logits_q)
    top = np.argsort(-p)[:k]
    return float(rel_entr(p[top], q[top]).sum() + rel_entr(1 - p[top].sum(), 1 - q[top].sum()))


def bernoulli_sequence(right, n, alpha, t_opt):
    """Time-uniform interval of a share: beta-binomial mixture around each candidate share p.

    The prior is Beta(p r, (1 - p) r) with r chosen for trials `t_opt` (Howard, Ramdas, McAuliffe & Sekhon 2021).
    """
    tuned = 2 * log(1 / 0.05)
    strength = max(t_opt / (tuned + log(1 + tuned)) - 1, 1e-3)

    def excess(p):
        ones, zeros = p * strength, (1 - p) * strength
        mixed = betaln(ones + right, zeros + n - right) - betaln(ones, zeros)
        return mixed - right * log(p) - (n - right) * log(1 - p) - log(1 / alpha)

    return brentq(excess, 1e-9, right / n, xtol=1e-13), brentq(excess, right / n, 1 - 1e-9, xtol=1e-13)


def predictable_bets(x, alpha=0.05, planned=None):
    """Bets from the variance seen before each value, for any number of values or for a planned one."""
    t = np.arange(1, len(x) + 1)
    mean = (0.5 + np.cumsum(x)) / (t + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (t + 1)
    before = np.append(0.25, variance[:-1])
    horizon = t * np.log(1 + t) if planned is None else planned
    return np.sqrt(2 * np.log(1 / alpha) / (horizon * before))


def wealth(x, means, bets, *, up=None, down=None):
    """Capital of bets that the mean is larger, and of bets that it is smaller, than each of `means`.

    Args:
        x: Values in [0, 1].
        means: Candidates. Shape: (candidates,).
        bets: One a value.
        up: Largest bet of each candidate; half of what would risk all when left out.
        down: The same for the second.

    Returns:
        Two arrays of shape (candidates, values).
    """
    with np.errstate(divide="ignore"):
        up = 0.5 / means if up is None else np.full(len(means), up)
        down = 0.5 / (1 - means) if down is None else np.full(len(means), down)
    gap = np.asarray(x) - means[:, None]
    larger = np.cumprod(1 + np.minimum(bets, up[:, None]) * gap, axis=1)
    smaller = np.cumprod(1 - np.minimum(bets, down[:, None]) * gap, axis=1)
    return larger, smaller


def betting_sequence(x, alpha=0.05, *, bets=None, running=False, largest=None):
    """Ends of the confidence sequence after the last value, on a grid of a thousandth (Waudby-Smith & Ramdas 2024).

    Args:
        x: Values in [0, 1].
        alpha: Error rate at all times together.
        bets: One a value; `predictable_bets` at half of alpha, a direction, when left out.
        running: Intersect with the sequence at all earlier times.
        largest: Largest bet, the same for all candidates.
    """
    means = np.arange(1001) / 1000
    larger, smaller = wealth(
        x, means, predictable_bets(x, alpha / 2) if bets is None else bets, up=largest, down=largest
    )
    inside = np.maximum(larger, smaller) / 2 <= 1 / alpha
    lower, upper = inside.argmax(axis=0), 1000 - inside[::-1].argmax(axis=0)
    if running:
        lower, upper = np.maximum.accumulate(lower), np.minimum.accumulate(upper)
    return (lower[-1] - 1) / 1000, (upper[-1] + 1) / 1000


def e_divisive(series, max_p):
    """Change points by energy distance, each held to a t test of its two sides (Matteson & James 2014)."""
    values = np.asarray(series, dtype=float)
    distance = np.abs(values[:, None] - values)

    def divergence(split, stop):
        n, m = split, stop - split
        between = distance[:split, split:stop].sum() * 2 / (n + m)
        left = distance[:split, :split].sum() * m / ((n + m) * (n - 1)) if n > 1 else 0.0
        right = distance[split:stop, split:stop].sum() * n / ((n + m) * (m - 1)) if m > 1 else 0.0
        return between - left - right

    pairs = [(split, stop) for split in range(1, len(values)) for stop in range(split + 1, len(values) + 1)]
    if not pairs:
        return []
    split = max(pairs, key=lambda pair: divergence(*pair))[0]
    if min(split, len(values) - split) < 2 or ttest_ind(values[:split], values[split:]).pvalue > max_p:
        return []
    later = [split + index for index in e_divisive(values[split:], max_p)]
    return [*e_divisive(values[:split], max_p), split, *later]
