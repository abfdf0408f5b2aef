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
    plain, own = Policy(name="p"), Policy(name="p", guard_points_by_suite={"tools": 10.0})
    assert (own.guard("tools"), own.guard("tasks")) == (0.10, 0.05)
    assert plain.sha256 != own.sha256 and plain.sha256 == Policy(name="p").sha256


@pytest.mark.parametrize("key", ["margin_points", "guard_points", "alpha", "max_error_points"])
@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "-1", "1e999", "yes", "'5'", "[5]", "~", "1" + "0" * 400])
def test_no_number_that_is_none(tmp_path, key, value):
    assert refusal(tmp_path, f"name: p\n\n{key}: {value}\n").startswith(f":3: '{key}'")


@pytest.mark.parametrize("value", ["0", "0.0", "0.5", "1", "5e-2"])
def test_an_alpha_that_is_no_error_rate(tmp_path, value):
    assert refusal(tmp_path, f"name: p\nalpha: {value}\n").startswith(":2: 'alpha'")


def test_an_unknown_key_names_its_line_and_the_nearest_key(tmp_path):
    assert refusal(tmp_path, "name: p\nalpha: 0.05\nmargin_point: 1\n") == (
        ":3: unknown key 'margin_point'; did you mean 'margin_points'?"
    )


def test_a_key_given_twice_is_refused_wherever_it_stands(tmp_path):
    text = "name: p\nmargin_points: 1\nmargin_points: 90\n"
    assert refusal(tmp_path, text) == ":3: key 'margin_points' stands already in line 2"
    nested = "name: p\nguard_points_by_suite:\n  tools: 1\n  tools: 90\n"
    assert refusal(tmp_path, nested).startswith(":4: key 'tools'")


def test_a_nested_value_names_its_own_line(tmp_path):
    text = "name: p\nguard_points_by_suite:\n  tools: 1\n  tasks: -3\n"
    assert refusal(tmp_path, text).startswith(":4: 'guard_points_by_suite.tasks'")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no keys"),
        ("- name: p\n", "holds no keys"),
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
        ("name: p\n1: 2\n", ":2: '1': keys should be strings"),
        ("name: 2026-13-45\n", "is no YAML"),
        ("&a [*a]\n", "is no YAML"),
    ],
)
def test_what_is_no_policy(tmp_path, text, says):
    assert says in refusal(tmp_path, text)


def test_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_policy(path)
