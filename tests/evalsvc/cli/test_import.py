"""`import`: from a file of others to verdicts, and what is left when it goes wrong."""

import json
import os
import signal
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from scipy.stats import binomtest

SHARED = Path(__file__).parents[4] / "shared" / "data" / "gsm8k_paired" / "is_correct.csv"
ARMS = {"base": "a.csv", "fp8": "b.csv"}


@pytest.fixture
def tables(tmp_path):
    """Two tables of 300 items in two suites; the second arm loses 60 of one and has an error in the other."""
    header = "item,suite,family,answer,correct\n"
    rows = [(i, "maths" if i % 2 else "facts", i % 3) for i in range(300)]
    base = [f"i{i},{suite},f{f},the answer,1\n" for i, suite, f in rows]
    worse = [f"i{i},{suite},f{f},the answer,{int(suite != 'maths' or i > 120)}\n" for i, suite, f in rows]
    worse[0] = "i0,facts,f0,,error\n"
    for name, lines in (("a.csv", base), ("b.csv", worse)):
        (tmp_path / name).write_text(header + "".join(lines))
    return tmp_path


@pytest.fixture
def db(tmp_path):
    return str(tmp_path / "runs.sqlite")


@pytest.fixture
def asked(tables, db):
    """The command's arguments, `extra` behind them."""

    def call(*extra, name="nightly"):
        arms = [word for arm, file in ARMS.items() for word in ("--arm", f"{arm}={tables / file}")]
        return ["import", name, "--baseline", "base", *arms, "--db", db, *extra]

    return call


@pytest.fixture
def declared(tmp_path):
    path = tmp_path / "declared.yaml"
    path.write_text("name: p\nmargin_points: 1\nproof: declared\n")
    return str(path)


def test_an_import_can_be_compared_gated_shown_and_listed(evalsvc, evalsvc_json, asked, db, policy, declared):
    code, document = evalsvc_json(*asked())
    assert code == 0 and document["stored"] and document["run"] == 1
    assert [(a["address"], a["samples"], a["errors"], a["plan"]) for a in document["arms"]] == [
        ("1:base", 300, 0, None),
        ("1:fp8", 300, 1, None),
    ]
    code, compared = evalsvc_json("compare", "base", "fp8", "--db", db)
    pooled = compared["rows"][0]
    assert (pooled["n"], pooled["b"], pooled["c"], pooled["verdict"]) == (299, 60, 0, "REGRESSED")
    assert pooled["p"] == pytest.approx(0.5**60) and pooled["errors_candidate"] == 1
    gate = ["gate", "--baseline", "base", "--candidate", "fp8", "--db", db, "--policy"]
    assert evalsvc(*gate, declared)[0] == 1
    code, out, _ = evalsvc(*gate, policy)  # proof: required is the default
    assert code == 4 and "has no proof of what it ran" in " ".join(out.split())
    assert evalsvc_json("ls", "--db", db)[1]["runs"][0]["arms"] == ["base", "fp8"]
    code, out, _ = evalsvc("show", "fp8", "--db", db)
    assert code == 0 and "not run here" in " ".join(out.split()) and "1 errors" in out
    assert evalsvc("show", "1", "--db", db)[0] == 0
    code, _, err = evalsvc("noise", "base", "--db", db)
    assert code == 4 and "no finished A/A" in err
    code, _, err = evalsvc("attribute", "nightly", "--db", db)
    assert code == 4 and "nothing to attribute" in err
    assert evalsvc("power", "--items", "1000", "--arm", "fp8", "--db", db)[0] == 0


def test_the_same_import_again_stores_nothing_and_says_so(evalsvc, evalsvc_json, asked, db):
    evalsvc(*asked())
    code, out, _ = evalsvc(*asked())
    assert code == 0 and "run 1 holds this already: nothing was stored" in out
    assert evalsvc_json(*asked())[1]["stored"] is False
    assert len(evalsvc_json("ls", "--db", db)[1]["runs"]) == 1


