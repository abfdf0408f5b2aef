"""Long texts are stored small and read as they were; so are tokens."""

import json
import os
import sqlite3

import pytest

from evalsvc.errors import StoreError
from evalsvc.store import queries, writer
from evalsvc.store.answers import answers
from evalsvc.store.bulk import dumps
from evalsvc.store.records import Turn
from evalsvc.store.texts import PACKED_FROM, pack, unpack


@pytest.mark.parametrize(
    "text", ["", "x", "é" * (PACKED_FROM - 1), "a\x00b\r\n" * PACKED_FROM, "\U0001f600" * PACKED_FROM]
)
def test_a_text_comes_back_from_its_packed_form(text):
    assert unpack(pack(text)) == text
    assert isinstance(pack(text), bytes) == (len(text) >= PACKED_FROM)


def test_a_long_answer_and_its_tokens_take_a_fraction_of_the_file(path, store, build):
    run_id = build.run()
    long = "and so on, in the same words as before; " * 200
    tokens = tuple(range(1000, 3000))
    sample = build.sample(0, answer=long, prompt=long, turns=(Turn(long, "stop", tokens), Turn(None, None, (1, 2))))
    writer.add_samples(store, run_id, build.arm(run_id), [sample])
    (stored,) = answers(store, queries.resolve_arm(store, f"{run_id}:base"))
    assert (stored.answer, stored.prompt) == (long, long)
    assert stored.turns == (Turn(long, "stop", tokens), Turn(None, None, (1, 2)))
    with sqlite3.connect(path) as raw:
        answer, kind = raw.execute("SELECT answer, typeof(answer) FROM samples").fetchone()
        assert kind == "blob" and len(answer) < len(long) / 20
        ids = raw.execute("SELECT typeof(token_ids), length(token_ids) FROM turns ORDER BY turn").fetchall()
        assert ids[0][0] == "blob" and ids[0][1] < len(json.dumps(tokens)) / 2 and ids[1] == ("text", 6)


@pytest.mark.parametrize(
    "damage",
    ["samples SET answer = x'7801ff'", "samples SET answer = CAST(x'ff41' AS TEXT)", "turns SET token_ids = '[1'"],
)
def test_a_value_that_was_damaged_inside_whole_pages_is_said_to_be(path, store, build, damage):
    run_id = build.run()
    writer.add_samples(
        store, run_id, build.arm(run_id), [build.sample(0, answer="x", turns=(Turn(None, None, (1, 2)),))]
    )
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE {damage}")
    with pytest.raises(StoreError, match="is damaged; restore a copy"):
        answers(store, queries.resolve_arm(store, f"{run_id}:base"))


def test_a_text_that_was_escaped_is_marked(path, store, build):
    run_id = build.run()
    samples = [
        build.sample(0, answer="x \ud835 y"),
        build.sample(1, answer="x \U0001d465 y"),
        build.sample(2, prompt="\udc80"),
    ]
    writer.add_samples(store, run_id, build.arm(run_id), samples)
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT answer, escaped FROM samples ORDER BY id").fetchall() == [
            ("x \\ud835 y", 1),
            ("x \U0001d465 y", 0),
            ("4", 1),
        ]


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, True, 'é"\n']}, [], None, "x", 1.0, {1: 2}, {"": {"b": -0.0}}])
def test_json_is_written_as_the_standard_library_writes_it(value):
    assert dumps(value) == json.dumps(value)


def test_what_is_no_json_is_refused(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    for timings in ({"decode_s": float("inf")}, {"decode_s": {1}}):
        with pytest.raises(StoreError, match=r"not finite|not JSON serializable"):
            writer.add_samples(store, run_id, arm_id, [build.sample(0, timings=timings)])


def test_counts_of_an_arm_follow_its_samples(store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    for samples, expected in (
        ([build.sample(0), build.error(1), build.error(2)], (3, 2)),
        ([build.sample(0), build.sample(1), build.error(2)], (3, 1)),
        ([build.error(3), build.sample(3), build.sample(4), build.sample(4)], (5, 1)),
        ([build.sample(2, None, status="skipped")], (5, 0)),
    ):
        writer.add_samples(store, run_id, arm_id, samples)
        record = queries.run_record(store, run_id)
        assert (record.samples, record.errors) == expected
        assert queries.arm_totals(store, arm_id).errors == expected[1]


def test_more_samples_at_once_than_a_statement_has_variables(path, store, build):
    run_id = build.run()
    arm_id = build.arm(run_id)
    samples = [build.sample(i, answer=os.urandom(4).hex()) for i in range(40_000)]
    assert writer.add_samples(store, run_id, arm_id, samples) == 40_000
    assert writer.add_samples(store, run_id, arm_id, samples[::-1]) == 0
    assert len(writer.done_keys(store, arm_id)) == 40_000
