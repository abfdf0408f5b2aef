"""Policy files: what is read, and what a mistyped one says."""

from pathlib import Path

import pytest

from evalsvc.errors import ConfigError
from evalsvc.policy import Policy, load_policy

DEMO = Path(__file__).parents[2] / "data" / "policies" / "demo.yaml"


def refusal(tmp_path, text):
    path = tmp_path / "p.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    message = str(caught.value)
    assert "\n" not in message and "p.yaml" in message
    return message.split("p.yaml", 1)[1]


def test_the_demo_policy_says_what_it_says():
    policy = load_policy(DEMO)
    assert (policy.margin, policy.guard("tools"), policy.alpha) == (0.05, 0.15, 0.05)
    assert (policy.proof, policy.rendering, policy.guards) == ("required", "same", "listed")


def test_a_suite_can_have_its_own_guard_and_the_hash_sees_it():
    plain, own = Policy(name="p"), Policy(name="p", margins=[{"suite": "tools", "margin_points": 10.0}])
    assert (own.guard("tools"), own.guard("tasks")) == (0.10, 0.05)
    assert plain.sha256 != own.sha256 and plain.sha256 == Policy(name="p").sha256


@pytest.mark.parametrize("key", ["margin_points", "guard_points", "alpha", "max_error_points"])
@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "-1", "1e999", "yes", "'5'", "[5]", "~", "1" + "0" * 400])
def test_no_number_that_is_none(tmp_path, key, value):
    assert refusal(tmp_path, f"name: p\n\n{key}: {value}\n").startswith(f":3: '{key}'")


@pytest.mark.parametrize("value", ["0", "0.0", "0.5", "1", "5e-2"])
def test_an_alpha_that_is_no_error_rate(tmp_path, value):
    assert refusal(tmp_path, f"name: p\nalpha: {value}\n").startswith(":2: 'alpha'")


@pytest.mark.parametrize(
    ("written", "read"),
    [("1:30", "90"), ("1_0", "10"), ("010", "8"), ("-010", "-8"), ("1:30.5", "90.5"), ("!!int '010'", "8")],
)
def test_a_number_that_yaml_reads_as_another_is_refused(tmp_path, written, read):
    """A margin of 1:30 would be one of 90 points, under which nothing is REGRESSED."""
    said = refusal(tmp_path, f"name: p\nmargins:\n  - suite: a\n    margin_points: {written}\n")
    number = written.removeprefix("!!int ").strip("'")
    assert said.startswith(f":4: 'margins.0.margin_points': {number} is {read} to YAML; write it in digits alone")


@pytest.mark.parametrize("written", ["0", "0.5", "00.5", "10", "0x10", "1.0e+1"])
def test_a_number_that_is_plain_is_read(tmp_path, written):
    path = tmp_path / "p.yaml"
    path.write_text(f"name: '1:30'\nmargin_points: {written}\n")
    assert load_policy(path).name == "1:30"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("alpha", "5e-2", "not '5e-2'; YAML takes 5e-2 for a text, write 0.05 or 5.0e-2"),
        ("alpha", "'5e-2'", "not '5e-2'; leave the quotes out and write 0.05 or 5.0e-2"),
        ("margin_points", "1e0", "not '1e0'; YAML takes 1e0 for a text, write 1 or 1.0e+0"),
        ("margin_points", "1.5e0", "not '1.5e0'; YAML takes 1.5e0 for a text, write 1.5 or 1.5e+0"),
        ("alpha", "1e-7", "not '1e-7'; YAML takes 1e-7 for a text, write 1.0e-7"),
        ("alpha", "'0.05'", "not '0.05'; leave the quotes out"),
        ("alpha", "'5.0e-2'", "not '5.0e-2'; leave the quotes out"),
        ("margin_points", "08", "not '08'; YAML takes 08 for a text, write 8"),
        ("margin_points", "'08'", "not '08'; leave the quotes out and write 8"),
        ("margin_points", "'+5'", "not '+5'; leave the quotes out and write 5"),
        ("margin_points", "'.5'", "not '.5'; leave the quotes out and write 0.5"),
        ("alpha", "+05e-2", "not '+05e-2'; YAML takes +05e-2 for a text, write 0.05 or 5.0e-2"),
        ("alpha", "'nan'", "not 'nan'"),
        ("alpha", "nan", "not 'nan'"),
        ("alpha", "'1_0'", "not '1_0'"),
        ("alpha", "1e999", "not '1e999'"),
    ],
)
def test_the_remedy_for_a_text_in_place_of_a_number_helps(tmp_path, key, value, says):
    assert refusal(tmp_path, f"name: p\n{key}: {value}\n") == f":2: '{key}': wants a number, {says}"


