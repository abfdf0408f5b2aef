"""Tables of item and correctness: what counts, what is an error, what is refused with its line."""

import pytest

from evalsvc.errors import ConfigError
from evalsvc.recorded.outcomes import read_arm, read_table, value_of


def values(samples):
    return [(s.item_id, s.status, *(score.value for score in s.scores)) for s in samples]


@pytest.mark.parametrize(
    "content",
    [
        "item,correct\na,1\nb,0\nc,0.5\n",
        "\ufeffitem,correct\r\na,1\r\nb,0\r\nc,.5\r\n",
        "item;correct\na;TRUE\n\nb;false\nc;5e-1\n",
        "correct\titem\n1\ta\n0\tb\n0.5\tc",
    ],
)
def test_a_csv_is_read_whatever_its_marks_and_line_ends(write, content):
    found = read_arm([write("a.csv", content)], "n", "unknown")
    assert values(found) == [("a", "scored", 1.0), ("b", "scored", 0.0), ("c", "scored", 0.5)]
    assert {(s.suite, s.family, s.metric, s.rendered_hash) for s in found} == {("n", "n", "correct", None)}


@pytest.mark.parametrize("cell", ["", "NaN", "nan", " Error ", "null", "None", "N/A"])
def test_what_holds_no_value_is_an_error_and_never_wrong(write, cell):
    """An outage of the judge, scored as wrong, would make every arm look equally plausible."""
    (sample,) = read_arm([write("a.csv", f"item,correct\na,{cell}\n")], "n", "unknown")
    assert (sample.status, sample.scores, sample.error_class) == ("error", (), "recorded")


def test_an_error_beside_a_value_is_an_error(write):
    (sample,) = read_arm([write("a.csv", "item,correct,error\na,0,HTTP 402\n")], "n", "unknown")
    assert (sample.status, sample.scores, sample.error_message) == ("error", (), "HTTP 402")


def test_rows_of_json_carry_everything(write):
    rows = (
        '{"item": 7, "correct": true, "suite": "s", "family": "f", "cluster": "c", "repeat": 1, "answer": "\\u2028"}\n'
        '{"item": 7, "error": "timeout", "suite": "s", "family": "f", "cluster": "c", "repeat": 2}\n'
        '{"item": 8, "correct": NaN, "suite": "s", "family": "f", "cluster": "", "repeat": 0, "answer": null}\n'
    )
    found = read_arm([write("a.jsonl", rows)], "n", "unknown")
    assert [(s.suite, s.family, s.cluster, s.item_id, s.repeat, s.status, s.answer) for s in found] == [
        ("s", "f", "c", "7", 1, "scored", "\u2028"),
        ("s", "f", "c", "7", 2, "error", ""),
        ("s", "f", "", "8", 0, "error", ""),
    ]


def test_one_item_in_two_tables_or_arms_has_one_hash(write):
    one = read_arm([write("a.csv", "item,correct,answer\na,1,yes\n")], "n", "unknown")[0]
    other = read_arm([write("b.jsonl", '{"correct": 0, "item": "a", "answer": "no"}')], "n", "unknown")[0]
    assert one.key == other.key and one.answer != other.answer
    renamed = read_arm([write("c.csv", "item,correct,cluster\na,1,p0\n")], "n", "unknown")[0]
    assert renamed.item_hash != one.item_hash  # the gate shall see that arms disagree about an item


