"""Own prompts from the file to `agree` and the gate, over the tiny model."""

import json
import shutil

import pytest

ARMS = {"bf16": {"plan": "w=bf16"}, "int4": {"plan": "w=int4:g32:sym"}}
OWN = {"name": "own", "kind": "prompts", "cases": "own.jsonl"}
FORMATS = {"name": "formats", "kind": "formats", "cases": "formats.jsonl"}
PROMPTS = [{"id": f"p{n}", "family": f"f{n % 2}", "prompt": f"Say {n}:", "max_tokens": 12} for n in range(6)]


@pytest.fixture(scope="module")
def ran(write_experiment, execute_file, tmp_path_factory):
    """Databases of two runs: own prompts alone, and one of them with a check beside format cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALSVC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        found = {}
        checked = [{**PROMPTS[0], "check": {"regex": "[^e-t]*"}}, *PROMPTS[1:]]
        for name, suites, prompts in (("alone", [OWN], PROMPTS), ("beside", [OWN, FORMATS], checked)):
            folder = tmp_path_factory.mktemp(name)
            path = write_experiment(folder, arms=ARMS, suites=suites, probe=None)
            (folder / "own.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
            execute_file(path, folder / "r.sqlite")
            found[name] = path, str(folder / "r.sqlite")
        return found


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("name: p\nmargin_points: 80\nguard_points: 90\nmax_error_points: 0\n")
    return str(path)


def test_answers_are_compared_and_the_aa_stands_beside(evalsvc_json, ran):
    code, found = evalsvc_json("agree", "bf16", "int4", "--examples", "2", "--db", ran["alone"][1])
    assert code == 0 and found["schema"] == "evalsvc.agree/1"
    assert (found["baseline"], found["candidate"], found["aa"]) == ("1:bf16", "1:int4", "2:bf16")
    whole, *families = found["rows"]
    assert [row["family"] for row in families] == ["f0", "f1"] and whole["same_text"]["n"] == 6
    assert whole["same_text"]["count"] < 6 and whole["aa"]["same_text"]["count"] == 6
    assert set(found["kl"]) == {"prefill", "decode"} and found["kl"]["decode"]["kl_mean"] > 0
    assert whole["parting"]["tokens"] is not None and whole["aa"]["length_ratio"] == 1.0
    assert len(found["examples"]) == min(2, 6 - whole["same_text"]["count"])
    assert found["examples"][0]["baseline"]["answer"] != found["examples"][0]["candidate"]["answer"]


def test_the_table_fits_and_examples_are_plain(evalsvc, ran):
    code, out, _ = evalsvc("agree", "bf16", "int4", "--examples", "3", "--db", ran["alone"][1])
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    said = " ".join(out.split())
    assert "KL along the baseline's answers to own prompts, decode: mean" in said
    assert "1:int4 against 1:bf16" in said and "characters" in said and 'baseline: "' in said
    assert not any(ord(character) < 32 and character != "\n" for character in out)


def test_prompts_alone_carry_no_verdict_and_the_gate_names_the_command(evalsvc, evalsvc_json, ran, policy):
    path, db = ran["alone"]
    arguments = ("--baseline", "bf16", "--candidate", "int4", "--policy", policy, "--db", db)
    code, decision = evalsvc_json("gate", *arguments)
    assert code == 4 and "`evalsvc agree 1:bf16 1:int4` compares their answers" in json.dumps(decision)
    assert "carry no verdict" in json.dumps(decision)
    code, out, err = evalsvc("run", path, "--db", db)
    assert code == 0 and "no item carries a verdict" in err and "INVALID" in out
    for command in (("compare", "bf16", "int4"), ("noise", "bf16"), ("show", "1"), ("joint", "bf16", "int4")):
        _, out, err = evalsvc(*command, "--db", db)
        assert "unexpected" not in err and "Traceback" not in err


def test_a_rule_about_the_accuracy_of_prompts_alone_changes_no_verdict_into_another(evalsvc_json, ran, tmp_path):
    (tmp_path / "p.yaml").write_text("name: p\nmargins:\n  - {suite: own, margin_points: 3}\n")
    arguments = ("--baseline", "bf16", "--candidate", "int4", "--policy", tmp_path / "p.yaml", "--db", ran["alone"][1])
    code, decision = evalsvc_json("gate", *arguments)
    assert code == 4 and "carry no verdict" in json.dumps(decision)


@pytest.mark.parametrize(("margin", "verdict"), [(90, "PASS"), (3, "INCONCLUSIVE")])
def test_a_rule_about_a_failure_mode_of_prompts_alone_is_judged_and_nothing_else(
    evalsvc, evalsvc_json, ran, tmp_path, margin, verdict
):
    rule = f"{{suite: own, metric: free_of.refusal, margin_points: {margin}}}"
    (tmp_path / "p.yaml").write_text(f"name: p\nmargins:\n  - {rule}\n")
    arguments = ("--baseline", "bf16", "--candidate", "int4", "--policy", tmp_path / "p.yaml", "--db", ran["alone"][1])
    code, decision = evalsvc_json("gate", *arguments)
    (decision,) = decision["decisions"]
    assert (code, decision["verdict"]) == ({"PASS": 0, "INCONCLUSIVE": 3}[verdict], verdict)
    (row,) = decision["rows"]
    assert (row["level"], row["metric"], row["items"]) == ("metric", "free_of.refusal", len(PROMPTS))
    assert "not whether answers are right" in json.dumps(decision["notes"])
    out = evalsvc("compare", "bf16", "int4", *arguments[4:])[1]
    assert "no suite" not in out and out.count("  own") >= 2, "the suite that carries the metric met the factors"


def test_beside_others_they_enter_neither_counts_nor_errors(evalsvc_json, ran, policy, tmp_path):
    import sqlite3

    db = str(tmp_path / "copy.sqlite")
    shutil.copy(ran["beside"][1], db)
    _, before = evalsvc_json("compare", "bf16", "int4", "--policy", policy, "--db", db)
    with sqlite3.connect(db) as connection:
        connection.execute(
            "UPDATE samples SET status = 'error', answer = '' WHERE arm_id = 2 AND item_pk IN"
            " (SELECT id FROM items WHERE metric = '')"
        )
    connection.close()
    _, after = evalsvc_json("compare", "bf16", "int4", "--policy", policy, "--db", db)
    assert before["verdict"] != "INVALID" and after == before
    suites = {row["suite"]: row["items"] for row in before["rows"] if row["level"] == "suite"}
    assert suites == {"own": 1, "formats": 14}
    _, found = evalsvc_json("agree", "bf16", "int4", "--db", db)
    own = next(row for row in found["rows"] if (row["suite"], row["family"]) == ("own", None))
    assert (own["same_text"]["n"], own["unanswered"]) == (1, 5)


def test_a_sequential_run_asks_them_too(write_experiment, evalsvc, tmp_path):
    path = write_experiment(tmp_path / "e", arms=ARMS, suites=[OWN, FORMATS], probe=None, aa=None)
    (path.parent / "own.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    (tmp_path / "p.yaml").write_text("name: p\nmargin_points: 80\nguard_points: 90\ndesign: sequential\n")
    code, out, err = evalsvc("run", path, "--gate", tmp_path / "p.yaml", "--db", tmp_path / "r.sqlite")
    assert code in (0, 3, 4) and "unexpected" not in err and "int4" in out
    assert evalsvc("agree", "bf16", "int4", "--db", tmp_path / "r.sqlite")[0] == 0


def test_arms_without_a_generated_answer_exit_as_invalid(evalsvc, db, tmp_path):
    import sqlite3

    with sqlite3.connect(db) as connection:
        connection.execute("UPDATE items SET scored_by = 'loglikelihood'")
    connection.close()
    code, out, _ = evalsvc("agree", "1:base", "1:good", "--db", db)
    assert code == 4 and "holds a generated answer" in out