def test_a_declared_plan_meets_what_the_answers_show(evalsvc, evalsvc_json, asked, db, declared):
    """A table says nothing of stages: no factor counts as met until somebody says how its answers came about."""
    plans = ["--plan", "base=w=bf16", "--plan", "fp8=kv=bf16 > kv=fp8"]
    evalsvc(*asked(*plans))
    code, document = evalsvc_json("gate", "--policy", declared, "--baseline", "base", "--candidate", "fp8", "--db", db)
    decision = document["decisions"][0]
    assert code == 4 and decision["differing_factors"] == decision["uncovered_factors"] == ["decode.kv"]
    evalsvc(*asked(*plans, "--scored-by", "generation"))
    code, document = evalsvc_json("gate", "--policy", declared, "--baseline", "base", "--candidate", "fp8", "--db", db)
    decision = document["decisions"][0]
    assert code == 1 and decision["uncovered_factors"] == [] and decision["rows"][0]["factors_met"] == ["decode.kv"]
    assert decision["candidate"]["proof_status"] == "declared"
    evalsvc(*asked(*plans, "--scored-by", "loglikelihood"))
    assert evalsvc("gate", "--policy", declared, "--baseline", "base", "--candidate", "fp8", "--db", db)[0] == 4
    code, out, _ = evalsvc("attribute", "nightly", "--db", db)
    assert code == 0 and "decode.kv" in out


def test_the_second_run_of_the_baseline_is_its_noise(evalsvc_json, evalsvc, asked, db, tables):
    lines = (tables / "a.csv").read_text().splitlines()
    lines[1:3] = [lines[1][:-1] + "0", lines[2][:-1] + "0"]
    (tables / "again.csv").write_text("\n".join(lines))
    code, document = evalsvc_json(*asked("--again", str(tables / "again.csv")))
    assert code == 0 and document["aa_run"] == 2
    code, found = evalsvc_json("noise", "base", "--db", db)
    assert (code, found["lost"], found["gained"], found["n"]) == (0, 2, 0, 300)
    code, compared = evalsvc_json("compare", "base", "fp8", "--db", db)
    assert compared["aa"]["lost"] == 2


def test_a_promoted_import_is_a_baseline_for_a_later_one(evalsvc, evalsvc_json, asked, tables, db):
    evalsvc(*asked())
    assert evalsvc("baseline", "promote", "1:base", "--name", "prod", "--why", "x", "--db", db)[0] == 0
    later = ["import", "later", "--baseline", "next", "--arm", f"next={tables / 'b.csv'}", "--db", db]
    assert (
        evalsvc(
            *later,
        )[0]
        == 0
    )
    code, document = evalsvc_json("compare", "@prod", "next", "--db", db)
    assert code == 0 and document["rows"][0]["b"] == 60


