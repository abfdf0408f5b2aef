"""Experiment files: what they mean, and what is refused with its place."""

import pytest
import yaml

from evalsvc.errors import ConfigError
from evalsvc.experiment import Experiment, load_experiment, model_path

ARMS = {"base": {"plan": "w=bf16"}, "cand": {"plan": "w=fp8"}}
SUITES = [{"name": "formats", "kind": "formats", "cases": "formats.jsonl"}]


@pytest.fixture
def load(tmp_path):
    """`load(arms=..., ...)`: an experiment from a file with these keys; a string is the whole file."""

    def call(text=None, **keys):
        path = tmp_path / "experiment.yaml"
        known = {"name": "e", "model": "model", "baseline": "base", "arms": ARMS, "suites": SUITES}
        path.write_text(text if text is not None else yaml.safe_dump(known | keys, sort_keys=False))
        return load_experiment(path)

    return call


def test_defaults_are_one_thread_and_a_check_of_the_baseline_against_itself(load):
    experiment = load()
    assert (experiment.threads, experiment.batch, experiment.seed) == (1, 32, 0)
    assert experiment.aa is not None and experiment.aa.batch != experiment.batch


def test_the_check_can_be_left_out(load):
    assert load(aa=None).aa is None


def test_the_baseline_runs_first(load):
    experiment = load(baseline="cand", arms={**ARMS, "third": {"plan": "w=fp32"}})
    assert experiment.arms_in_order == ["cand", "base", "third"]


@pytest.mark.parametrize(
    ("candidate", "through", "throughs"),
    [
        ({"plan": "w=fp8"}, "auto", ("prefill", "decode")),
        ({"plan": "w=fp8 > w=bf16"}, "auto", ("prefill",)),
        ({"plan": "kv=bf16 > kv=fp8"}, "auto", ("prefill", "decode")),
        ({"plan": "w=fp8 > w=bf16"}, "both", ("prefill", "decode")),
        ({"plan": "w=fp8"}, "decode", ("decode",)),
        ({"plan": "w=fp8"}, "prefill", ("prefill",)),
    ],
)
def test_both_stages_score_where_decode_differs(load, candidate, through, throughs):
    experiment = load(arms={"base": ARMS["base"], "cand": candidate}, score_through=through)
    assert experiment.throughs == throughs


@pytest.mark.parametrize(
    ("base", "candidate", "differs"),
    [
        ({"plan": "kv=fp8:given", "scales": "a.json"}, {"plan": "kv=fp8:given", "scales": "a.json"}, False),
        ({"plan": "kv=fp8:given", "scales": "a.json"}, {"plan": "kv=fp8:given", "scales": "b.json"}, True),
        ({"plan": "kv=fp8:calibrated", "calibration": "a"}, {"plan": "kv=fp8:calibrated", "calibration": "b"}, True),
        (
            {"plan": "kv=bf16 > kv=int8:calibrated", "calibration": "a"},
            {"plan": "w=fp8 > w=bf16,kv=int8:calibrated", "calibration": "a"},
            True,
        ),
        (
            {"plan": "kv=fp8:given > kv=bf16", "scales": "a.json"},
            {"plan": "kv=fp8:given > kv=bf16", "scales": "b.json"},
            False,
        ),
    ],
)
def test_other_scales_are_another_decode_stage(load, base, candidate, differs):
    """Calibrated ones come from what prefill's weights computed."""
    experiment = load(arms={"base": base, "cand": candidate})
    assert experiment.throughs == (("prefill", "decode") if differs else ("prefill",))


def test_a_fault_in_decode_alone_is_scored_through_decode(load):
    """Equal plans and a fault: prefill could not see it."""
    arms = {"base": {"plan": "kv=fp8"}, "cand": {"plan": "kv=fp8", "inject": {"decode_k_scale": 0.5}}}
    assert load(arms=arms).throughs == ("prefill", "decode")


