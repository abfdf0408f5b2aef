"""Tokenizers built from GGUF fields: by hand, against sentencepiece, and once written to a directory and read again."""

import inspect
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer, LlamaConfig
from transformers.convert_slow_tokenizer import TikTokenConverter

from evalsvc.engine.checkpoint.gguf_header import GgufHeader, read_header
from evalsvc.engine.checkpoint.gguf_tokenizer import build_tokenizer
from evalsvc.errors import CapabilityError, EngineError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BYTE_LEVEL = "".join(map(chr, [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]))


def header(**fields) -> GgufHeader:
    known = {f"tokenizer.{'' if key == 'chat_template' else 'ggml.'}{key}": value for key, value in fields.items()}
    return GgufHeader(Path("a.gguf"), {"general.architecture": "llama", **known}, (), "")


def byte_level(pre: str | None = "smollm", merges=("Ġ Ġ", "Ġ ĠĠ", "ĠĠ Ġ", "1 2", "Ġ a"), **more) -> GgufHeader:
    tokens = ["<s>", "</s>", "<tool>", *BYTE_LEVEL, *dict.fromkeys(merge.replace(" ", "") for merge in merges)]
    kinds = [CONTROL, CONTROL, USER_DEFINED] + [NORMAL] * (len(tokens) - 3)
    return header(
        **{"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": list(merges)}
        | {"bos_token_id": 0, "eos_token_id": 1}
        | more
    )


def pieces(tokenizer, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer.encode(text))


# -- byte level --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "a   12", ["a", "ĠĠĠ", "1", "2"]),
        ("gpt-2", "a   12", ["a", "ĠĠ", "Ġ", "12"]),
        ("smollm", "12", ["1", "2"]),
        ("gpt-2", "  a", ["Ġ", "Ġa"]),
        ("smollm", "x<tool>  a</s>", ["x", "<tool>", "Ġ", "Ġa", "</s>"]),
        ("smollm", "ü", ["Ã", "¼"]),
    ],
)
def test_text_is_cut_as_the_file_says_before_merges_apply(pre, text, expected):
    tokenizer = build_tokenizer(byte_level(pre))
    assert pieces(tokenizer, text) == expected
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_llama3_cuts_words_by_its_own_pattern_takes_whole_words_and_begins_with_bos():
    from evalsvc.engine.checkpoint.gguf_tokenizer import _LLAMA3_WORDS

    assert inspect.signature(TikTokenConverter).parameters["pattern"].default == _LLAMA3_WORDS
    whole = byte_level("llama-bpe")
    whole.fields["tokenizer.ggml.tokens"].append("cat")
    whole.fields["tokenizer.ggml.token_type"].append(NORMAL)
    assert pieces(build_tokenizer(whole), "cat 1212") == ["<s>", "cat", "Ġ", "12", "1", "2"]
    assert pieces(build_tokenizer(byte_level("llama-bpe", add_bos_token=False)), "a") == ["a"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ["a"]),
        ({"add_bos_token": True}, ["<s>", "a"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<s>", "a", "</s>"]),
    ],
)
def test_ends_are_added_as_the_file_says(more, expected):
    assert pieces(build_tokenizer(byte_level(**more)), "a") == expected


def test_roles_and_chat_template_come_from_the_file():
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = build_tokenizer(byte_level(chat_template=template, padding_token_id=1, unknown_token_id=0))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (
        0,
        1,
        1,
        0,
    )
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


# -- sentencepiece -----------------------------------------------------------------------------------------------------

LEARNT = ["▁t", "he", "▁the", "er", "▁a", "in", "ing", "▁in", "the", "aa", "aaa"]
SINGLE = ["▁", *"abcdefghijklmnopqrstuvwxyz<>/", "é"]


