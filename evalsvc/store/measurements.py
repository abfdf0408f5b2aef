"""Figures of serving: stored one cell and repeat at a time, so that a killed measurement goes on where it was."""

import json
from collections.abc import Collection
from dataclasses import asdict, fields

from sqlalchemy import select

from evalsvc.errors import StoreError
from evalsvc.store.records import Measurement
from evalsvc.store.schema import MeasurementRow
from evalsvc.store.session import Store

_KEY = ("fingerprint", "settings_hash", "kind", "prompt_tokens", "concurrency", "repeat")


def save(store: Store, measurement: Measurement) -> None:
    """Stores a figure; one of the same arm, settings, kind, cell and repeat is replaced.

    Raises:
        StoreError: A figure that is no finite number.
    """
    try:
        json.dumps(measurement.figures, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{store.name}: a measurement that is no plain JSON is not stored ({error})") from error
    values = {name: value for name, value in asdict(measurement).items() if name != "created_at"}
    with store.transaction() as session:
        same = select(MeasurementRow).where(*(getattr(MeasurementRow, name) == values[name] for name in _KEY))
        earlier = session.scalar(same)
        if earlier is not None:
            session.delete(earlier)
            session.flush()
        session.add(MeasurementRow(**values))


def measurements(store: Store, fingerprints: Collection[str] | None = None) -> list[Measurement]:
    """Figures of arms, oldest first.

    Args:
        store: Where; a database from before there were any holds none.
        fingerprints: Whose; None: everybody's.
    """
    names = [field.name for field in fields(Measurement)]
    query = select(MeasurementRow).order_by(MeasurementRow.id)
    if fingerprints is not None:
        query = query.where(MeasurementRow.fingerprint.in_(list(fingerprints)))
    with store.session() as session:
        return [Measurement(**{name: getattr(row, name) for name in names}) for row in session.scalars(query)]
