"""Each way in which an argument can be right, and values that nearly are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.suites.toolcall.matchers import Matcher, example, matches

BIG = 10**23 + 1


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        (5, [5], [5.0, "5", True, None, [5]]),
        (None, [None], [0, "", False, {}]),
        ("a", ["a"], ["A", " a", 1]),
        ({"exact": {"a": [1, 2]}}, [{"a": [1, 2]}], [{"a": [2, 1]}, {}, {"a": [1, 2], "b": 1}]),
        ({"exact": BIG}, [BIG], [BIG - 1, float(BIG)]),
        ({"one_of": [1, "one", [1]]}, [1, "one", [1]], [True, 1.0, "One", []]),
        ({"any_of": [{"number": 1}, "one"]}, [1, 1.0, "one"], [2, "two"]),
        ({"number": 5}, [5, 5.0], [5.0001, "5", True, float("nan"), float("inf"), None]),
        ({"number": 0.3, "rel": 1e-9}, [0.1 + 0.2, 0.3], [0.3001]),
        ({"number": 100, "abs": 1}, [99, 101, 100.5], [98.999, 101.001]),
        ({"number": -100, "rel": 0.01}, [-101, -99], [-101.1, 100]),
        ({"number": 0, "rel": 0.5}, [0], [1e-300]),
        ({"number": BIG}, [BIG], [BIG - 1, float(BIG)]),
        ({"number": 1, "abs": 1}, [10**0, 2], [10**400, -(10**400)]),
        ({"regex": r"\d{4}-\d\d"}, ["2027-03"], ["2027-03-01", " 2027-03", 2027]),
        ({"regex": "(a|a)*b"}, ["aab"], ["a" * 60]),
        ({"same_text": "New York"}, ["new york", "NEWYORK", " New\n York "], ["New-York", "York", 1]),
        ({"same_text": ["Rome", "Roma"], "ignore": "-,"}, ["roma", "R-o-m-e,"], ["Romo"]),
        (
            {"object": {"a": 1, "b": {"any": True, "optional": True}}},
            [{"a": 1}, {"a": 1, "b": []}],
            [{}, {"a": 1, "c": 1}],
        ),
        ({"items": [1, {"number": 2}]}, [[1, 2.0]], [[1], [2, 1], [1, 2, 3], "12", {"0": 1}]),
        ({"any": True}, [None, 1, "x", {}], []),
    ],
)
def test_right_and_nearly_right_values(wanted, right, wrong):
    matcher = Matcher.model_validate(wanted)
    assert [value for value in right if not matches(value, matcher)] == []
    assert [value for value in wrong if matches(value, matcher)] == []
    if matcher.regex is None:
        assert matches(example(matcher), matcher)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(value=json_values, other=json_values)
def test_an_exact_value_takes_itself_and_no_other(value, other):
    matcher = Matcher.model_validate({"exact": value})
    assert matches(value, matcher)
    if repr(value) != repr(other) and value != other:
        assert not matches(other, matcher)


@given(number=st.integers() | st.floats(allow_nan=False, allow_infinity=False), off=st.floats(0, 1e6))
def test_a_tolerance_is_symmetric_and_includes_its_end(number, off):
    matcher = Matcher.model_validate({"number": number, "abs": off})
    near = [number] if abs(number) > 1e15 else [number, int(number)]
    for got in near:
        assert matches(got, matcher) == (abs(got - number) <= off)


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({}, "exactly one of"),
        ({"exact": 1, "any": True}, "exactly one of"),
        ({"any": False}, "exactly one of"),
        ({"city": "Rome"}, "Extra inputs"),
        ({"one_of": []}, "at least 1 item"),
        ({"same_text": []}, "empty list"),
        ({"number": True}, "number"),
        ({"number": float("inf")}, "not a number"),
        ({"number": 1, "abs": -1}, "greater than or equal to 0"),
        ({"exact": 1, "rel": 0.1}, "`abs` and `rel` go with `number`"),
        ({"regex": "a", "ignore": "b"}, "`ignore` goes with `same_text`"),
        ({"regex": None}, "`regex` has no value"),
        ({"exact": float("nan")}, "not JSON"),
        ({"exact": {1: 2}}, "not JSON"),
    ],
)
def test_what_is_no_matcher_is_refused(wanted, complaint):
    with pytest.raises(ValueError, match=complaint):
        Matcher.model_validate(wanted)


def test_a_date_of_yaml_is_refused_with_advice():
    import datetime

    with pytest.raises(ValueError, match="a date in YAML stands in quotes"):
        Matcher.model_validate({"exact": datetime.date(2027, 3, 9)})
