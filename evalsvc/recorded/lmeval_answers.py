"""What an lm-eval document says of its choices and answers."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from evalsvc.recorded.declared import LOGLIKELIHOOD
from evalsvc.recorded.lmeval_rows import Document
from evalsvc.suites.lmeval import tie_of


def answer_text(document: Document, *, golds: bool) -> str:
    """The answer as it is stored: text (repeats as a JSON list), or JSON of choices, log-probabilities and right one.

    Args:
        document: With finite log-probabilities, where it has any.
        golds: As `targets_are_indices` of its task.
    """
    if document.scored_by != LOGLIKELIHOOD:
        texts = document.texts
        return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)
    said: dict[str, Any] = {"choices": _choices(document), "logprobs": document.logprobs}
    targets = _targets(document)
    if golds and len(targets) == 1 and len(document.responses) > 1:
        said["gold"] = targets[0]
    return json.dumps(said, ensure_ascii=False)


def chance_of(document: Document) -> float:
    """The proportion that guessing gets right."""
    choices = len(document.responses)
    if document.scored_by != LOGLIKELIHOOD or choices < 2:
        return 0.0
    return max(1, len(_targets(document))) / choices


def targets_are_indices(documents: Sequence[Document]) -> bool:
    """Whether a task's targets are indices of the right choices: lm-eval's `acc` agrees with all of them.

    Some tasks name their target by a text that happens to be a number; some of those agree by chance.
    """
    return all(map(_agrees, documents))


def tie_among(logprobs: Sequence[float]) -> str | None:
    """As `tie_of`; None without choices."""
    return tie_of(logprobs) if logprobs else None


def oddities(task: str, documents: Sequence[Document]) -> Iterator[str]:
    """What an outage looks like where lm-eval scored it all the same."""
    total = len(documents)
    chosen = [d.logprobs for d in documents if d.scored_by == LOGLIKELIHOOD]
    ties = sum(all(map(math.isfinite, found)) and tie_among(found) == "tie" for found in chosen)
    if ties:
        yield f"all choices of {ties:,} of {total:,} items of {task} are equally likely: scored by their position"
    empty = sum(not any(text.strip() for text in d.texts) for d in documents if d.scored_by != LOGLIKELIHOOD)
    if empty:
        yield f"{empty:,} of {total:,} answers of {task} are empty, and scored: is it the model or an outage?"


def _agrees(document: Document) -> bool:
    logprobs, targets = document.logprobs, _targets(document)
    acc = next((value for (metric, _), value in document.values.items() if metric == "acc"), None)
    if document.scored_by != LOGLIKELIHOOD or acc is None or len(targets) != 1 or not all(map(math.isfinite, logprobs)):
        return True
    return acc == float(max(range(len(logprobs)), key=logprobs.__getitem__) == targets[0])


def _choices(document: Document) -> list[str]:
    """What differs between the requests: the continuation, or the prompt where all have one continuation."""
    continuations = [str(request[1]) if len(request) > 1 else "" for request in document.requests]
    if len(continuations) > 1 and len(set(continuations)) == 1:
        return [str(request[0]) for request in document.requests]
    return continuations


def _targets(document: Document) -> list[int]:
    """Indices of the right choices where the target says them, else none."""
    try:
        found = json.loads(document.target)
    except (ValueError, RecursionError):
        return []
    found = found if isinstance(found, list) else [found]
    count = len(document.responses)
    good = all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < count for i in found)
    return found if good else []
