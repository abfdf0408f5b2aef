"""What every arm of a run is asked, and the hashes by which its answers are known again."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from evalsvc.engine.requests import ScoreRequest
from evalsvc.errors import ConfigError
from evalsvc.suites.base import Asked, Item, Suite

WHAT_AND_WHOM = {"prompt", "context", "continuations", "arms", "id"}  # of a request; the rest is how

Key = tuple[str, str, str, str, str, int]


@dataclass(frozen=True)
class Question:
    """One item through one stage: what becomes one sample.

    Attributes:
        through: Stage that scores a log-likelihood item; empty for a generation.
    """

    suite: Suite
    item: Item
    request: Asked
    through: str

    @property
    def key(self) -> Key:
        """As `NewSample.key`."""
        asked, settings = request_hash(self.request), settings_hash(self.request)
        return (self.suite.name, self.item.id, self.item.sha256, asked, settings, 0)


def questions(suites: Sequence[Suite], throughs: Sequence[str]) -> list[Question]:
    """Everything that each arm answers.

    Args:
        suites: In the order of the experiment.
        throughs: Stages that score log-likelihood items; each makes a question of its own.

    Raises:
        ConfigError: Nothing to ask, or one item twice.
    """
    asked: list[Question] = []
    for suite in suites:
        for item in suite.items():
            request = suite.next_request(item, ())
            if request is None:
                raise ConfigError(f"suite {suite.name}: item {item.id} asks nothing")
            if isinstance(request, ScoreRequest):
                asked += [Question(suite, item, replace(request, through=t), t) for t in throughs]  # pyright: ignore[reportArgumentType]
            else:
                asked.append(Question(suite, item, request, ""))
    if not asked:
        raise ConfigError("the suites hold no item")
    places = Counter((question.suite.name, question.item.id, question.through) for question in asked)
    (suite, item, _), count = places.most_common(1)[0]
    if count > 1:
        raise ConfigError(f"suite {suite}: item {item} stands in it twice")
    return asked


def request_hash(request: Asked) -> str:
    """Hash of what the suite asked, without how it is to be answered."""
    if isinstance(request, ScoreRequest):
        return hash_of(["score", request.context, list(request.continuations)])
    return hash_of(["generate", request.prompt])


def settings_hash(request: Asked) -> str:
    """Hash of sampling, stop, limits and scoring stage.

    Whatever else a request may say enters where it is not at its default, so that a new field leaves stored hashes as
    they are.
    """
    settings = {
        field.name: getattr(request, field.name)
        for field in fields(request)
        if field.name not in WHAT_AND_WHOM and getattr(request, field.name) != field.default
    }
    if isinstance(request, ScoreRequest):
        return hash_of(settings | {"through": request.through})
    always = {"stop": list(request.stop), "max_tokens": request.max_tokens, "temperature": float(request.temperature)}
    return hash_of(settings | always)


def hash_of(value: Any) -> str:
    """sha256 of a value's JSON, keys sorted."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode("utf-8", "surrogatepass")).hexdigest()