def test_a_metric_of_the_whole_corpus_is_judged_by_a_rule_of_the_policy(evalsvc, evalsvc_json, db, tmp_path):
    for arm, worse in (("a", 0.0), ("b", 0.4)):
        rows = []
        for i in range(60):
            parts = [-40 * (2 + i % 5 / 10 + worse), 40]
            rows.append({"doc_id": i, "doc": {}, "target": "", "arguments": {"gen_args_0": {"arg_0": f"page {i}"}}})
            rows[-1] |= {"resps": [[str(parts[0])]], "filter": "none", "metrics": ["word_perplexity"]}
            rows[-1] |= {"doc_hash": str(i), "prompt_hash": str(i), "word_perplexity": parts}
        (tmp_path / arm).mkdir()
        (tmp_path / arm / "samples_wiki.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arms = [f"--arm={arm}={tmp_path / arm}" for arm in "ab"]
    code, out, _ = evalsvc("import", "n", "--baseline", "a", *arms, "--db", db)
    assert code == 0 and "%" not in out  # a perplexity is no share of right answers
    rule = "  - {suite: wiki, metric: word_perplexity, margin: 1.0, better: lower, statistic: perplexity}\n"
    (tmp_path / "bare.yaml").write_text("name: p\nproof: declared\n")
    (tmp_path / "rule.yaml").write_text("name: p\nproof: declared\nmargins:\n" + rule)
    gate = ["gate", "--baseline", "a", "--candidate", "b", "--db", db, "--policy"]
    assert evalsvc(*gate, tmp_path / "bare.yaml")[0] == 4  # nobody said what a perplexity may lose
    code, document = evalsvc_json(*gate, tmp_path / "rule.yaml")
    assert code == 1, document["decisions"][0]["sentence"]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("b.csv", "item,correct\n1,1\n1,0\n", "b.csv:3: item '1'"),
        ("b.csv", "item,correct\n1,7\n", "b.csv:2: '7' is neither"),
        ("b.csv", "item,correct\n", "holds no rows"),
    ],
)
def test_a_mistake_stores_nothing_at_all(evalsvc, asked, tables, db, file, content, says):
    (tables / file).write_text(content)
    code, out, err = evalsvc(*asked())
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1
    assert not Path(db).exists()


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--arm", "x"], "--arm 'x': write ARM=PATH"),
        (["--plan", "base"], "--plan 'base': write ARM=PLAN"),
        (["--plan", "base=w=bf16", "--plan", "base=w=fp8"], "--plan is given twice"),
        (["--scored-by", "magic"], "--scored-by magic"),
        (["--table", "t.csv"], "give either --arm"),
    ],
)
def test_a_mistyped_option_is_one_sentence(evalsvc, asked, extra, says):
    code, out, err = evalsvc(*asked(*extra))
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_hostile_text_is_shown_as_text(evalsvc, db, tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"item": "[red]\x1b[31m", "correct": 0, "suite": "s\u202e"}) + "\n")
    arms = ["--arm", f"a={tmp_path / 'x.jsonl'}", "--arm", f"b={tmp_path / 'x.jsonl'}"]
    assert evalsvc("import", "n", "--baseline", "a", *arms, "--db", db)[0] == 0
    _, out, _ = evalsvc("compare", "a", "b", "--db", db)
    assert "\x1b[31m" not in out and "\u202e" not in out and "s\\u202e" in out
    assert "not declared" in out


CHILD = """
import sys, time
from evalsvc.cli.main import main
from evalsvc.store import recording
real = recording.insert_samples
def insert_and_wait(*arguments):
    real(*arguments)
    print("inserted", flush=True)
    time.sleep(600)
recording.insert_samples = insert_and_wait
main(sys.argv[1:])
"""