def test_an_unknown_key_names_its_line_and_the_nearest_key(tmp_path):
    assert refusal(tmp_path, "name: p\nalpha: 0.05\nmargin_point: 1\n") == (
        ":3: unknown key 'margin_point'; did you mean 'margin_points'?"
    )


def test_a_key_given_twice_is_refused_wherever_it_stands(tmp_path):
    text = "name: p\nmargin_points: 1\nmargin_points: 90\n"
    assert refusal(tmp_path, text) == ":3: key 'margin_points' stands already in line 2"
    nested = "name: p\nmargins:\n  - {suite: a, margin_points: 1}\n  - suite: b\n    margin_points: 1\n    suite: c\n"
    assert refusal(tmp_path, nested).startswith(":6: key 'suite'")


def test_a_nested_value_names_its_own_line(tmp_path):
    text = "name: p\nmargins:\n  - {suite: tools, margin_points: 1}\n  - suite: tasks\n    margin_points: -3\n"
    assert refusal(tmp_path, text).startswith(":5: 'margins.1.margin_points'")


# each line's alias stands for ten of the line's before: 10 ** 9 values in 500 bytes
BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": is empty; write `key: value` lines"),
        ("- name: p\n", ": holds a list and no keys"),
        ("alpha: 0.05\n", ":1: key 'name' is missing"),
        ("name: p\nproof: maybe\n", ":2: 'proof'"),
        ("name: p\n  alpha: 1\n", ":2: is no YAML"),
        ("name: [p\n", "is no YAML"),
        ("name: p\n---\nname: q\n", "is no YAML"),
        ("name: !!python/object/apply:os.getcwd []\n", ":1: is no YAML"),
        ("name: p\u0000\n", "is no YAML"),
        (b"name: \xff\xfe\n", "is not UTF-8"),
        ("a: " + "[" * 5000 + "]" * 5000, "is no YAML"),
        ("name: p\n? [a]\n: 1\n", "is no YAML"),
        ("name: p\n1: 2\n", ":2: key '1' is no text; put it in quotes"),
        ("name: 2026-13-45\n", "is no YAML"),
        ("&a [*a]\n", ":1: an alias stands inside what it stands for"),
        (f"a: &a [{', '.join('x' * 10)}]\n{BOMB}", "its aliases stand for"),
        ("jobs: {}\n", ": is a jobs file, and a policy file is wanted here; `--jobs` takes it"),
        ('{"id": "a", "prompt": "p"}\n{"id": "b", "prompt": "p"}\n', ": is a case file, and a policy file is wanted"),
    ],
)
def test_what_is_no_policy(tmp_path, text, says):
    assert says in refusal(tmp_path, text)


def test_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_policy(path)


