"""What is worth telling: a change, once. A pure function of what was told before and what is found now."""

from evalsvc.jobs.spec import Event

OK, FAILED, INCIDENT = "ok", "failed", "incident"
_BAD: dict[str, Event] = {"REGRESSED": "regressed", "INVALID": "invalid", FAILED: "failed", INCIDENT: "incident"}
_GOOD = ("PASS", OK)


def change(alert: str, word: str) -> tuple[str, Event | None]:
    """The alert that stands from now on, and the event to tell.

    INCONCLUSIVE neither raises nor ends an alert: it says that nobody knows.

    Args:
        alert: The word that was told and not recovered from; empty where there is none.
        word: A verdict, `ok`, `failed` or `incident`.
    """
    if word in _BAD:
        return word, None if word == alert else _BAD[word]
    if word in _GOOD:
        return "", "recovered" if alert else None
    return alert, None
