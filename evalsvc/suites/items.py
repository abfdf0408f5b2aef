"""What every suite does with its items: hashing them and taking a part of them."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice, zip_longest
from typing import Any

from evalsvc.suites.base import Item


def content_hash(content: Any) -> str:
    """SHA-256 of a value's canonical JSON; what JSON cannot hold enters as its `repr`."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def take(items: Sequence[Item], limit: int | None) -> list[Item]:
    """At most `limit` items of each family, spread evenly over its clusters, in the order of their files.

    A plain head would keep the first few-shot prefix alone, whose items flip together.
    """
    if limit is None:
        return list(items)
    by_family: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        by_family[item.family][item.cluster].append(item.id)
    kept: set[str] = set()
    for clusters in by_family.values():
        by_turn = zip_longest(*clusters.values())
        kept.update(islice((id_ for turn in by_turn for id_ in turn if id_ is not None), min(limit, len(items))))
    return [item for item in items if item.id in kept]