def sentencepiece(**more) -> GgufHeader:
    tokens = ["<unk>", "<s>", "</s>", "<b>", "\n", "\n\n", "  ", "   ", *[f"<0x{i:02X}>" for i in range(256)]]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[USER_DEFINED] * 5, *[BYTE] * 256]
    scores = [-1000.0] * len(tokens) + [-float(i) for i in range(len(LEARNT))] + [-1e6 - i for i in range(len(SINGLE))]
    tokens += LEARNT + SINGLE
    kinds += [NORMAL] * (len(LEARNT) + len(SINGLE))
    held = {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores, "add_space_prefix": False}
    return header(**held | {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the thing", ["the", "▁t", "h", "ing"]),
        ("a  the", ["a", "  ", "the"]),
        ("a     b", ["a", "   ", "  ", "b"]),
        ("a\n\n\nb", ["a", "\n\n", "\n", "b"]),
        ("x<b>the", ["x", "<b>", "the"]),
        ("aaaa", ["aa", "aa"]),
        ("aaa", ["aaa"]),
        ("é€", ["é", "<0xE2>", "<0x82>", "<0xAC>"]),
        ("<0x0A>", ["<", "<0x30>", "x", "<0x30>", "<0x41>", ">"]),
        ("a▁▁b", ["a", "  ", "b"]),
        ("he</s>", ["he", "</s>"]),
    ],
)
def test_the_best_neighbours_join_first_and_whole_tokens_stay_whole(text, expected):
    held = sentencepiece()
    tokenizer, tokens = build_tokenizer(held), held.fields["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in tokenizer.encode(text)] == ["<s>", *expected]
    if "▁" not in text:
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == f"<s>{text}"


def test_a_space_stands_before_the_text_when_the_file_says_so():
    tokenizer = build_tokenizer(sentencepiece(add_space_prefix=True))
    assert pieces(tokenizer, "the a") == ["<s>", "▁the", "▁a"]
    assert pieces(tokenizer, " the") == ["<s>", "▁", "▁the"]
    assert pieces(tokenizer, "a</s>the") == ["<s>", "▁a", "</s>", "▁the"]
    assert tokenizer.decode(tokenizer.encode("the a"), skip_special_tokens=True) == "the a"


def oracle(held: GgufHeader):
    """sentencepiece's own encoder over the same vocabulary."""
    processor = pytest.importorskip("sentencepiece")
    pb = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in held.fields.items()}
    model = pb.ModelProto()
    for token, score, kind in zip(fields["tokens"], fields["scores"], fields["token_type"], strict=True):
        piece = token.replace(" ", "▁") if kind == USER_DEFINED else token
        model.pieces.add(piece=piece, score=score, type=UNKNOWN if token == "<unk>" else kind)
    model.trainer_spec.model_type, model.trainer_spec.byte_fallback = 2, True
    model.trainer_spec.unk_id = fields["tokens"].index("<unk>")
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = bool(fields.get("add_space_prefix", True))
    model.normalizer_spec.remove_extra_whitespaces = False
    return processor.SentencePieceProcessor(model_proto=model.SerializeToString())


def strange_texts(tokens: list[str], count: int) -> list[str]:
    rng = random.Random(0)
    odd = [" ", "  ", "\n", "\t", "▁", "   ", " " * 33, "\n" * 35, "<b>", "</table>", "<0x41>", "é", "e\u0301"]
    odd += ["\u200b", "👩‍👩‍👧", "漢字", "\x7f", "\ue000", "a" * 50, "12 345", "٣٤"]
    texts = []
    for _ in range(count):
        parts = [rng.choice(odd if rng.random() < 0.4 else tokens) for _ in range(rng.randint(1, 20))]
        texts.append("".join(parts).replace("▁", rng.choice(" ▁")))
    return texts