@pytest.mark.parametrize(
    ("keys", "line", "says"),
    [
        ({"basline": "base"}, 13, "unknown key 'basline'; did you mean 'baseline'?"),
        ({"arms": {**ARMS, "cand": {"plam": "w=fp8"}}}, 8, "unknown key 'arms.cand.plam'; did you mean 'plan'?"),
        ({"suites": [{"name": "s", "kind": "formats", "case": "x"}]}, 12, "did you mean 'cases'?"),
        ({"arms": {**ARMS, "cand": {"plan": "w=fp9"}}}, 8, "fp9"),
        (
            {"arms": {**ARMS, "cand": {"plan": "w=fp8", "inject": {"decode_k_scale": 0}}}},
            10,
            "wants more than 0, not 0",
        ),
        (
            {"arms": {**ARMS, "cand": {"plan": "w=fp8", "inject": {"decode_k_scale": float("nan")}}}},
            10,
            "wants a finite number, not .nan",
        ),
        ({"arms": {**ARMS, "a b": {"plan": "w=fp8"}}}, 9, "a name that begins with a letter"),
        ({"baseline": "nobody"}, 3, "'baseline': 'nobody' is none of the arms, which are base, cand"),
        ({"arms": {"base": ARMS["base"]}}, 4, "'arms': holds the baseline alone; add at least one candidate"),
        (
            {"arms": {"base": {"plan": "kv=fp8", "inject": {"decode_k_scale": 2}}, **{"c": ARMS["cand"]}}},
            7,
            "only a candidate may",
        ),
        ({"suites": [*SUITES, {**SUITES[0]}]}, 13, "'suites.1.name': 'formats' is already the name of suite 1"),
        ({"suites": []}, 9, "holds 0 entries and needs at least 1"),
        (
            {"suites": [{"name": "s", "kind": "chess", "cases": "x"}]},
            11,
            "wants one of lmeval, toolcall, formats, prompts, not 'chess'",
        ),
        ({"suites": [{"name": "s", "kind": "lmeval", "cases": "x"}]}, 10, "has `tasks` and no `cases`"),
        ({"aa": {"batch": True}}, 14, "'aa.batch': wants a whole number, not true"),
        ({"seed": "7"}, 13, "'seed': wants a whole number, not '7'; leave the quotes out"),
        ({"seed": "08"}, 13, "'seed': wants a whole number, not '08'; YAML takes 08 for a text, write 8"),
        ({"model": None}, 2, "'model': has no value; give a text"),
        ({"probe": 3}, 13, "'probe': wants a text, not 3; put it in quotes"),
        ({"arms": {**ARMS, "cand": "w=fp8"}}, 7, "'arms.cand': wants a mapping, such as `{plan: ...}`, not 'w=fp8'"),
        ({"suites": [{**SUITES[0], "levels": "small"}]}, 13, "wants a list, not 'small'; write [small]"),
        (
            {"score_through": "decod"},
            13,
            "wants one of auto, prefill, decode, both, not 'decod'; did you mean 'decode'?",
        ),
        ({"threads": 0}, 13, "wants at least 1, not 0"),
        ({"seed": -1}, 13, "wants at least 0, not -1"),
        ({"seed": 2**31 - 1}, 13, "wants at most 2147483646, not 2147483647"),
        ({"name": "../up"}, 1, "a name that begins with a letter or digit"),
    ],
)
def test_a_mistake_is_named_with_its_line(load, tmp_path, keys, line, says):
    with pytest.raises(ConfigError) as error:
        load(**keys)
    message = str(error.value)
    assert message.startswith(f"{tmp_path / 'experiment.yaml'}:{line}: ") and says in message and "\n" not in message


def test_where_there_is_no_file_init_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"experiment.yaml: cannot be read \(.*\); `evalsvc init` writes one$"):
        load_experiment(tmp_path / "experiment.yaml")
    with pytest.raises(ConfigError, match=r": cannot be read \([^)]*\)$"):
        load_experiment(tmp_path)


