"""BLEU, chrF and TER of a whole corpus as sums over its documents: sacreBLEU's own statistics of each document.

lm-eval hands the texts of all documents to sacreBLEU, which counts each document for itself and sums the counts; so the
counts are what is stored of a document, and the metric of their sums is lm-eval's to the last digit.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

NAMES = ("bleu", "chrf", "chrf++", "ter")


@cache
def _metric(name: str) -> Any:
    """As lm-eval sets it up: sacreBLEU's defaults."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    made: dict[str, Callable[[], Any]] = {
        "bleu": BLEU,
        "chrf": CHRF,
        "chrf++": lambda: CHRF(word_order=2),
        "ter": TER,
    }
    return made[name]()


def name_of(aggregation: Any) -> str | None:
    """Which of `NAMES` one of lm-eval's aggregations is; None for any other."""
    from lm_eval.api.registry import get_aggregation

    return next((name for name in NAMES if aggregation is get_aggregation(name)), None)


def statistics(name: str, value: Any) -> list[float] | None:
    """Counts of one document; None for what is no reference and answer.

    Args:
        name: One of `NAMES`.
        value: Reference and answer. Of several references lm-eval reads as many as the document with the fewest has, so
            that no document can be counted for itself: None.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        return None
    texts = [part[0] if isinstance(part, tuple | list) and len(part) == 1 else part for part in value]
    if not all(isinstance(text, str) for text in texts):
        return None
    reference, answer = texts
    (found,) = _metric(name)._extract_corpus_statistics([answer], [[reference]])
    return [float(count) for count in found]


def of_sums(name: str, documents: Sequence[Sequence[float]]) -> float:
    """The metric of a corpus. Shape of documents: (documents, counts)."""
    sums = [sum(column) for column in zip(*documents, strict=True)]
    return float(_metric(name)._compute_score_from_stats(sums).score)
