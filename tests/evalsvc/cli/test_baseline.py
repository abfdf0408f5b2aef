"""`baseline`, and `@NAME` wherever an arm is named."""

import pytest

WHY = "release 4.2, measured on the big machine"


@pytest.fixture
def promoted(evalsvc, db):
    code, out, err = evalsvc("baseline", "promote", "1:base", "--name", "prod", "--why", WHY, "--db", db)
    assert (code, out, err) == (0, "@prod is 1:base\n", "")
    return db


def test_a_gate_a_comparison_and_a_look_take_the_promoted_name(evalsvc, evalsvc_json, promoted, policy):
    asked = ["gate", "--policy", policy, "--baseline", "@prod", "--candidate", "good", "--db", promoted]
    code, document = evalsvc_json(*asked)
    assert code == 0 and document["decisions"][0]["baseline"]["address"] == "1:base"
    assert evalsvc("compare", "@prod", "bad", "--db", promoted)[0] == 0
    assert evalsvc("noise", "@prod", "--db", promoted)[0] == 0
    assert evalsvc_json("show", "@prod", "--db", promoted)[1]["arm"]["address"] == "1:base"


@pytest.mark.parametrize("candidate", ["1:base", "base", "@prod"])
def test_a_candidate_that_is_the_promoted_arm_is_refused(evalsvc, promoted, policy, candidate):
    asked = ["gate", "--policy", policy, "--baseline", "@prod", "--candidate", candidate, "--db", promoted]
    code, out, err = evalsvc(*asked)
    assert (code, out) == (2, "") and "1:base is baseline and candidate" in err and err.count("\n") == 1


def test_ls_shows_every_promotion_and_which_counts(evalsvc, evalsvc_json, promoted):
    _, out, _ = evalsvc("baseline", "promote", "1:good", "--name", "prod", "--why", "fp8 is released", "--db", promoted)
    assert out == "@prod is 1:good (it was 1:base)\n"
    _, document = evalsvc_json("baseline", "ls", "--db", promoted)
    assert [(b["name"], b["address"], b["why"], b["current"]) for b in document["baselines"]] == [
        ("prod", "1:good", "fp8 is released", True),
        ("prod", "1:base", WHY, False),
    ]
    _, out, _ = evalsvc("baseline", "ls", "--db", promoted)
    assert "@prod (before)" in out and "fp8 is released" in out


def test_promoting_in_json(evalsvc_json, db):
    asked = ["baseline", "promote", "good", "--name", "prod", "--why", "x", "--db", db]
    assert evalsvc_json(*asked) == (
        0,
        {"schema": "evalsvc.baseline/1", "name": "prod", "address": "1:good", "before": None},
    )


@pytest.mark.parametrize(
    ("address", "name", "says"),
    [
        ("bad", "prod", "1:bad cannot be promoted: it has planted faults (decode_k_scale 0.25)"),
        ("2:base", "prod", "2:base cannot be promoted: it is an A/A, the second run of 1:base"),
        ("nobody", "prod", "there is no arm 'nobody'"),
        ("@nobody", "prod", "no arm was promoted yet"),
        ("base", "a:b", "--name 'a:b'"),
    ],
)
def test_refusals_are_one_sentence_and_exit_2(evalsvc, db, address, name, says):
    code, out, err = evalsvc("baseline", "promote", address, "--name", name, "--why", "x", "--db", db)
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1
    assert "no baselines yet" in evalsvc("baseline", "ls", "--db", db)[1]


def test_a_hostile_reason_is_shown_as_text(evalsvc, db):
    evalsvc("baseline", "promote", "base", "--name", "prod", "--why", "[red]x\x1b[31m\u202e", "--db", db)
    _, out, _ = evalsvc("baseline", "ls", "--db", db)
    assert "[red]x\\x1b[31m\\u202e" in out.replace("\n", "")
