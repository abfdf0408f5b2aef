"""The generated history's questions: the suites' own scorers agree with which answer is called right."""

from collections import Counter

import pytest

from evalsvc.demo.cases import ITEMS, pieces, tokens, write_cases
from evalsvc.expected import FOLDER, case_of, compared


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    return folder, *write_cases(folder)


def test_right_answers_are_right_and_wrong_ones_are_wrong_in_a_named_way(written):
    _, asked, _ = written
    assert len({(one.suite, one.item.id) for one in asked}) == len(asked) == 6 * ITEMS
    named = Counter()
    for one in asked:
        for right, scores in enumerate(one.scores):
            (own,) = [s for s in scores if (s.metric, s.filter) == (one.item.metric, one.item.filter)]
            assert own.value == right and (own.error_class is None) == bool(right), one.item.id
            named[own.error_class] += 1
    assert {"wrong_value", "called_when_should_refrain", "extra_text", "table.no_table", "wrong_answer"} <= {*named}


def test_what_is_right_is_found_for_every_case_and_agrees_with_the_scores(written):
    folder, asked, suites = written
    resolved = {FOLDER: str(folder), "suites": suites}
    for one in asked[: 4 * ITEMS : 7]:
        case = case_of(resolved, one.suite, one.item.id, one.item.sha256)
        rows = compared(case, one.item.filter, [[text] for text in one.answers])
        wrong, right = ([row.right[place] for row in rows] for place in (0, 1))
        assert rows and False in wrong and False not in right, one.item.id


def test_made_up_tokens_spell_their_text():
    text = ' {"n": 3}, and so\non '
    assert "".join(pieces(text)) == text and len(tokens(text)) == len(pieces(text))