@pytest.mark.parametrize("prefix", [False, True])
def test_ids_equal_sentencepieces_own(prefix):
    held = sentencepiece(add_space_prefix=prefix)
    theirs, mine = oracle(held), build_tokenizer(held)
    for text in strange_texts(LEARNT + SINGLE, 2000):
        spaced = f" {text}".replace("▁", " ")
        if prefix and any(whole in spaced for whole in ("<b>", "\n", "  ")):  # begin a new text in GGUF's own runtime
            continue
        assert mine.encode(text, add_special_tokens=False) == theirs.encode(text), text


@pytest.mark.model
@pytest.mark.slow
def test_gemma3s_ids_equal_sentencepieces_own(gemma3_gguf):
    held = read_header(gemma3_gguf)
    theirs, mine = oracle(held), build_tokenizer(held)
    kinds = held.fields["tokenizer.ggml.token_type"]
    tokens = [t for t, kind in zip(held.fields["tokenizer.ggml.tokens"], kinds, strict=True) if kind in (1, 4)]
    prose = (Path(__file__).parents[3] / "README.md").read_text().split("\n## ")
    for text in [*strange_texts(tokens, 3000), *prose]:
        assert mine.encode(text, add_special_tokens=False) == theirs.encode(text), text
    assert mine.encode("a") == [held.token_id("bos"), *theirs.encode("a")]


# -- through a directory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("more", [{}, {"add_bos_token": True, "add_eos_token": True}, {"add_space_prefix": True}])
def test_the_written_tokenizer_gives_the_same_ids_and_text(tmp_path, make, more):
    """Read as a model's tokenizer is read: beside a config.json that names the architecture."""
    tokenizer = build_tokenizer(make(**more))
    LlamaConfig().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in strange_texts([*LEARNT, "<b>", "</s>", "12"], 300):
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids and again.decode(ids) == tokenizer.decode(ids), text
    assert again.eos_token == tokenizer.eos_token and again.bos_token == tokenizer.bos_token


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", ["deepseek-llm", "default", None])
def test_a_way_to_cut_text_that_is_not_known_is_refused_by_name(pre):
    with pytest.raises(CapabilityError, match=f"cut by {pre!r}.*smollm.*tokenizer.json"):
        build_tokenizer(byte_level(pre))


@pytest.mark.parametrize("kind", ["t5", "bert", None])
def test_another_kind_is_refused_by_name(kind):
    with pytest.raises(CapabilityError, match=f"of kind {kind!r}"):
        build_tokenizer(byte_level(model=kind))


@pytest.mark.parametrize(
    ("make", "more", "words"),
    [
        (byte_level, {"tokens": None}, "ggml.tokens is missing"),
        (byte_level, {"merges": None}, "ggml.merges is missing"),
        (byte_level, {"eos_token_id": 10**6}, "its eos token 1000000"),
        (byte_level, {"bos_token_id": None, "add_bos_token": True}, "to add a bos token and has none"),
        (byte_level, {"token_type": [1]}, "cannot be built"),
        (sentencepiece, {"scores": [0.0]}, "cannot be built"),
        (sentencepiece, {"scores": None}, "ggml.scores is missing"),
    ],
)
def test_fields_that_contradict_each_other_are_one_sentence(make, more, words):
    held = make()
    held.fields.update({f"tokenizer.ggml.{key}": value for key, value in more.items()})
    with pytest.raises(EngineError, match=words) as caught:
        build_tokenizer(held)
    assert "a.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_a_merge_of_unknown_tokens_is_one_sentence():
    held = byte_level()
    held.fields["tokenizer.ggml.merges"].append("漢 字")
    with pytest.raises(EngineError, match="cannot be built"):
        build_tokenizer(held)


def test_two_tokens_spelt_alike_and_tables_of_characters_are_refused():
    held = byte_level()
    held.fields["tokenizer.ggml.tokens"][-1] = "a"
    with pytest.raises(CapabilityError, match="two tokens alike"):
        build_tokenizer(held)
    with pytest.raises(CapabilityError, match="table of characters"):
        build_tokenizer(sentencepiece(precompiled_charsmap=[1, 2]))
