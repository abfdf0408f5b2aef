"""A large database to measure and to test on: nights of a small experiment, then one run of large arms.

The first arm goes through the writer; every other one is a copy of its rows, made in SQL, with some items lost or
gained. Verdicts are the gate's own; a night that equals an earlier one has that one's.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from evalsvc.gate import decide_gate
from evalsvc.policy import Policy
from evalsvc.store import queries, writer
from evalsvc.store.baselines import promote
from evalsvc.store.records import ArmRecord, NewSample, NewScore
from evalsvc.store.session import Store, open_store

NIGHTS, NIGHTLY_ARMS, LARGE_ARMS = 60, 3, 4
LARGE_SHARE = 0.1  # of all samples, in the last run
REGRESSION_AT = 39
POLICY = Policy(name="large", margin_points=1.0, guard_points=3.0)
# suite, family, how it is scored, metrics beside its own
FAMILIES = (
    ("tools", "choose", "generation", ("failure.any", "triggered", "trigger_right", "schema_valid")),
    ("tools", "refrain", "generation", ("failure.any", "triggered", "trigger_right", "schema_valid")),
    ("formats", "json", "generation", ("failure.any",)),
    ("formats", "table", "generation", ("failure.any",)),
    ("tasks", "dates", "generation", ("failure.any",)),
    ("tasks", "sums", "generation", ("failure.any",)),
    ("choices", "law", "loglikelihood", ()),
    ("choices", "physics", "loglikelihood", ()),
    ("choices", "history", "loglikelihood", ()),
    ("choices", "biology", "loglikelihood", ()),
)
# weights of prefill, weights and KV of decode
_PLANS = {
    "bf16": ("bf16", "bf16", "bf16"),
    "fp8": ("fp8", "fp8", "bf16"),
    "fp8-kv": ("bf16", "bf16", "fp8"),
    "int4": ("bf16", "int4", "bf16"),
}
_SAMPLE = (
    *("item_pk", "request_hash", "settings_hash", "rendered_hash", "repeat", "through", "status", "error_class"),
    *("error_message", "prompt", "finish_reason", "prompt_tokens", "answer_tokens", "stage_tokens", "handed_over"),
    *("timings", "created_at"),
)


def write_large(path: Path, samples: int = 2_000_000) -> Path:
    """Writes a new database of about so many samples: 60 nights of three arms, then a run of four large ones."""
    large = round(LARGE_SHARE * samples) // LARGE_ARMS
    nightly = round((1 - LARGE_SHARE) * samples) // (NIGHTS * NIGHTLY_ARMS)
    half_done = path.with_name(path.name + ".part")
    half_done.unlink(missing_ok=True)
    with open_store(half_done, create=True) as store, closing(_bare(half_done)) as bare:
        _nights(store, bare, nightly)
        _large_run(store, bare, large)
        bare.execute("ANALYZE")
        bare.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return half_done.replace(path)


def _bare(path: Path) -> sqlite3.Connection:
    """A connection that does not wait for the disk: a killed process starts over."""
    bare = sqlite3.connect(path, isolation_level=None)
    bare.execute("PRAGMA synchronous = OFF")
    bare.execute("PRAGMA cache_size = -400000")
    return bare


def _nights(store: Store, bare: sqlite3.Connection, items: int) -> None:
    decided: dict[tuple[str, bool], Any] = {}
    first: ArmRecord | None = None
    for night in range(NIGHTS):
        damaged = night >= REGRESSION_AT
        run_id = _open_run(store, "nightly", night)
        for name in ("bf16", "fp8", "fp8-kv"):
            arm_id = _open_arm(store, run_id, name, items, changed=damaged and name == "fp8-kv")
            if first is None:
                _write(store, run_id, arm_id, items)
            else:
                lost, gained = {"bf16": (0, 0), "fp8": (331, 337)}.get(name, (23 if damaged else 307, 311))
                _copy(bare, first.id, run_id, arm_id, lost, gained)
            writer.finish_arm(store, arm_id, None, "matched")
            first = first or queries.arms(store, run_id)[0]
        assert first is not None
        writer.finish_run(store, run_id)
        _date(bare, run_id, night)
        if night == 0:
            first = queries.arms(store, run_id)[0]  # of a finished run now
            promote(store, first, "prod", "first night")
        for arm in queries.arms(store, run_id)[1:]:
            key = (arm.name, damaged)
            decided[key] = decided.get(key) or _decide(store, first, arm)
            _save(store, first, arm, decided[key])


def _large_run(store: Store, bare: sqlite3.Connection, items: int) -> None:
    run_id = _open_run(store, "release", NIGHTS)
    first = _open_arm(store, run_id, "bf16", items, changed=False)
    _write(store, run_id, first, items)
    writer.finish_arm(store, first, None, "matched")
    for name, lost, gained in (("fp8", 331, 337), ("fp8-kv", 211, 401), ("int4", 19, 97)):
        arm_id = _open_arm(store, run_id, name, items, changed=False)
        _copy(bare, first, run_id, arm_id, lost, gained)
        writer.finish_arm(store, arm_id, None, "matched")
    writer.finish_run(store, run_id)
    _date(bare, run_id, NIGHTS)
    base, *others = queries.arms(store, run_id)
    for arm in others:
        _save(store, base, arm, _decide(store, base, arm))


def _open_run(store: Store, experiment: str, seed: int) -> int:
    about: dict[str, Any] = {"experiment": experiment, "experiment_hash": experiment, "resolved": {}}
    return writer.open_run(store, **about, baseline="bf16", seed=seed)


def _open_arm(store: Store, run_id: int, name: str, items: int, *, changed: bool) -> int:
    first, weights, kv = _PLANS[name]
    engine = "2" if changed else "1"
    return writer.open_arm(
        store,
        run_id,
        name=name,
        fingerprint=f"{name}-{engine}",
        plan=f"w={first},kv=bf16 > w={weights},kv={kv}",
        stages={"prefill": {"weights": first, "kv": "bf16"}, "decode": {"weights": weights, "kv": kv}},
        injected={},
        details={"engine": engine},
        expected=items,
    )


def _write(store: Store, run_id: int, arm_id: int, items: int) -> None:
    batch = 5_000
    for start in range(0, items, batch):
        writer.add_samples(store, run_id, arm_id, list(_samples(start, min(items, start + batch))))


def _samples(start: int, end: int) -> Iterator[NewSample]:
    for i in range(start, end):
        suite, family, scored_by, beside = FAMILIES[i % len(FAMILIES)]
        right = i * 7 % 4 > 0
        error = None if right or scored_by == "loglikelihood" else f"wrong_{i % 5}"
        values = {"failure.any": 0.0, "triggered": float(family == "choose")}
        scores = [NewScore(metric="correct", filter="none", value=float(right), error_class=error)]
        scores += [NewScore(metric=name, filter="none", value=values.get(name, 1.0)) for name in beside]
        decoded = scored_by == "generation"
        answer = f'{{"answer": {i}, "why": "because"}}' if decoded else '{"logprobs": [-1.5, -0.5], "gold": 1}'
        yield NewSample(
            suite=suite,
            item_id=f"{family}-{i:06}",
            item_hash=f"{i:08x}",
            family=family,
            cluster="",
            metric="correct",
            filter="none",
            chance=0.0,
            scored_by=scored_by,
            request_hash=f"{i:08x}",
            settings_hash="",
            rendered_hash=f"{i:08x}",
            through="" if decoded else "decode",
            prompt=f"Question {i}: what follows?",
            answer=answer,
            finish_reason="stop" if decoded else None,
            prompt_tokens=40,
            answer_tokens=8 if decoded else None,
            stage_tokens={"prefill": 1, "decode": 7},
            handed_over=True,
            timings={"prefill_s": 0.01, "decode_s": 0.05},
            scoring_version="1",
            scores=tuple(scores),
        )


def _copy(bare: sqlite3.Connection, source: int, run_id: int, arm_id: int, lost: int, gained: int) -> None:
    """Copies an arm's samples and scores; one in `lost` of the right items turns wrong, one in `gained` right."""
    bare.execute("BEGIN IMMEDIATE")
    (top, first, count) = bare.execute(
        "SELECT (SELECT max(id) FROM samples), min(id), count(*) FROM samples WHERE arm_id = ?", (source,)
    ).fetchone()
    by = top + 1 - first
    columns = ", ".join(_SAMPLE)
    bare.execute(
        f"INSERT INTO samples (id, run_id, arm_id, arm_fingerprint, {columns}, answer, escaped) "
        f"SELECT id + ?, ?, ?, (SELECT fingerprint FROM arms WHERE id = ?), {columns}, "
        "CASE WHEN ? AND id % ? = 1 THEN replace(answer, 'because', 'who knows') ELSE answer END, 0 "
        "FROM samples WHERE arm_id = ? ORDER BY id",
        (by, run_id, arm_id, arm_id, lost, lost or 1, source),
    )
    bare.execute(
        "INSERT INTO scores (id, sample_id, scoring_version, metric, filter, value, error_class) "
        "SELECT id + (SELECT max(id) FROM scores) + 1 - (SELECT min(id) FROM scores WHERE sample_id = ?), "
        "sample_id + ?, scoring_version, metric, filter, "
        "CASE WHEN metric != 'correct' THEN value WHEN ? AND sample_id % ? = 1 THEN 0 "
        "WHEN ? AND sample_id % ? = 2 THEN 1 ELSE value END, "
        "CASE WHEN metric = 'correct' AND ? AND sample_id % ? = 1 THEN 'wrong_value' ELSE error_class END "
        "FROM scores WHERE sample_id BETWEEN ? AND ? ORDER BY id",
        (first, by, lost, lost or 1, gained, gained or 1, lost, lost or 1, first, first + count - 1),
    )
    bare.execute("UPDATE arms SET stored = ? WHERE id = ?", (count, arm_id))
    bare.execute("COMMIT")


def _date(bare: sqlite3.Connection, run_id: int, night: int) -> None:
    day = f"2026-{9 + night // 30:02}-{1 + night % 30:02}"
    bare.execute(
        "UPDATE runs SET created_at = ?, finished_at = ? WHERE id = ?",
        (f"{day}T02:00:00+00:00", f"{day}T02:25:00+00:00", run_id),
    )


def _decide(store: Store, base: ArmRecord, arm: ArmRecord) -> Any:
    return decide_gate(base, arm, queries.pairs(store, base, arm), POLICY), arm.address


def _save(store: Store, base: ArmRecord, arm: ArmRecord, decided: Any) -> None:
    found, address = decided
    decision = json.loads(json.dumps(found.to_json()).replace(f'"{address}"', f'"{arm.address}"'))
    writer.save_decision(store, base.id, arm.id, found.policy_sha256, found.verdict, found.exit_code, decision)
