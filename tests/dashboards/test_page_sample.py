"""The page of one sample: both answers, where they part, and what is right."""

import json
import shutil
from math import log
from pathlib import Path

import pytest

from evalsvc.alternatives import pack
from evalsvc.engine.requests import GenerateResult, TokenLogprobs
from evalsvc.store import writer
from evalsvc.store.records import NewScore, Turn
from evalsvc.store.session import open_store
from evalsvc.suites.toolcall.suite import ToolCallSuite
from tests.evalsvc import by_hand


def test_a_sample_shows_both_answers_where_they_part_and_its_scores(run_app, database, words_of, markup_of):
    app = run_app(database, "sample", candidate="int4-sym-decode")
    assert "flip 1 of" in words_of(app) and "both say" not in words_of(app)
    assert "After 0 equal characters: the tokens were not stored." in markup_of(app)
    scores = app.dataframe[0].value
    assert scores["metric"].tolist() == ["acc"] and scores["candidate"].tolist() == [0.0]


def test_a_sample_of_another_arm_is_a_sentence(run_app, database):
    app = run_app(database, "sample", candidate="int4-asym", sample="999999")
    assert "holds no sample 999999" in app.warning[0].value
    (warning,) = run_app(database, "sample", candidate="int4-asym", sample="1<b>").warning
    assert "holds no sample 1\\<b\\>" in warning.value


@pytest.fixture
def sides(tmp_path):
    """`sides(base, cand)`: a database with one sample in each of two arms, as these fields say it; gives its path."""
    numbers = iter(range(9))

    def make(base, cand):
        path = tmp_path / f"sides{next(numbers)}.db"
        with open_store(path, create=True) as store:
            run = by_hand.open_run(store)
            for name, fields in (("base", base), ("cand", cand)):
                arm = by_hand.open_arm(store, run, name)
                item = {"suite": "bbh", "family": "bbh", "metric": "exact_match", "filter": "strict"}
                writer.add_samples(store, run, arm, [by_hand.sample("bbh:0", **item, **fields)])
                writer.finish_arm(store, arm, None, "declared")
            writer.finish_run(store, run)
        return path

    return make


def test_lm05_a_sample_shows_what_the_filter_left_with_its_stray_character(run_app, words_of, sides):
    def said(answer, left, value):
        scores = [NewScore(metric="exact_match", filter="strict", value=value, filtered=left)]
        scores += [NewScore(metric="exact_match", filter="whole", value=0.0)]
        return {"answer": answer, "scores": tuple(scores)}

    app = run_app(
        sides(said("So the answer is (D).", "(D)", 1.0), said("So the answer is (D). ", "(D). ", 0.0)), "sample"
    )
    shown = [code.value for code in app.code]
    assert shown[:4] == ["So the answer is (D).", "(D)", "So the answer is (D). ", "(D). "]
    words = words_of(app)
    assert "What the filter strict left:" in words and "What the filter strict left (ends with 1 space):" in words
    assert "filter whole" not in words


@pytest.mark.parametrize(("prompt", "says"), [("Question:", "(empty)"), ("", "(no text recorded)")])
def test_an_answer_that_is_empty_is_told_from_one_that_nobody_recorded(run_app, sides, prompt, says):
    """lm-eval's samples hold prompts and answers, and no finish reasons; a table of correctness holds no texts."""
    scores = ((NewScore(metric="exact_match", filter="strict", value=value),) for value in (1.0, 0.0))
    path = sides(*({"prompt": prompt, "answer": "", "scores": held} for held in scores))
    for page in ("flips", "sample"):
        said = [caption.value for caption in run_app(path, page).caption if caption.value.startswith("(")]
        assert len(said) >= 2 and set(said) == {says}, page


@pytest.fixture
def generated():
    """`generated(turns)`: a sample's fields, of answers told as text and, by token, what was likeliest there."""

    def make(turns, value=1.0):
        answers = []
        for text, places in turns:
            entries = tuple(TokenLogprobs(top[0][0], top[0][1], tuple(top)) for top in places)
            about = {"id": "i", "prompt_tokens": 1, "prompt_sha256": "p", "finish_reason": "stop", "stage_tokens": {}}
            ids = tuple(entry.token for entry in entries)
            about |= {"token_ids": ids, "texts": {5: " <b>Yes", 6: " No"}, "logprobs": entries}
            answers.append(GenerateResult(**about, text=text))
        stored = [Turn(answer.text, "stop", answer.token_ids) for answer in answers]
        stored[-1] = Turn(None, None, answers[-1].token_ids)
        score = NewScore(metric="exact_match", filter="strict", value=value)
        fields = {"answer": answers[-1].text, "scores": (score,), "turns": tuple(stored)}
        return fields | {"alternatives": pack(answers)}

    return make


