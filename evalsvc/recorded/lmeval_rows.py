"""Rows of an lm-eval samples file as documents: one row a document and filter becomes one document with all scores."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalsvc.errors import ConfigError
from evalsvc.recorded.declared import GENERATION, LOGLIKELIHOOD
from evalsvc.recorded.lmeval_files import SamplesFile
from evalsvc.recorded.rows import read_rows
from evalsvc.suites import task_texts

_SAME_FOR_ALL_FILTERS = ("doc_hash", "prompt_hash", "target")


@dataclass(kw_only=True)
class Document:
    """One document of one task in one arm.

    Attributes:
        line: Of its first row.
        doc_hash: lm-eval's hash of the document; the document itself where an old file has none.
        prompt_hash: lm-eval's hash of the first prompt; empty where an old file has none.
        scored_by: `loglikelihood` or `generation`.
        requests: Arguments of each request, as lm-eval made them: prompt, and choice or settings.
        responses: Of each request its repeats: texts, or a log-probability and whether it is greedy, as text.
        values: By (metric, filter), in the order of the file; None where lm-eval wrote no number.
        filtered: By filter what it left of each request's answers, as far as the file says.
    """

    line: int
    task: str
    doc_id: str
    doc_hash: Any
    prompt_hash: str
    target: str
    scored_by: str
    requests: tuple[tuple[Any, ...], ...]
    responses: tuple[Any, ...]
    values: dict[tuple[str, str], float | None] = field(default_factory=dict)
    filtered: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def prompt(self) -> Any:
        """The prompt that every request has, or the list of them where they differ."""
        prompts = [request[0] for request in self.requests]
        return prompts[0] if all(prompt == prompts[0] for prompt in prompts) else prompts

    @property
    def logprobs(self) -> list[float]:
        """Of each choice; NaN where the file holds none."""
        return [_logprob(repeats) for repeats in self.responses]

    @property
    def texts(self) -> list[str]:
        """Generated texts, repeats one after the other."""
        return [
            str(text) for repeats in self.responses for text in (repeats if isinstance(repeats, list) else [repeats])
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """How it was generated, as far as lm-eval says."""
        given = [request[1] for request in self.requests if len(request) > 1 and isinstance(request[1], dict)]
        return given[0] if given else {}


def is_sample(row: Mapping[str, Any]) -> bool:
    """Whether lm-eval wrote this row."""
    return "doc_id" in row and ("resps" in row or "filtered_resps" in row)


def read_documents(file: SamplesFile) -> list[Document]:
    """The documents of a samples file, in its order.

    Raises:
        ConfigError: Not lm-eval's samples, a document and filter twice, or rows of one document that differ in
            more than the filter; names file and line.
    """
    documents: dict[str, Document] = {}
    first_rows: dict[str, tuple[Any, ...]] = {}
    for number, row in read_rows(file.path):
        where = f"{file.path}:{number}"
        if not is_sample(row):
            raise ConfigError(f"{where}: is no lm-eval sample (no doc_id and resps); was it run with --log_samples?")
        doc_id = str(row["doc_id"])
        same = tuple(row.get(name) for name in _SAME_FOR_ALL_FILTERS)
        document = documents.get(doc_id)
        if document is None:
            document = documents[doc_id] = _document(where, number, file.task, row)
            first_rows[doc_id] = same
        elif first_rows[doc_id] != same:
            odd = next(n for n, a, b in zip(_SAME_FOR_ALL_FILTERS, first_rows[doc_id], same, strict=True) if a != b)
            raise ConfigError(f"{where}: document {doc_id} has another {odd} than in line {document.line}")
        values = dict(_values(where, row))
        twice = next((name for _, name in values.keys() & document.values.keys()), None)
        if twice is not None:
            raise ConfigError(f"{where}: document {doc_id} stands already in line {document.line} (filter {twice})")
        document.values |= values
        left = row.get("filtered_resps")
        if document.scored_by == GENERATION and isinstance(left, list) and left:
            document.filtered[str(row.get("filter", "none"))] = left
    if not documents:
        raise ConfigError(f"{file.path}: holds no samples")
    return list(documents.values())


def _document(where: str, number: int, task: str, row: Mapping[str, Any]) -> Document:
    requests = tuple(_requests(row.get("arguments")))
    if not requests and not row.get("prompt_hash"):
        raise ConfigError(f"{where}: has neither arguments nor a prompt_hash, so nobody can tell what was asked")
    responses = row.get("resps", row.get("filtered_resps"))
    responses = tuple(responses) if isinstance(responses, list) else (responses,)
    half = len(requests) // 2
    if half > 1 and not any(r[0] for r in requests[half:]) and all(r[0] for r in requests[:half]):
        requests, responses = requests[:half], responses[:half]  # the rest: each choice without its prompt
    if any(len(request) > 1 and isinstance(request[1], str) for request in requests):
        scored_by = LOGLIKELIHOOD
    else:
        whole_text = bool(requests) and all(len(request) == 1 for request in requests)  # a rolling log-likelihood
        scored_by = LOGLIKELIHOOD if whole_text or (responses and _is_pair(_first(responses[0]))) else GENERATION
    return Document(
        line=number,
        task=task,
        doc_id=str(row["doc_id"]),
        doc_hash=row.get("doc_hash") or row.get("doc"),
        prompt_hash=str(row.get("prompt_hash") or ""),
        target=str(row.get("target")),
        scored_by=scored_by,
        requests=requests,
        responses=responses,
    )


def _requests(arguments: Any) -> Iterator[tuple[Any, ...]]:
    """Each request's arguments, from `{"gen_args_0": {"arg_0": ...}}` or, as old versions wrote it, lists.

    Requests with one prompt share it: a row repeats it for each choice.
    """
    entries = arguments.values() if isinstance(arguments, dict) else arguments
    prompt: Any = None
    for entry in entries if isinstance(arguments, dict | list) else ():
        parts = tuple(entry.values()) if isinstance(entry, dict) else tuple(entry) if isinstance(entry, list) else ()
        if parts:
            prompt = prompt if prompt == parts[0] else parts[0]
            yield (prompt, *parts[1:])


def _values(where: str, row: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float | None]]:
    """Metrics of a row: a number, null where one should be, or the two parts of a metric of the whole corpus.

    Of a reference and an answer that become BLEU, chrF or TER the parts are counts. Anything else (texts, longer lists)
    is left out.
    """
    name = str(row.get("filter", "none"))
    listed = row.get("metrics")
    for metric in listed if isinstance(listed, list) else _unlisted(row):
        if not isinstance(metric, str):
            raise ConfigError(f"{where}: metrics names {str(metric)[:60]!r}, which is no text")
        value = row.get(metric) if metric != "bypass" else ""  # 999, which says that nothing was scored
        if isinstance(value, bool | int | float):
            yield (metric, name), _finite(value)
        elif value is None:
            yield (metric, name), None
        elif (
            isinstance(value, list) and len(value) == 2 and all(isinstance(part, bool | int | float) for part in value)
        ):
            for i, part in enumerate(value):
                yield (f"{metric}.{i}", name), _finite(part)
        elif metric in task_texts.NAMES:
            for i, part in enumerate(_counts(metric, value)):
                yield (f"{metric}.{i}", name), part


def _counts(metric: str, value: Any) -> Sequence[float]:
    """As `task_texts.statistics`; none where sacreBLEU is not installed."""
    try:
        return task_texts.statistics(metric, value) or ()
    except ModuleNotFoundError:
        return ()


def score_name(score: str) -> str:
    """A metric's name without the number of its part."""
    base, _, part = score.rpartition(".")
    return base if part in ("0", "1") or (base in task_texts.NAMES and part.isdecimal()) else score


def _unlisted(row: Mapping[str, Any]) -> list[str]:
    """Metrics of an old file, which does not list them: what follows the last of lm-eval's own keys."""
    own = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
    return [key for key in row if key not in own and not key.endswith("_hash")]


def _finite(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _first(repeats: Any) -> Any:
    return repeats[0] if isinstance(repeats, list) and repeats else repeats


def _is_pair(response: Any) -> bool:
    return isinstance(response, Sequence) and len(response) == 2 and str(response[1]) in ("True", "False")


def _logprob(repeats: Any) -> float:
    response = _first(repeats)
    try:
        return float(response[0] if isinstance(response, list) else response)
    except (TypeError, ValueError, IndexError, OverflowError):
        return math.nan
