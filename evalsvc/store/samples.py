"""Storing samples with their items, scores and turns: many at a time, all or none, no key twice."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import Any, cast

from sqlalchemy import Table, delete, select, update
from sqlalchemy.orm import Session

from evalsvc.errors import StoreError
from evalsvc.store.bulk import among, by_row, collecting_later, insert_columns, insert_with_ids
from evalsvc.store.records import NewSample, NewScore
from evalsvc.store.schema import Arm, IncidentRow, ItemRow, Sample, ScoreRow, TurnRow, utc_now
from evalsvc.store.session import Store
from evalsvc.store.texts import storable_text

_ITEM_KEY = ("suite", "item_id", "item_hash")
_ITEM_FIELDS = ("family", "cluster", "metric", "filter", "chance", "scored_by")
_TEXT_FIELDS = (*_ITEM_KEY, "request_hash", "settings_hash", *_ITEM_FIELDS[:4])
_PLAIN = (
    *("request_hash", "settings_hash", "rendered_hash", "repeat", "through", "status", "error_class"),
    *("finish_reason", "prompt_tokens", "answer_tokens", "stage_tokens", "handed_over", "timings"),
    "alternatives",
)  # fields of a sample that are stored as they come
_SCORE_FIELDS = ("metric", "filter", "value", "error_class")
_SCORE_COLUMNS = ("sample_id", "scoring_version", *_SCORE_FIELDS, "filtered")
_TURN_COLUMNS = ("sample_id", "turn", "answer", "finish_reason", "token_ids")
_plain, _score, _texts = attrgetter(*_PLAIN), attrgetter(*_SCORE_FIELDS), attrgetter(*_TEXT_FIELDS)
_described = attrgetter(*_ITEM_FIELDS)
_ITEMS, _SAMPLES, _SCORES, _TURNS = (cast(Table, row.__table__) for row in (ItemRow, Sample, ScoreRow, TurnRow))
_DESCRIBED = select(*(_ITEMS.c[name] for name in ("id", "item_id", "item_hash", "right_answer", *_ITEM_FIELDS)))
_ItemKey = tuple[str, str, str]
_Key = tuple[int, str, str, int]  # what is left of a sample's key inside one arm: item, request, settings, repeat


def add_samples(store: Store, run_id: int, arm_id: int, samples: Sequence[NewSample]) -> int:
    """Stores samples with their items and scores, all or none.

    A key that is stored already is left alone, unless it holds an error: then the new sample takes its place, for a
    resumed run tries it again. Safe against a second process that stores the same keys.

    Returns:
        How many samples were stored or replaced.

    Raises:
        StoreError: Unknown arm, a value that is not finite, or an item that contradicts its stored description.
    """
    if not samples:
        return 0
    for sample in samples:
        _check(store, sample)
    with collecting_later(len(samples)), store.transaction() as session:
        # a server holds the arm for this transaction; in SQLite nobody else writes anyway
        arm = session.scalar(select(Arm).where(Arm.id == arm_id, Arm.run_id == run_id).with_for_update())
        if arm is None:
            raise StoreError(f"{store.name}: run {run_id} has no arm {arm_id}")
        item_pks = _upsert_items(store, session, samples)
        wanted: dict[_Key, NewSample] = {}
        for sample in samples:
            key = _key(item_pks, sample)
            if key not in wanted or wanted[key].status == "error":
                wanted[key] = sample
        held = _held(session, arm, wanted)
        new = {key: sample for key, sample in wanted.items() if key not in held}
        failed = {key: number for key, (number, status) in held.items() if status == "error"}
        again = {number: (key[0], wanted[key]) for key, number in failed.items()}
        _insert(session, arm, new)
        _replace(session, arm, again)
        arm.stored += len(new)
        tried = [*new.values(), *(sample for _, sample in again.values())]
        arm.errors += sum(sample.status == "error" for sample in tried) - len(again)
        return len(new) + len(again)


def insert_samples(store: Store, session: Session, arm: Arm, samples: Sequence[NewSample]) -> None:
    """Stores all samples of an arm that has none, inside a transaction that is open.

    Raises:
        StoreError: As `add_samples`, and a key that comes twice.
    """
    for sample in samples:
        _check(store, sample)
    item_pks = _upsert_items(store, session, samples)
    new = {_key(item_pks, sample): sample for sample in samples}
    if len(new) < len(samples):
        keys = [_key(item_pks, sample) for sample in samples]
        twice = next(s for key, s in zip(keys, samples, strict=True) if keys.count(key) > 1)
        raise StoreError(f"{store.name}: arm '{arm.name}' answers item '{twice.item_id}' of '{twice.suite}' twice")
    _insert(session, arm, new)
    arm.stored = len(new)
    arm.errors = sum(sample.status == "error" for sample in samples)


def insert_ignoring(session: Session, table: Any) -> Any:
    """An INSERT that leaves alone what is there, in the words of this database."""
    from sqlalchemy.dialects import postgresql, sqlite

    made = postgresql.insert(table) if session.get_bind().dialect.name == "postgresql" else sqlite.insert(table)
    return made.on_conflict_do_nothing()


def score_values(session: Session, sample_id: int, scoring_version: str, score: NewScore) -> dict[str, Any]:
    """A row of scores."""
    left = _left(score, _holds_nulls(session))
    return dict(zip(_SCORE_COLUMNS, (sample_id, scoring_version, *_score(score), left), strict=True))


def _check(store: Store, sample: NewSample) -> None:
    """Refuses what could not be found or compared again."""
    for score in sample.scores:
        if not math.isfinite(score.value):
            where = _where(store, sample)
            raise StoreError(f"{where}: {score.metric} is {score.value}; store an error instead of such a score")
    if "".join(_texts(sample)).isascii():
        return
    for name, value in zip(_TEXT_FIELDS, _texts(sample), strict=True):
        if storable_text(value) != value:
            where = _where(store, sample)
            raise StoreError(f"{where}: its {name} holds a lone surrogate, which no database text can; rename it")


def _where(store: Store, sample: NewSample) -> str:
    return f"{store.name}: item '{storable_text(sample.item_id)}' of suite '{storable_text(sample.suite)}'"


def _upsert_items(store: Store, session: Session, samples: Sequence[NewSample]) -> dict[_ItemKey, int]:
    """Primary keys by (suite, item id, item hash), new items inserted."""
    described = {(s.suite, s.item_id, s.item_hash): s for s in samples}
    found = _items(store, session, described)
    new = {key: sample for key, sample in described.items() if key not in found}
    rows = [(*key, *_described(sample), _right_answer(sample)) for key, sample in new.items()]
    names = (*_ITEM_KEY, *_ITEM_FIELDS, "right_answer")
    columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=False))
    connection = session.connection()
    if not new:
        return found
    if connection.dialect.name == "sqlite":
        return found | dict(zip(new, insert_with_ids(connection, _ITEMS, columns), strict=True))
    connection.execute(insert_ignoring(session, _ITEMS), by_row(columns))
    return found | _items(store, session, new)  # another arm's writer may have stored some of them


def _items(store: Store, session: Session, described: dict[_ItemKey, NewSample]) -> dict[_ItemKey, int]:
    """Primary keys of those items that are stored, once their descriptions agree; right answers they lack are added."""
    found: dict[_ItemKey, int] = {}
    by_suite: dict[str, set[str]] = {}
    for suite, item_id, _ in described:
        by_suite.setdefault(suite, set()).add(item_id)
    connection, columns = session.connection(), ItemRow.__table__.c
    for suite, ids in by_suite.items():
        wanted = columns.suite == suite, among(connection, columns.item_id, sorted(ids))
        for row in connection.execute(_DESCRIBED.where(*wanted)):
            number, item_id, item_hash, right, *fields = tuple(row)
            sample = described.get((suite, item_id, item_hash))
            if sample is not None:
                if tuple(fields) != _described(sample):
                    _refuse_item(store, fields, sample)
                found[(suite, item_id, item_hash)] = number
                if right is None and sample.right_answer is not None:  # stored before right answers were
                    told = {"right_answer": _right_answer(sample)}
                    connection.execute(update(_ITEMS).where(_ITEMS.c.id == number).values(told))
    return found


def _right_answer(sample: NewSample) -> str | None:
    return None if sample.right_answer is None else storable_text(sample.right_answer)


def _refuse_item(store: Store, fields: Sequence[Any], sample: NewSample) -> None:
    for name, old in zip(_ITEM_FIELDS, fields, strict=True):
        new = getattr(sample, name)
        if old != new:
            raise StoreError(
                f"{store.name}: item '{sample.item_id}' of suite '{sample.suite}' is stored with {name} {old!r} "
                f"and is now {new!r} under the same hash; use a new database"
            )


def _key(item_pks: dict[_ItemKey, int], sample: NewSample) -> _Key:
    item_pk = item_pks[(sample.suite, sample.item_id, sample.item_hash)]
    return (item_pk, sample.request_hash, sample.settings_hash, sample.repeat)


def _held(session: Session, arm: Arm, wanted: dict[_Key, NewSample]) -> dict[_Key, tuple[int, str]]:
    """Id and status of those of the keys that the arm holds already."""
    if not arm.stored:
        return {}
    items = among(session.connection(), Sample.item_pk, sorted({key[0] for key in wanted}))
    columns = (Sample.item_pk, Sample.request_hash, Sample.settings_hash, Sample.repeat, Sample.id, Sample.status)
    found: dict[_Key, tuple[int, str]] = {}
    for row in session.execute(select(*columns).where(Sample.arm_id == arm.id, items)):
        item_pk, request, settings, repeat, number, status = row
        if (key := (item_pk, request, settings, repeat)) in wanted:
            found[key] = number, status
    return found


def _insert(session: Session, arm: Arm, new: dict[_Key, NewSample]) -> None:
    columns = _columns(session, arm, [key[0] for key in new], list(new.values()))
    ids = insert_with_ids(session.connection(), _SAMPLES, columns)
    _add_parts(session, arm, list(zip(ids, new.values(), strict=True)))


def _replace(session: Session, arm: Arm, again: dict[int, tuple[int, NewSample]]) -> None:
    """Puts samples where errors were: by id the item and the sample."""
    if not again:
        return
    samples = [sample for _, sample in again.values()]
    rows = by_row(_columns(session, arm, [item_pk for item_pk, _ in again.values()], samples))
    for sample_id, row in zip(again, rows, strict=True):
        session.execute(update(Sample).where(Sample.id == sample_id).values(**row))
    for table in (_SCORES, _TURNS):
        session.execute(delete(table).where(among(session.connection(), table.c.sample_id, again)))
    _add_parts(session, arm, list(zip(again, samples, strict=True)))


def _columns(session: Session, arm: Arm, item_pks: list[int], samples: Sequence[NewSample]) -> dict[str, Sequence[Any]]:
    """Rows of samples, by column."""
    count, store = len(samples), partial(storable_text, null_bytes=_holds_nulls(session))
    prompts = [s.prompt if _plainly(s.prompt) else store(s.prompt) for s in samples]
    answers = [s.answer if _plainly(s.answer) else store(s.answer) for s in samples]
    kept = zip(prompts, answers, samples, strict=True)
    return {
        "run_id": [arm.run_id] * count,
        "arm_id": [arm.id] * count,
        "arm_fingerprint": [arm.fingerprint] * count,
        "item_pk": item_pks,
        "created_at": [utc_now()] * count,
        "prompt": prompts,
        "answer": answers,
        "escaped": [prompt is not s.prompt or answer is not s.answer for prompt, answer, s in kept],
        "error_message": [None if s.error_message is None else store(s.error_message) for s in samples],
        **dict(zip(_PLAIN, zip(*map(_plain, samples), strict=True), strict=False)),
    }


def _left(score: NewScore, null_bytes: bool) -> str | None:
    """What the filter left, as the database holds it."""
    left = score.filtered
    return left if left is None or _plainly(left) else storable_text(left, null_bytes=null_bytes)


def _plainly(text: str) -> bool:
    """Whether any database holds a text as it is; most are."""
    return text.isascii() and "\0" not in text


def _holds_nulls(session: Session) -> bool:
    return session.get_bind().dialect.name != "postgresql"


def _add_parts(session: Session, arm: Arm, stored: Sequence[tuple[int, NewSample]]) -> None:
    """Scores and turns of samples that have none, and their incidents, which stay when a sample is tried again."""
    connection, nulls = session.connection(), _holds_nulls(session)
    scored = [
        (sample_id, sample.scoring_version, *_score(score), _left(score, nulls))
        for sample_id, sample in stored
        for score in sample.scores
    ]
    insert_columns(connection, _SCORES, dict(zip(_SCORE_COLUMNS, zip(*scored, strict=True), strict=False)))
    turned = [
        (
            sample_id,
            number,
            None if turn.answer is None else storable_text(turn.answer, null_bytes=nulls),
            turn.finish_reason,
            list(turn.token_ids),
        )
        for sample_id, sample in stored
        for number, turn in enumerate(sample.turns)
    ]
    insert_columns(connection, _TURNS, dict(zip(_TURN_COLUMNS, zip(*turned, strict=True), strict=False)))
    for sample_id, sample in stored:
        if sample.incident is not None:
            request = storable_text(f"{sample.suite}/{sample.item_id}", null_bytes=nulls)
            own = {"run_id": arm.run_id, "arm_id": arm.id, "arm": arm.name, "sample_id": sample_id, "request": request}
            session.add(IncidentRow(**own, **asdict(sample.incident)))
