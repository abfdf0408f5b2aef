"""Text to ids and back."""

import json
import shutil

import pytest

from evalsvc.engine.text import Text, cut_at_stop, foreign_id
from evalsvc.errors import EngineError


@pytest.fixture(scope="module")
def text(tiny) -> Text:
    return Text(tiny("llama"), 1)


def test_eos_is_the_union_of_config_generation_config_and_tokenizer(tiny, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(tiny("llama"), path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert Text(path, [9, 7]).eos_ids == {1, 7, 8, 9}
    (path / "generation_config.json").unlink()
    assert Text(path, None).eos_ids == {1}


def test_a_spelt_beginning_of_sequence_is_not_doubled(text):
    assert text.encode("<bos>a")[0] == 0
    assert text.encode("<bos>a").count(0) == 1


@pytest.mark.parametrize(
    ("context", "continuation"), [("x", " the"), ("x ", "the"), ("x  \n", "the end"), ("x", "the"), ("x t", "hen")]
)
def test_pairs_are_split_as_lm_eval_splits_them(text, context, continuation):
    """Written out from lm-eval's `TemplateLM._encode_pair`."""
    spaces = len(context) - len(context.rstrip())
    kept, moved = context, continuation
    if spaces:
        kept, moved = context[:-spaces], context[-spaces:] + continuation
    whole, head = text.tokenizer.encode(kept + moved), text.tokenizer.encode(kept)
    assert text.encode_pair(context, continuation) == (head, whole[len(head) :])


def test_ids_and_text_are_not_mixed(text):
    assert text.encode_pair([5, 6], [7]) == ([5, 6], [7])
    with pytest.raises(EngineError, match="all text or all token ids"):
        text.encode_pair("a", [5])


def test_half_a_surrogate_pair_is_refused_by_place(text):
    with pytest.raises(EngineError, match="character 1"):
        text.encode("a\ud800")


@pytest.mark.parametrize("prompt", ["a", "the end", "äö€", "a\0b", "\u2028", "x" * 50])
def test_what_was_encoded_is_decoded_whole(text, prompt):
    ids = text.encode("q" + prompt)
    assert text.decode(ids[0], ids[1:]) == prompt


def test_a_character_of_several_tokens_before_the_answer_or_in_it_is_no_trouble(text):
    ids = text.encode("a€")
    assert len(ids) == 4
    assert text.decode(ids[0], ids[1:]) == "€"
    assert text.decode(ids[-1], text.encode(" the€")) == " the€"


@pytest.mark.parametrize(
    ("written", "stop", "cut"),
    [
        ("one END two", ("END",), "one "),
        ("one END two", ("two", "END"), "one "),
        ("END", ("END",), ""),
        ("one EN", ("END",), None),
        ("one", (), None),
        ("a\nb", ("\n",), "a"),
    ],
)
def test_an_answer_is_cut_before_its_earliest_stop(written, stop, cut):
    assert cut_at_stop(written, stop) == cut


@pytest.mark.parametrize("bad", [-1, 288, 1.5, "a", None])
def test_an_id_that_is_not_the_models_is_named(bad):
    assert foreign_id([0, 287], 288) is None
    assert repr(bad) in str(foreign_id([0, bad], 288))


@pytest.mark.parametrize("damage", ["{", "{}", ""])
def test_a_broken_tokenizer_is_one_sentence(tiny, tmp_path, damage):
    path = tmp_path / "model"
    shutil.copytree(tiny("llama"), path)
    (path / "tokenizer.json").write_text(damage)
    with pytest.raises(EngineError, match="tokenizer cannot be loaded") as caught:
        Text(path, 1)
    assert "\n" not in str(caught.value)