def test_further_mistakes_are_counted(load):
    with pytest.raises(ConfigError, match=r" \(and 2 more mistakes\)$"):
        load(seed=-1, aa="perhaps", unheard_of=1)


def test_a_misspelt_key_comes_before_the_same_key_missing(load):
    text = yaml.safe_dump(
        {"name": "e", "model": "m", "basline": "base", "arms": ARMS, "suites": SUITES}, sort_keys=False
    )
    with pytest.raises(
        ConfigError, match=r":3: unknown key 'basline'; did you mean 'baseline'\? \(and 1 more mistake\)$"
    ):
        load(text)


def test_a_sentence_of_ours_stands_alone(load):
    with pytest.raises(
        ConfigError, match=r"experiment.yaml:3: 'baseline': 'nobody' is none of the arms, which are base, cand$"
    ):
        load(baseline="nobody")
    with pytest.raises(ConfigError, match=r":8: 'arms.cand.plan': plan 'w=fp9': unknown .*, lm_head$"):
        load(arms={**ARMS, "cand": {"plan": "w=fp9"}})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": is empty; write `key: value` lines, beginning with `name: ...`"),
        ("- a list\n", ": holds a list and no keys; write `key: value` lines"),
        ("name: [unclosed\n", "is no YAML"),
        ("name: e\nname: f\n", ":2: key 'name' stands already in line 1"),
        ("name: !!python/object/apply:os.system [exit 3]\n", "is no YAML: could not determine a constructor"),
        ("name: &a [*a]\n", ":1: an alias stands inside what it stands for"),
        (
            "name: e\n\tmodel: m\n",
            ":2: is no YAML: found character '\\t' that cannot start any token; indent with spaces",
        ),
        ("name: a: b\n", "a text with `: ` in it stands in quotes"),
        ("name: a\n---\nname: b\n", "but found another document; a file holds one"),
        ("1: 2\n", ":1: key '1' is no text; put it in quotes"),
        (
            "name: e\narms:\n  base: {plan: w=bf16}\n  on: {plan: w=fp8}\n",
            ":4: key 'arms.on' is no text (YAML reads it as a truth value); put it in quotes",
        ),
        (
            "name: e\narms:\n  base: {plan: w=bf16}\n  2026-01-02: {plan: w=fp8}\n",
            ":4: key 'arms.2026-01-02' is no text (YAML reads it as a date); put it in quotes",
        ),
        ("name: e\nseed: 0_1\n", ":2: 'seed': 0_1 is 1 to YAML; write it in digits alone"),
        ("[" * 5000, "is nested too deep"),
    ],
)
def test_what_is_no_experiment_is_refused(load, text, says):
    with pytest.raises(ConfigError) as error:
        load(text)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_other_bytes_than_utf8_are_refused(tmp_path):
    (tmp_path / "e.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_experiment(tmp_path / "e.yaml")


def test_a_model_is_found_beside_the_file_and_in_the_home(load, tmp_path, monkeypatch):
    for folder in (tmp_path / "model", tmp_path / "home" / "m"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert model_path(load(), tmp_path, tmp_path) == tmp_path / "model"
    assert model_path(load(model="~/m"), tmp_path, tmp_path) == tmp_path / "home" / "m"
    (tmp_path / "small.gguf").touch()
    assert model_path(load(model="small.gguf"), tmp_path, tmp_path) == tmp_path / "small.gguf"
    assert model_path(load(model="organisation/name@main"), tmp_path, tmp_path) == "organisation/name@main"
    with pytest.raises(ConfigError, match="no such directory"):
        model_path(load(model="nowhere"), tmp_path, tmp_path)


def test_a_file_is_frozen():
    experiment = Experiment.model_validate(
        {"name": "e", "model": "m", "baseline": "base", "arms": ARMS, "suites": SUITES}
    )
    with pytest.raises(ValueError, match="frozen"):
        experiment.seed = 4  # pyright: ignore[reportAttributeAccessIssue]