RULE = "name: p\nmargins:\n  - {suite: a, margin_points: 1}\n  - suite: tools\n"
REFUSED = {
    "    margin_points: .nan\n": ":5: 'margins.1.margin_points'",
    "    margin_points: -1\n": ":5: 'margins.1.margin_points'",
    "    margin_points: '3'\n": ":5: 'margins.1.margin_points'",
    "    margin_points: true\n": ":5: 'margins.1.margin_points'",
    "    margin_points: 100\n": ":5: 'margins.1.margin_points'",
    "    margin_points:\n": ":5: 'margins.1.margin_points': has no value",
    "    margin_points: 1\n    floor_points: 101\n": ":6: 'margins.1.floor_points'",
    "    margin_points: 1\n    floor_points: 0\n": ":6: 'margins.1.floor_points'",
    "    family: ''\n    margin_points: 1\n": ":5: 'margins.1.family'",
    "    family: f\n": ":4: 'margins.1': names no limit",
    "    margin: 0.1\n": ":5: 'margins.1.margin': is in a metric's own units; name the metric",
    "    metric: ppl\n    margin: .inf\n": ":6: 'margins.1.margin'",
    "    metric: ppl\n    margin: -0.1\n": ":6: 'margins.1.margin'",
    "    metric: ppl\n    margin: 0.1\n    better: less\n": ":7: 'margins.1.better'",
    "    metric: ppl\n    margin: 0.1\n    statistic: median\n": ":7: 'margins.1.statistic'",
    "    metric: ppl\n    margin: 0.1\n    margin_points: 1\n": ":7: 'margins.1.margin_points': is for metrics",
    "    metric: ppl\n    margin: 0.1\n    floor_points: 1\n": ":7: 'margins.1.floor_points': is for metrics",
    "    metric: acc\n    margin_points: 1\n    better: lower\n": ":7: 'margins.1.better': belongs to a margin in",
    "    margin_point: 1\n": ":5: unknown key 'margins.1.margin_point'; did you mean 'margin_points'?",
    "    margin_points: 1\n  - {margin_points: 1, suite: a}\n": ":6: 'margins.2': is a second rule for suite 'a'",
}


@pytest.mark.parametrize("rest", REFUSED)
def test_rules_that_could_turn_a_gate_round(tmp_path, rest):
    assert refusal(tmp_path, RULE + rest).startswith(REFUSED[rest])


def test_rules_for_unequal_places_stand_side_by_side(tmp_path):
    path = tmp_path / "p.yaml"
    rest = (
        "    margin_points: 1\n  - {suite: tools, family: f, margin_points: 1}\n  - {suite: a, metric: m, margin: 1}\n"
    )
    path.write_text(RULE + rest)
    assert [rule.place for rule in load_policy(path).margins][1:] == [
        ("tools", None, None),
        ("tools", "f", None),
        ("a", None, "m"),
    ]


def test_a_guard_below_the_pooled_margin_contradicts_it(tmp_path):
    text = "name: p\nmargin_points: 5\nguard_points: 2\n"
    assert refusal(tmp_path, text).startswith(":3: 'guard_points': 2 is below margin_points 5")
    path = tmp_path / "p.yaml"
    path.write_text("name: p\nmargin_points: 8\n")
    assert load_policy(path).guard("any") == 0.08, "a guard that nobody gave is no contradiction"


@pytest.mark.parametrize("key", ["metric: m", "floor_points: 50"])
def test_a_sequential_design_reads_no_other_metrics(tmp_path, key):
    text = f"name: p\ndesign: sequential\nmargins:\n  - suite: a\n    margin_points: 1\n    {key}\n"
    assert refusal(tmp_path, text).startswith(f":6: 'margins.0.{key.split(':')[0]}': is read once")


PERPLEXITY = {"suite": "w", "metric": "ppl", "margin": 0.1, "better": "lower", "statistic": "perplexity"}


def test_what_a_decision_says_of_its_policy_can_be_read_again():
    policy = Policy(
        name="p", margins=[{"suite": "a", "margin_points": 1.0}, PERPLEXITY], budgets={"latency_p95_s": 2.0}
    )
    for dump in (policy.model_dump(), policy.model_dump(mode="json", exclude_none=True)):
        again = Policy(**dump)
        assert again == policy and again.sha256 == policy.sha256


@pytest.mark.parametrize("named", ["frob", "enginee", "note", "plan", "7"])
def test_a_setting_that_nobody_stores_is_refused_with_those_there_are(tmp_path, named):
    """It would be known of no arm, and every baseline stale."""
    said = refusal(tmp_path, f"name: p\nbaseline:\n  same:\n    - engine\n    - {named}\n")
    assert said.startswith(":5: 'baseline.same.1': wants one of tokenizer, engine, device") and named in said