def test_a_table_of_arms_gives_each_its_column(write):
    found = read_table(write("t.csv", "item,suite,big,small\na,s,1,0\nb,s,,1\n"), "n", "unknown")
    assert {arm: values(samples) for arm, samples in found.items()} == {
        "big": [("a", "scored", 1.0), ("b", "error")],
        "small": [("a", "scored", 0.0), ("b", "scored", 1.0)],
    }


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "item,correct\na,1\na,0\n", r"a\.csv:3: item 'a' of suite 'n' stands already in .*a\.csv:2"),
        ("a.csv", "item,correct,repeat\na,1,1\na,0,1\n", r"a\.csv:3: .*\(repeat 1\) stands already"),
        ("a.csv", "item,correct,repeat\na,1,x\n", r"a\.csv:2: repeat 'x' is no whole number"),
        ("a.csv", "item,correct\na,1\nb,2\n", r"a\.csv:3: '2' is neither 0, 1, true, false nor a score"),
        ("a.csv", "item,correct\na,-0.1\n", r"a\.csv:2: '-0\.1' is neither"),
        ("a.csv", "item,correct\na,inf\n", r"a\.csv:2: 'inf' is neither"),
        ("a.csv", "item,correct\na,0_1\n", r"a\.csv:2: '0_1' is neither"),
        ("a.csv", "item,correct\na,yes\n", r"a\.csv:2: 'yes' is neither"),
        ("a.csv", "item,correct\n,1\n", r"a\.csv:2: the item has no name"),
        ("a.csv", "item,correct\na,1,2\n", r"a\.csv:2: has 3 cells, the header names 2"),
        ("a.csv", 'item,correct\n"a,1\n', r"a\.csv:2: is no CSV"),
        ("a.csv", "item,item,correct\na,a,1\n", r"a\.csv:1: column 'item' stands in the header twice"),
        ("a.csv", "item,,correct\na,a,1\n", r"a\.csv:1: a column has no name"),
        ("a.csv", "items,correct\na,1\n", r"a\.csv: has no column 'item', only items, correct; is it 'items'"),
        ("a.csv", "item,big,small\na,1,0\n", r"a\.csv: has no column 'correct', .* use --table"),
        ("a.csv", "item,correct,zzz\na,1,0\n", r"a\.csv: unknown column 'zzz'; known: item"),
        ("a.csv", "item,correct\n", r"a\.csv: holds no rows$"),
        ("a.jsonl", "\n", r"a\.jsonl: holds no rows$"),
        ("a.jsonl", '{"item": 1, "answer": "x"}\n', r"a\.jsonl: has no column 'correct', only item, answer$"),
        ("a.csv", b"\xff\xfe", r"a\.csv: is not UTF-8 text"),
        (
            "a.jsonl",
            '{"item": 1, "correct": 1}\n{"item": 2, "corr',
            r"a\.jsonl:2: is cut off; the file was not written",
        ),
        ("a.jsonl", '{"item": 1, "correct": 1}\n{"item" 2}\n', r"a\.jsonl:2: is no JSON \("),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1: is no JSON object"),
        ("a.jsonl", "[" * 100_000 + "\n", r"a\.jsonl:1: is no JSON"),
        ("a.jsonl", '{"item": 1, "correct": 1}\n{"item": 2}\n', r"a\.jsonl:2: column 'correct' is not in every row"),
        ("a.jsonl", '{"item": 1, "correct": 1}\n{"item": 2, "correct": 1, "suite": "x"}\n', r":2: column 'suite'"),
        ("a.jsonl", '{"item": {"a": 1}, "correct": 1}\n', r"a\.jsonl:1: item .* is no text"),
        ("a.jsonl", '{"item": 1, "correct": [1]}\n', r"a\.jsonl:1: '\[1\]' is neither"),
        ("a.jsonl", '{"item": 1, "correct": ' + "9" * 400 + "}\n", r"a\.jsonl:1: '999.* is neither"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_with_file_and_line(write, name, content, says):
    with pytest.raises(ConfigError, match=says) as caught:
        read_arm([write(name, content)], "n", "unknown")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("item,correct,big\na,1,1\n", "column 'correct' belongs to a table of one arm"),
        ("item,error,big\na,1,1\n", "column 'error' belongs to a table of one arm"),
        ("items,big\na,1\n", "has no column 'item', only items, big"),
        ("item,suite\na,1\n", "has no column of an arm"),
        ("item,big\na,x\n", "'x' is neither"),
        ("item,big,small\na,1,1\na,1,1\n", r":3: item 'a' of suite 'n' stands already"),
    ],
)
def test_a_table_of_arms_is_held_to_the_same(write, content, says):
    with pytest.raises(ConfigError, match=says):
        read_table(write("t.csv", content), "n", "unknown")


def test_a_long_answer_is_no_hindrance(write):
    (sample,) = read_arm([write("a.csv", f"item,correct,answer\na,1,{'x' * 300_000}\n")], "n", "unknown")
    assert len(sample.answer) == 300_000


@pytest.mark.parametrize(("cell", "value"), [(True, 1.0), (False, 0.0), (0, 0.0), (1, 1.0), (0.25, 0.25), (None, None)])
def test_values_of_json(cell, value):
    assert value_of(cell) == value