FIRST = [(7, -0.1), (8, -3.0)]

YES, NO = [(5, log(0.75)), (6, log(0.25))], [(6, log(0.5)), (9, log(0.375))]


def test_a_sample_names_the_likeliest_tokens_where_the_answers_part(run_app, words_of, markup_of, sides, generated):
    yes, no = generated([("So Yes", [FIRST, YES])]), generated([("So No", [FIRST, NO])], 0.0)
    app = run_app(sides(yes, no), "sample")
    ours, theirs = (found.value for found in app.dataframe if "written" in found.value)
    assert ours["token"].tolist() == ['" <b>Yes"', '" No"'] and ours["written"].tolist() == ["✓", ""]
    assert ours["probability"].tolist() == [0.75, 0.25] and theirs["probability"].tolist() == [0.5, 0.375]
    assert theirs["id"].tolist() == [6, 9] and theirs["token"].isna().tolist() == [False, True]
    assert "After 3 equal characters: token 2, id 5 against id 6." in markup_of(app)
    assert "Likeliest at token 2" in markup_of(app)
    words = words_of(run_app(sides(yes, no | {"alternatives": None}), "sample"))
    assert "cand: other likely tokens were not stored." in words


def test_turns_that_part_are_shown_with_the_likeliest_tokens_of_their_own_turn(
    run_app, words_of, markup_of, sides, generated
):
    """The second of three: the last ones are equal, and each arm's tokens are counted from its own first one."""
    turns = [("Let me see.", [FIRST, FIRST, FIRST]), ("So Yes", [FIRST, YES]), ("Done.", [FIRST])]
    other = [turns[0], ("So No", [FIRST, NO]), turns[2]]
    app = run_app(sides(generated(turns), generated(other, 0.0)), "sample")
    ours, theirs = (found.value for found in app.dataframe if "written" in found.value)
    assert ours["id"].tolist() == [5, 6] and theirs["id"].tolist() == [6, 9]
    assert "After 3 equal characters of turn 2: token 2, id 5 against id 6." in markup_of(app)
    assert "Likeliest at token 2 of turn 2" in markup_of(app)
    ended = run_app(sides(generated(turns[:2]), generated(turns, 0.0)), "sample")
    assert "of turn 3: token 1, the end against id 7" in markup_of(ended)
    assert "base: the answer had ended." in words_of(ended)


def test_a_sample_says_what_was_right_argument_by_argument(run_app, words_of, database, tmp_path):
    """Of a run whose case file is where it was; the file's text is as untrusted as an answer."""
    path = Path(shutil.copy(database, tmp_path / "calls.db"))
    tool = {"name": "book", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    call = {"name": "book", "arguments": {"city": "<b>Oslo</b>"}}
    cases = tmp_path / "calls.jsonl"
    cases.write_text(json.dumps({"id": "one", "prompt": "Book.", "tools": [tool], "expect": {"call": call}}))
    (item,) = ToolCallSuite("calls", cases, form="json").items()
    suite = {"name": "calls", "kind": "toolcall", "cases": cases.name}
    with open_store(path) as store:
        resolved = {"suites": [suite], "folder": str(tmp_path)}
        run = by_hand.open_run(store, resolved=resolved)
        for name, city in (("base", "<b>Oslo</b>"), ("cand", "Rome")):
            arm = by_hand.open_arm(store, run, name)
            about = {
                "suite": "calls",
                "item_hash": item.sha256,
                "family": "calls",
                "metric": "correct",
                "filter": "json",
            }
            answer = json.dumps({"name": "book", "arguments": {"city": city}})
            sample = by_hand.sample(item.id, name == "base", answer=answer, **about)
            writer.add_samples(store, run, arm, [sample])
            writer.finish_arm(store, arm, None, "declared")
        writer.finish_run(store, run)
    app = run_app(path, "sample", run=run)
    expected = app.dataframe[0].value
    assert expected["what"].tolist() == ["call: function", "call: city"]
    assert expected["expected"].tolist() == ["book", '"<b>Oslo</b>"']
    assert expected["baseline: base"].tolist() == ["✓ book", '✓ "<b>Oslo</b>"']
    assert expected["candidate: cand"].tolist() == ["✓ book", '✗ "Rome"']
    cases.unlink()
    assert "Not shown: what is right cannot be read" in words_of(run_app(path, "sample", run=run)).replace("\\", "")
