"""A change is told once, not once a run."""

import pytest

from evalsvc.jobs.alerts import change


def told(words: str) -> list[str | None]:
    names = {"P": "PASS", "R": "REGRESSED", "I": "INCONCLUSIVE", "V": "INVALID", "f": "failed", "o": "ok"}
    alert, events = "", []
    for letter in words:
        alert, event = change(alert, names[letter])
        events.append(event)
    return events


@pytest.mark.parametrize(
    ("words", "events"),
    [
        ("PPP", [None] * 3),
        ("RRR", ["regressed", None, None]),
        ("PRRPP", [None, "regressed", None, "recovered", None]),
        ("RIRP", ["regressed", None, None, "recovered"]),
        ("RVRP", ["regressed", "invalid", "regressed", "recovered"]),
        ("IIP", [None, None, None]),
        ("VVP", ["invalid", None, "recovered"]),
        ("offo", [None, "failed", None, "recovered"]),
    ],
)
def test_only_changes_are_told(words, events):
    assert told(words) == events
