"""Who answers. Embedded engine today; endpoints and recorded outputs plug in here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from evalsvc.engine.requests import Answer, Request, RequestFailure


@dataclass(frozen=True, kw_only=True)
class ArmFacts:
    """What is known of an arm before its first item; `fingerprint` is the hash of all of it.

    Attributes:
        plan: Canonical plan text.
        stages: Per stage the canonical `weights` and `kv` format, checkpoint hash and injected fault.
        injected: Named faults, empty for an honest arm.
        capabilities: By name what the target can do for the arm, {can, about}, as it was tried; no part of the
            fingerprint.
    """

    name: str
    fingerprint: str
    plan: str
    stages: dict[str, dict[str, Any]]
    injected: dict[str, float]
    details: dict[str, Any]
    capabilities: dict[str, dict[str, Any]] = field(default_factory=dict)


class Target(Protocol):
    """Answers requests, each for the arms that it names."""

    def facts(self, arm: str) -> ArmFacts:
        """The arm's facts, computed without answering anything."""
        ...

    def submit(self, requests: Sequence[Request]) -> Iterator[Answer | RequestFailure]:
        """One answer or failure for each request and arm of it, in any order, with the request's id and the arm."""
        ...

    def proof(self, arm: str) -> dict[str, Any] | None:
        """What was measured of the arm so far, or None where nothing can be measured.

        What several arms used together is the same in the proof of each, and says so (`shared_with` of a stage).
        """
        ...