def test_killed_in_the_middle_it_leaves_nothing_and_the_next_one_stores_all(evalsvc, evalsvc_json, asked, db):
    child = subprocess.Popen([sys.executable, "-c", CHILD, *asked()], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "inserted\n"
        code, _, err = evalsvc(*asked())
        assert code == 2 and "another run is writing" in err
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert evalsvc_json("ls", "--db", db)[1]["runs"] == []
    code, document = evalsvc_json(*asked())
    assert code == 0 and document["stored"] and evalsvc("compare", "base", "fp8", "--db", db)[0] == 0


@pytest.mark.skipif(not SHARED.is_file(), reason="shared/data/gsm8k_paired is not here")
def test_published_answers_of_four_systems_to_gsm8k(evalsvc, evalsvc_json, db, declared):
    """From their table to verdicts: all six pairs, both ways, with counts and p as worked out apart."""
    from statsmodels.stats.contingency_tables import mcnemar

    asked = ["import", "gsm8k", "--table", str(SHARED), "--baseline", "6b_verification", "--db", db]
    code, document = evalsvc_json(*asked)
    assert code == 0 and [arm["samples"] for arm in document["arms"]] == [1319] * 4
    header, *rows = [line.split(",") for line in SHARED.read_text().splitlines()]
    columns = {name: [row[i] == "1" for row in rows] for i, name in enumerate(header) if i}
    for base, other in combinations(columns, 2):
        lost, gained = (
            sum(x and not y for x, y in zip(columns[a], columns[b], strict=True))
            for a, b in ((base, other), (other, base))
        )
        found = [evalsvc_json("compare", *pair, "--db", db)[1]["rows"][0] for pair in ((base, other), (other, base))]
        assert [(row["n"], row["b"], row["c"]) for row in found] == [(1319, lost, gained), (1319, gained, lost)]
        for row, worse in zip(found, (lost, gained), strict=True):
            assert row["p"] == pytest.approx(binomtest(worse, lost + gained, alternative="greater").pvalue, rel=1e-9)
        two_sided = mcnemar([[0, lost], [gained, 0]], exact=True).pvalue
        assert min(1, 2 * min(row["p"] for row in found)) == pytest.approx(two_sided, rel=1e-9)
    named = [
        "gate",
        "--policy",
        declared,
        "--baseline",
        "6b_verification",
        "--candidate",
        "175b_finetuning",
        "--db",
        db,
    ]
    code, gated = evalsvc_json(*named)
    pooled = gated["decisions"][0]["rows"][0]
    assert (code, pooled["b"], pooled["c"], pooled["verdict"]) == (1, 209, 152, "REGRESSED")


def test_it_needs_nothing_but_the_core(asked, db):
    """Neither lm-eval nor torch is imported, and the help page imports nothing heavy at all."""
    code = "import sys; from evalsvc.cli.main import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    heavy = "print(sorted({'torch', 'lm_eval', 'transformers', 'streamlit'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code + heavy, *asked()], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    lighter = "print(sorted({'sqlalchemy', 'numpy', 'scipy', 'pandas'} & set(sys.modules)))"
    env = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", code + lighter, "import", "--help"], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.splitlines()[-1] == "[]" and "Examples:" in done.stdout


def test_raw_answers_of_two_endpoints_become_a_verdict_and_are_scored_again(
    evalsvc, evalsvc_json, tmp_path, db, declared, monkeypatch
):
    """An endpoint's own lists of calls: one arm loses a call in five."""
    tool = {"name": "set_timer", "arguments": {"minutes": "integer"}}
    rows, answers = [], {"a": [], "b": []}
    for n in range(200):
        expect = {"calls": [{"name": "set_timer", "arguments": {"minutes": n}}]}
        asked = {"messages": [{"role": "user", "content": f"{n} minutes."}], "tools": [tool]}
        rows.append({"id": f"i{n}", **asked, "expect": expect})
        call = [{"function": {"name": "set_timer", "arguments": json.dumps({"minutes": n})}}]
        said = {"item": f"i{n}", "tool_calls": call, "finish_reason": "tool_calls"}
        answers["a"].append(said)
        answers["b"].append(said if n % 5 else {"item": f"i{n}", "answer": "Well.", "finish_reason": "stop"})
    for name, made in (("cases", rows), *answers.items()):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    arms = [word for arm in "ab" for word in ("--arm", f"{arm}={tmp_path / arm}.jsonl")]
    code, document = evalsvc_json(
        *["import", "calls", "--cases", tmp_path / "cases.jsonl", "--baseline", "a", *arms, "--db", db]
    )
    assert (code, [arm["errors"] for arm in document["arms"]], document["notes"]) == (0, [0, 0], [])
    gated = ["gate", "--policy", declared, "--baseline", "1:a", "--candidate", "1:b", "--db", db]
    code, decided = evalsvc_json(*gated)
    assert (code, [d["verdict"] for d in decided["decisions"]]) == (1, ["REGRESSED"])
    _, out, _ = evalsvc("show", "1:b", "--db", db)
    assert "tool calls" in out or "triggered" in out
    from evalsvc.suites.toolcall import ToolCallSuite

    monkeypatch.setattr(ToolCallSuite, "scoring_version", "toolcall-next")
    suite = {"name": "calls", "kind": "toolcall", "cases": "cases.jsonl", "format": "native"}
    experiment = {"name": "calls", "model": "none", "baseline": "a", "arms": {n: {"plan": f"w={n}"} for n in ()}}
    experiment |= {"arms": {"a": {"plan": "w=bf16"}, "b": {"plan": "w=fp8"}}, "suites": [suite]}
    (tmp_path / "experiment.yaml").write_text(json.dumps(experiment))
    code, again = evalsvc_json("rescore", tmp_path / "experiment.yaml", "--db", db)
    assert code == 0 and [(s["added"], s["changed"], s["left"]) for s in again["suites"]] == [(200, 0, {})] * 2
