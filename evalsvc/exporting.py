"""Rows of samples and of pairs for other programs, as JSON lines or CSV."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import select

from evalsvc.alternatives import unpack
from evalsvc.errors import ConfigError
from evalsvc.store import queries
from evalsvc.store.records import ArmRecord, Side
from evalsvc.store.schema import ItemRow, Sample, ScoreRow, TurnRow
from evalsvc.store.session import Store

FORMATS = ("csv", "jsonl")
_CHUNK = 500


def format_of(named: str | None, out: Path | None) -> str:
    """What an export is written as: the format that was named, else what the file's ending says; jsonl without a file.

    Raises:
        ConfigError: Neither says one that is known.
    """
    known = " or ".join(FORMATS)
    if named is not None:
        if named not in FORMATS:
            raise ConfigError(f"--format {named}: is no format of an export; give {known}")
        return named
    if out is None:
        return "jsonl"
    ending = out.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        says = f"ends in .{ending}, which is no format" if ending else "has no ending that is a format"
        raise ConfigError(f"{out}: {says} of an export; end it in .csv or .jsonl, or give --format {known}")
    return ending


def sample_rows(store: Store, arm: ArmRecord, *, texts: bool) -> Iterator[dict[str, Any]]:
    """A row for each score of each sample, in the order of storing; a sample without score has one row.

    Args:
        store: The database.
        arm: Whose samples.
        texts: Whether prompts, answers and what filters left of them are in it.
    """
    columns = [Sample.id, ItemRow.suite, ItemRow.family, ItemRow.item_id, Sample.through, Sample.repeat]
    columns += [Sample.status, Sample.error_class, Sample.finish_reason, Sample.prompt_tokens, Sample.answer_tokens]
    columns += [Sample.prompt, Sample.answer] if texts else []
    last = 0
    while True:
        query = select(*columns).join(ItemRow, Sample.item_pk == ItemRow.id)
        query = query.where(Sample.arm_id == arm.id, Sample.id > last).order_by(Sample.id).limit(_CHUNK)
        with store.session() as session:
            samples: list[dict[str, Any]] = [dict(row._mapping) for row in session.execute(query)]
            if not samples:
                return
            scores: dict[int, list[dict[str, Any]]] = {}
            wanted = select(ScoreRow).where(ScoreRow.sample_id.in_([sample["id"] for sample in samples]))
            for row in session.scalars(wanted.order_by(ScoreRow.id)):
                held = {name: getattr(row, name) for name in ("scoring_version", "metric", "filter", "value")}
                held |= {"score_class": row.error_class, **({"filtered": row.filtered} if texts else {})}
                scores.setdefault(row.sample_id, []).append(held)
        last = samples[-1]["id"]
        for sample in samples:
            found = scores.get(sample.pop("id"))
            names = ("scoring_version", "metric", "filter", "value", "score_class", *(("filtered",) if texts else ()))
            none: dict[str, Any] = dict.fromkeys(names)
            for score in found or [none]:
                yield {"arm": arm.address, **sample, **score}


def token_rows(store: Store, arm: ArmRecord) -> Iterator[dict[str, Any]]:
    """A row for each generated token, in the order of storing, with the likeliest ones there.

    `turn` and `token` count from 0; `likeliest` is None where nobody said them, as of recorded answers.
    """
    columns = [Sample.id, ItemRow.suite, ItemRow.family, ItemRow.item_id, Sample.through, Sample.repeat]
    last = 0
    while True:
        query = select(*columns, Sample.alternatives).join(ItemRow, Sample.item_pk == ItemRow.id)
        query = query.where(Sample.arm_id == arm.id, Sample.id > last)
        with store.session() as session:
            samples = [dict(row._mapping) for row in session.execute(query.order_by(Sample.id).limit(_CHUNK))]
            if not samples:
                return
            wanted = select(TurnRow.sample_id, TurnRow.turn, TurnRow.token_ids)
            wanted = wanted.where(TurnRow.sample_id.in_([sample["id"] for sample in samples]))
            turns: dict[int, list[tuple[int, list[int]]]] = {}
            for sample_id, turn, ids in session.execute(wanted.order_by(TurnRow.sample_id, TurnRow.turn)):
                turns.setdefault(sample_id, []).append((turn, ids))
        last = samples[-1]["id"]
        for sample in samples:
            packed, found = sample.pop("alternatives"), turns.get(sample.pop("id"), [])
            yield from _tokens({"arm": arm.address, **sample}, found, packed)


def _tokens(
    about: dict[str, Any], turns: Sequence[tuple[int, Sequence[int]]], packed: bytes | None
) -> Iterator[dict[str, Any]]:
    written = [(turn, place, token) for turn, ids in turns for place, token in enumerate(ids)]
    likeliest = [None] * len(written) if packed is None else [[vars(one) for one in all_] for all_ in unpack(packed)]
    for (turn, place, token), named in zip(written, likeliest, strict=True):
        yield {**about, "turn": turn, "token": place, "id": token, "likeliest": named}


def pair_rows(store: Store, baseline: ArmRecord, candidate: ArmRecord) -> Iterator[dict[str, Any]]:
    """A row for each item of two arms: both values, and whether it was lost or gained."""
    for pair in queries.pairs(store, baseline, candidate):
        before, after = _value(pair.baseline), _value(pair.candidate)
        flip = "" if before is None or after is None or before == after else "lost" if after < before else "gained"
        place = {name: getattr(pair, name) for name in ("suite", "family", "cluster", "item_id", "through", "repeat")}
        values = {"metric": pair.metric, "baseline": before, "candidate": after, "flip": flip}
        yield {**place, **values}


def _value(side: Side | None) -> float | None:
    return None if side is None else side.value


def write_jsonl(rows: Iterable[dict[str, Any]], file: TextIO) -> int:
    """One ASCII JSON object a line, so that no stored character breaks a line or a terminal. Returns how many."""
    count = 0
    for row in rows:
        file.write(json.dumps(row, allow_nan=False) + "\n")
        count += 1
    return count


def write_csv(rows: Iterable[dict[str, Any]], file: TextIO) -> int:
    """CSV with a header. A text that a spreadsheet would run as a formula begins with an apostrophe.

    Returns:
        How many rows, the header aside.
    """
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return 0
    writer = csv.DictWriter(file, list(first), lineterminator="\n")
    writer.writeheader()
    count = 0
    for row in chain([first], rows):
        writer.writerow({name: _cell(value) for name, value in row.items()})
        count += 1
    return count


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
