"""What every arm of a run is asked, and the hashes by which its answers are known again."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from evalsvc.engine.requests import GenerateRequest, RollingRequest, ScoreRequest
from evalsvc.errors import ConfigError
from evalsvc.suites.base import Asked, Item, Suite

WHAT_AND_WHOM = {
    "prompt",
    "context",
    "contexts",
    "continuations",
    "text",
    "arms",
    "id",
}  # of a request; the rest is how

Key = tuple[str, str, str, str, str, int]


@dataclass(frozen=True)
class Question:
    """One item through one stage: what becomes one sample.

    Attributes:
        through: Stage that scores a log-likelihood item; empty for a generation.
        repeat: Which of the item's repeats, from 0.
    """

    suite: Suite
    item: Item
    request: Asked
    through: str
    repeat: int = 0

    @property
    def key(self) -> Key:
        """As `NewSample.key`."""
        asked, settings = request_hash(self.request), settings_hash(self.request)
        return (self.suite.name, self.item.id, self.item.sha256, asked, settings, self.repeat)


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
            for repeat in range(item.repeats):
                if isinstance(request, GenerateRequest):
                    asked.append(Question(suite, item, seeded(request, suite, item, repeat), "", repeat))
                else:
                    asked += [Question(suite, item, replace(request, through=t), t, repeat) for t in throughs]  # pyright: ignore[reportArgumentType]
    if not asked:
        raise ConfigError("the suites hold no item")
    places = Counter((q.suite.name, q.item.id, q.through, q.repeat) for q in asked)
    (suite, item, *_), count = places.most_common(1)[0]
    if count > 1:
        raise ConfigError(f"suite {suite}: item {item} stands in it twice")
    return asked


def seeded(request: GenerateRequest, suite: Suite, item: Item, repeat: int, turn: int = 0) -> GenerateRequest:
    """A sampled request with the seed of its item, repeat and turn: the same in every arm. A greedy one as it is."""
    if request.temperature == 0:
        return request
    digest = hashlib.sha256(json.dumps([suite.name, item.id, item.sha256, repeat, turn]).encode()).digest()
    return replace(request, seed=int.from_bytes(digest[:8], "big"))


def request_hash(request: Asked) -> str:
    """Hash of what the suite asked, without how it is to be answered."""
    if isinstance(request, ScoreRequest):
        asked = ["score", request.context, list(request.continuations)]
        return hash_of([*asked, list(request.contexts)] if request.contexts else asked)
    if isinstance(request, RollingRequest):
        return hash_of(["rolling", request.text])
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
    if not isinstance(request, GenerateRequest):
        return hash_of(settings | {"through": request.through})
    always = {"stop": list(request.stop), "max_tokens": request.max_tokens, "temperature": float(request.temperature)}
    return hash_of(settings | always)


def item_fields(suite: str, item: Item) -> dict[str, Any]:
    """What every sample of an item says of it, as fields of `NewSample`."""
    return {
        "suite": suite,
        "item_id": item.id,
        "item_hash": item.sha256,
        "family": item.family,
        "cluster": item.cluster,
        "metric": item.metric,
        "filter": item.filter,
        "chance": item.chance,
    }


def hash_of(value: Any) -> str:
    """sha256 of a value's JSON, keys sorted."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode("utf-8", "surrogatepass")).hexdigest()
