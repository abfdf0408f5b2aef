"""Files for pipelines: golden ones of each verdict, agreement with the decision, names that would be markup."""

import json
import os
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evalsvc.decision import AAResult, ArmFace, Decision
from evalsvc.gate import combine_exit_codes
from evalsvc.reports import to_junit, to_markdown
from evalsvc.row import Row

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = "a|b`c<script>@team[x](http://e)\x00\u2028"


def face(name, **fields):
    defaults = {
        "address": f"1:{name}",
        "id": 1,
        "run_id": 1,
        "name": name,
        "fingerprint": "0123456789abcdef" * 4,
        "plan": "w=bf16,kv=bf16 > w=bf16,kv=fp8:token-head",
        "injected": {},
        "proof_status": "matched",
        "experiment": "demo",
        "experiment_hash": "fedcba9876543210" * 4,
        "stages": {"prefill": {"weights": "bf16", "kv": "bf16", "checkpoint": "c0", "fault": None}},
        "details": {"tokenizer": "abc", "engine": "def", "device": "cpu:AVX512"},
    }
    return ArmFace(**{**defaults, **fields})


def row(scope, suite, verdict, **fields):
    defaults = {
        "items": 200,
        "n": 200,
        "lost": 10,
        "gained": 4,
        "baseline_right": 120,
        "errors_baseline": 0,
        "errors_candidate": 0,
        "drop": 0.03,
        "p": 0.0898,
        "p_adjusted": 0.18,
        "lower": -0.005,
        "upper": 0.07,
        "interval": (-0.01, 0.075),
        "margin": 0.05,
        "more_items": 150 if verdict == "INCONCLUSIVE" else None,
    }
    return Row(scope=scope, suite=suite, verdict=verdict, **{**defaults, **fields})


def decision(verdict, *, severity=None, rows=None, candidate=None, policy=None, **fields):
    blank = {
        "sentence": f"{verdict}: all suites pooled: lost 10, gained 4 of 200",
        "reasons": ("all suites pooled: lost 10, gained 4 of 200", "a second reason"),
        "notes": ("guard not proven: suite tools (12.10)",),
        "policy_sha256": "f" * 64,
        "same_arm": False,
        "differing_factors": ("decode.kv",),
        "uncovered_factors": (),
        "pairing_verified": True,
        "aa": AAResult(address="2:base", n=200, lost=0, gained=1, p=1.0, p_gain=0.5),
    }
    shown = rows or (row("pooled", "", verdict, severity=severity), row("suite", "tasks", verdict, severity=severity))
    return Decision(
        verdict=verdict,
        severity=severity,
        baseline=face("base"),
        candidate=candidate or face("kv8"),
        policy={"alpha": 0.05, **(policy or {})},
        rows=tuple(shown),
        **{**blank, **fields},
    )


DECISIONS = {
    "PASS": decision("PASS", rows=[row("pooled", "", "PASS"), row("suite", "tools", "INCONCLUSIVE")]),
    "REGRESSED": decision("REGRESSED", severity="beyond margin", candidate=face("bad", injected={"decode_k_scale": 2})),
    "INCONCLUSIVE": decision("INCONCLUSIVE"),
    "INVALID": decision("INVALID", rows=[row("pooled", "", "INVALID", drop=None, p=None, upper=None, n=0)]),
}


@pytest.mark.parametrize("verdict", DECISIONS)
@pytest.mark.parametrize("kind", ["json", "xml", "md"])
def test_golden_files(verdict, kind):
    """`EVALSVC_UPDATE_GOLDEN=1` writes them anew; look at the difference before committing it."""
    shown = DECISIONS[verdict]
    texts = {
        "json": lambda: json.dumps(shown.to_json(), indent=1, ensure_ascii=False) + "\n",
        "xml": lambda: to_junit([shown]),
        "md": lambda: to_markdown([shown]),
    }
    text, path = texts[kind](), GOLDEN / f"{verdict}.{kind}"
    if os.environ.get("EVALSVC_UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("verdict", DECISIONS)
def test_junit_fails_exactly_when_the_gate_does(verdict):
    root = ElementTree.fromstring(to_junit([DECISIONS[verdict]]))
    release = root.find(".//testcase[@name='release']")
    assert release is not None
    failed = release.find("failure") is not None or release.find("error") is not None
    assert failed == (DECISIONS[verdict].exit_code != 0)
    assert int(root.get("tests", "0")) == len(root.findall(".//testcase"))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(root.get(name, "-1")) == len(root.findall(f".//testcase/{kind}"))
    assert DECISIONS[verdict].sentence in (release.findtext("system-out") or "")


def test_an_accepted_inconclusive_exits_0_and_keeps_its_word():
    accepted = decision("INCONCLUSIVE", policy={"inconclusive": "accept"})
    assert (accepted.exit_code, accepted.to_json()["verdict"]) == (0, "INCONCLUSIVE")
    release = ElementTree.fromstring(to_junit([accepted])).find(".//testcase[@name='release']")
    assert release is not None and release.find("failure") is None
    assert "INCONCLUSIVE" in to_markdown([accepted]) and "exit code 0" in to_markdown([accepted])


def test_several_candidates_have_a_suite_each_and_one_exit_code():
    both = [DECISIONS["PASS"], DECISIONS["REGRESSED"]]
    root = ElementTree.fromstring(to_junit(both))
    assert [suite.get("name") for suite in root] == ["1:kv8", "1:bad"]
    code = combine_exit_codes(shown.exit_code for shown in both)
    assert f"exit code {code}" in to_markdown(both) and code == 1


def test_blind_rows_are_skipped():
    blind = row("suite", "letters", "INVALID", blind=True, counted=False, note="blind")
    shown = decision("PASS", rows=[row("pooled", "", "PASS"), blind])
    root = ElementTree.fromstring(to_junit([shown]))
    assert (root.get("errors"), root.get("skipped")) == ("0", "1")


def test_stored_names_are_text_and_nothing_else():
    shown = decision("PASS", rows=[row("pooled", "", "PASS"), row("suite", HOSTILE, "PASS")], notes=(HOSTILE,))
    shown = replace(shown, candidate=face(HOSTILE, address=f"1:{HOSTILE}"), sentence=f"PASS: {HOSTILE}")
    root = ElementTree.fromstring(to_junit([shown]))  # well-formed
    assert len(root.findall(".//testcase")) == 3
    text = to_markdown([shown])
    assert "<script" not in text and "](http" not in text and "@team" not in text and "\x00" not in text
    table = [line for line in text.splitlines() if line.startswith("| ") and "c&lt;script" in line]
    assert len(table) == 1 and table[0].replace("\\|", "").count("|") == 10


def test_a_comment_stays_within_its_limit_and_says_what_it_left_out():
    rows = [row("pooled", "", "PASS"), *(row("suite", f"suite-{n}", "PASS") for n in range(2000))]
    shown = [decision("PASS", rows=rows), DECISIONS["REGRESSED"]]
    text = to_markdown(shown)
    assert len(text) <= 65_000 and "left out; the JSON has all" in text
    assert "exit code 1" in text, "the code of all of them is at the top"
    assert "left out" not in to_markdown([DECISIONS["PASS"]])
