"""Growing answers equal the plain decoding of all their tokens, and show nothing that they take back."""

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from evalsvc.engine.text import Text
from evalsvc.engine.writing import OPEN, REACH, Writer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ("<s>", "</s>", "<|tool|>")
PIECES = [
    "▁",
    "▁a",
    "a",
    "b",
    "c",
    "▁the",
    "ab",
    "é",
    "▁▁",
    "\n",
    "end",
    "<",
    "▁▁▁a▁b",
    OPEN,
    "😀",
    "##ing",
    ".",
    "-->",
]


def sentencepiece(decoder) -> Text:
    """Pieces with ▁ for a space, all byte tokens, special tokens, and an added token that is text."""
    symbols = ["<unk>", *SPECIAL, *BYTES, *PIECES]
    core = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[], unk_token="<unk>"))
    core.decoder = decoder
    core.add_special_tokens([AddedToken(s, special=True) for s in SPECIAL])
    core.add_tokens([AddedToken("<think>", special=False)])
    return Text(PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>"))


def llama_decoder():
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


DECODERS: dict[str, Callable] = {
    "llama": llama_decoder,
    "gemma": lambda: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace": lambda: decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    "wordpiece": lambda: decoders.WordPiece(),
    "joined by spaces": lambda: None,
    "ctc": lambda: decoders.CTC("a"),
    "suffix": lambda: decoders.BPEDecoder("a"),
}
KINDS = ["bytes", *DECODERS]


@pytest.fixture(scope="module")
def texts(tiny) -> dict[str, Text]:
    return {"bytes": Text(AutoTokenizer.from_pretrained(tiny("llama")))} | {
        name: sentencepiece(make()) for name, make in DECODERS.items()
    }


@pytest.fixture(scope="module")
def llama(texts) -> Text:
    return texts["llama"]


def ids_of(text: Text, *pieces: str) -> list[int]:
    return [text.tokenizer.convert_tokens_to_ids(piece) for piece in pieces]


def cut_at_stop(text: str, stop: tuple[str, ...]) -> str | None:
    """The text before the earliest stop string, or None when it holds none."""
    found = [at for at in (text.find(s) for s in stop) if at >= 0]
    return text[: min(found)] if found else None


def check(text: Text, last: int, ids: list[int], stop: tuple[str, ...], asked: random.Random | None = None) -> None:
    """Compares with the plain decoding after every token, or after some when `asked` says so."""
    writer, shown, want = Writer(text, last, stop), "", ""
    for count in range(1, len(ids) + 1):
        ended = writer.push(ids[count - 1])
        plain = text.decode(last, ids[:count])
        cut = cut_at_stop(plain, stop)
        want = plain if cut is None else cut
        assert ended == writer.ended == (cut is not None)
        if asked is None or asked.random() < 0.3:
            assert writer.text == want
        if asked is None or asked.random() < 0.3:
            shown += writer.settled()
            assert want.startswith(shown)
        if ended:
            break
    assert writer.finish() == writer.text == want
    assert shown + writer.settled() == want
    assert writer.settled() == ""


def pools(text: Text) -> dict[str, list[int]]:
    """Sets of ids to draw answers from: everything, and what is hard, the bytes of open characters."""
    size = len(text.tokenizer)
    spelt = {i: text.tokenizer.convert_ids_to_tokens(i) for i in range(size)}
    high = [
        i for i, s in spelt.items() if s.startswith(("<0x8", "<0x9", "<0xE2", "<0xF0")) or (len(s) == 1 and s > "\xa0")
    ]
    return {
        "all": list(range(size)),
        "high bytes": high,
        "pieces": [i for i, s in spelt.items() if s not in BYTES],
        "pieces and high bytes": [i for i, s in spelt.items() if s not in BYTES] + high,
    }


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data())
def test_an_answer_equals_the_plain_decoding_of_its_tokens_cut_at_the_earliest_stop(texts, kind, data):
    text = texts[kind]
    pool = data.draw(st.sampled_from(list(pools(text).values())))
    rng = data.draw(st.randoms(use_true_random=False))
    if data.draw(st.booleans()):
        pool = [rng.choice(pool) for _ in range(4)]
    ids = [rng.choice(pool) for _ in range(data.draw(st.integers(1, 80)))]
    last = rng.choice(pool)
    whole = text.decode(last, ids)
    stop = []
    for _ in range(data.draw(st.integers(0, 3))):
        at = rng.randrange(len(whole) + 1)
        stop.append(whole[at : at + rng.randint(1, 6)] or "zz")
    check(text, last, ids, tuple(stop), data.draw(st.sampled_from([None, rng])))


@pytest.mark.model
def test_a_real_vocabularys_answers_equal_their_plain_decoding(small_model):
    text = Text(AutoTokenizer.from_pretrained(small_model))
    prose = text.encode("One café, 漢字 and 😀😀 — naïve; \n\n  def f(x):\n\treturn x\n" * 8)
    for seed in range(40):
        rng = random.Random(seed)
        ids = [rng.randrange(len(text.tokenizer)) if rng.random() < 0.1 * (seed % 4) else i for i in prose]
        start = rng.randrange(len(ids) - 120)
        part = ids[start : start + 120]
        whole = text.decode(part[0], part[1:])
        at = rng.randrange(len(whole))
        check(text, part[0], part[1:], (whole[at : at + rng.randint(1, 8)], "\n\n\n\n") if seed % 2 else ())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unseen", [1, 7, 8, 9, 30])
def test_tokens_without_text_leave_the_next_tokens_their_space(texts, kind, unseen):
    text = texts[kind]
    start, hidden = (text.encode("the"), 0) if kind == "bytes" else (ids_of(text, "a", "b"), 1)
    following = text.encode(" a the") if kind == "bytes" else ids_of(text, "▁the", "▁a")
    for before in (1, 20):
        check(text, start[0], start * before + [hidden] * unseen + following, ())


@pytest.mark.parametrize("unseen", range(10))
@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_characters_bytes_may_be_far_apart(texts, character, unseen):
    """With tokens without text between them, a window may begin inside the character."""
    text = texts["bytes"]
    parts = text.encode(character)
    for at in range(1, len(parts)):
        apart = [*parts[:at], *[0] * unseen, *parts[at:]]
        for before in range(8, 24):
            check(text, 5, [*text.encode("x") * before, *apart, *text.encode("the a")], ())
            check(text, 5, [*text.encode("x") * before, *apart, *[0] * unseen, *parts], ())


# --- stop strings


def write(text: Text, ids: list[int], stop: tuple[str, ...], last: int | None = None) -> tuple[str, int]:
    """The answer, and how many tokens it took."""
    writer = Writer(text, text.encode("q")[-1] if last is None else last, stop)
    for count, token in enumerate(ids, 1):
        if writer.push(token):
            return writer.text, count
    return writer.finish(), len(ids)


@pytest.mark.parametrize(
    ("pieces", "stop", "answer", "tokens"),
    [
        (["a", "b", "c"], ("bc",), "a", 3),
        (["a", "end", "b"], ("n",), "ae", 2),
        (["end", "end"], ("nden",), "e", 2),
        (["▁the", "▁a"], ("e a", "the"), " ", 1),
        (["a", "b", "c"], ("bc", "abc"), "", 3),
        (["a", "b", "c"], ("abc", "b"), "a", 2),
        (["a", "ab"], ("aa", "aab", "b"), "", 2),
        (["a", "b"], ("c",), "ab", 2),
        (["a", "a", "b"], ("aab", "ab"), "", 3),
        (["a", "<0xC3>", "<0xA9>", "b"], ("é",), "a", 3),
        (["a", "<0xE2>", "<0x82>", "<0xAC>", "b"], ("€b",), "a", 5),
        (["a", "\n", "\n"], ("\n\n",), "a", 3),
    ],
)
def test_the_earliest_stop_string_ends_an_answer_as_soon_as_it_stands(llama, pieces, stop, answer, tokens):
    assert write(llama, ids_of(llama, *pieces), stop, ids_of(llama, "c")[0]) == (answer, tokens)


@pytest.mark.parametrize("before", range(60))
def test_a_stop_string_is_found_wherever_the_window_stands(llama, before):
    ids = ids_of(llama, *["▁the"] * before, "end", "a", "b", "\n", "c", *["a"] * 9)
    assert write(llama, ids, ("enda" + "b\n" + "c",)) == (" the" * before, before + 5)
    assert write(llama, ids, ("zzzz", "c")) == (" the" * before + "endab\n", before + 5)


def test_a_stop_string_longer_than_any_window_is_found(llama):
    ids = ids_of(llama, *["a", "b", "c"] * 60)
    assert write(llama, ids, ("b" + "cab" * 50,)) == ("a", 152)


@pytest.mark.parametrize(
    ("pieces", "stop", "answer", "tokens"),
    [
        (["a", "<|tool|>", "b"], ("<|tool|>",), "a", 2),
        (["<|tool|>", "b"], ("<|tool|>",), "", 1),
        (["a", "\n", "<|tool|>", "b"], ("\n<|tool|>",), "a", 3),
        (["a", "<|tool|>", "b", "\n"], ("<|tool|>b\n",), "a", 4),
        (["a", "<|tool|>", "<|tool|>", "b"], ("<|tool|><|tool|>b",), "a", 4),
        (["a", "<0xC3>", "<0xA9>", "<|tool|>"], ("<|tool|>",), "aé", 4),
        (["a", "<s>", "b", "<|tool|>"], ("<|tool|>", "b"), "a", 3),
        (["a", "b", "<|tool|>"], ("<|tool|>", "zz"), "ab", 3),
        (["a", "<|tool|>", "b"], ("ab",), "", 3),
        (["a", "<|tool|>", "b"], ("tool",), "ab", 3),
        (["a", "<|tool|>", "b"], ("<s>",), "ab", 3),
        (["a", "b", "c", "<|tool|>", "c"], ("c<|tool|>", "b<|tool|>"), "ab", 4),
    ],
)
def test_a_stop_string_that_spells_a_special_token_matches_it_and_others_see_through_it(
    llama, pieces, stop, answer, tokens
):
    assert write(llama, ids_of(llama, *pieces), stop) == (answer, tokens)


@pytest.mark.parametrize("before", [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 50])
def test_a_special_stop_is_found_wherever_the_window_stands(llama, before):
    ids = ids_of(llama, *["▁the", "<s>"] * before, "a", "<|tool|>", "b", "c")
    assert write(llama, ids, ("a<|tool|>bc",)) == (" the" * before, 2 * before + 4)


def test_a_special_stop_met_by_the_end_of_the_sequence_is_cut_too(llama):
    a, newline, end = ids_of(llama, "a", "\n", "</s>")
    for stop, answer in ((("\n</s>",), "a"), (("</s>",), "a\n"), (("x</s>",), "a\n"), ((), "a\n")):
        writer = Writer(llama, a, stop, {end})
        assert [writer.push(i) for i in (a, newline, end)] == [False, False, True]
        assert (writer.text, writer.settled()) == (answer, answer)


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_an_end_of_sequence_id_ends_the_answer_and_is_not_in_its_text(llama, stop):
    """Special or not: a generation_config may name any id."""
    for end in ids_of(llama, "</s>", "b"):
        writer = Writer(llama, ids_of(llama, "a")[0], stop, frozenset({end}))
        assert not writer.push(ids_of(llama, "a")[0])
        assert writer.push(end) and writer.ended
        assert writer.text == writer.finish() == "a"
        with pytest.raises(ValueError, match="ended"):
            writer.push(end)


# --- what is shown while it grows


def pieces_shown(text: Text, pieces: list[str], stop: tuple[str, ...]) -> list[str]:
    writer, shown = Writer(text, text.encode("c")[-1], stop), []
    for token in ids_of(text, *pieces):
        writer.push(token)
        shown.append(writer.settled())
    return shown


@pytest.mark.parametrize(
    ("pieces", "stop", "shown"),
    [
        (["a", "b", "c"], (), ["a", "b", "c"]),
        (["<", "<think>", "-->"], (), ["<", "<think>", "-->"]),
        (["a", "b", "c"], ("x",), ["a", "b", "c"]),
        (["a", "b", "c"], ("bd",), ["a", "", "bc"]),
        (["a", "b", "c"], ("bc",), ["a", "", ""]),
        (["a", "a", "b", "c"], ("aac",), ["", "", "aab", "c"]),
        (["a", "a", "a", "c"], ("aac",), ["", "", "a", ""]),
        (["a", "b", "a", "b", "a"], ("babb",), ["a", "", "", "", "ba"]),
        (["end", "c"], ("dx", "ndy"), ["e", "ndc"]),
        (["a", "\n", "b"], ("\n\n", "\nQ"), ["a", "", "\nb"]),
        (["a", "\n", "b"], ("\n<|tool|>",), ["a", "", "\nb"]),
        (["a", "<|tool|>", "b", "c"], ("<|tool|>bd",), ["a", "", "", "bc"]),
        (["a", "<|tool|>", "b", "c"], ("<|tool|>bc",), ["a", "", "", ""]),
        (["a", "b", "<|tool|>", "c"], ("x<|tool|>",), ["a", "b", "", "c"]),
        (["é", "<0xC3>", "<0xA9>", "b"], (), ["é", "", "", "éb"]),
        (["<0xC3>", "<0xA9>", "<s>", "<0xFF>", "b"], (), ["", "", "", "", OPEN * 3 + "b"]),
        (["<0xC3>", "<0xA9>", "<0xC3>", "b"], (), ["", "", "", OPEN * 3 + "b"]),
    ],
)
def test_shown_is_all_that_neither_a_stop_string_nor_an_open_character_can_change(llama, pieces, stop, shown):
    assert pieces_shown(llama, pieces, stop) == shown


def test_an_open_character_of_a_byte_vocabulary_is_held_back_alone(texts):
    text = texts["bytes"]
    shown, writer = [], Writer(text, text.encode("q")[0])
    for token in text.encode("a€é") + text.encode("é")[:1] + text.encode("b"):
        writer.push(token)
        shown.append(writer.settled())
    assert shown == ["a", "", "", "€", "", "é", "", OPEN + "b"]


def test_a_special_stop_holds_back_what_stands_before_an_open_character(texts):
    text = texts["bytes"]
    shown, writer = [], Writer(text, text.encode("q")[0], ("\n€<eos>",))
    for token in [*text.encode("a\n€"), 1]:
        ended = writer.push(token)
        shown.append(writer.settled())
    assert ended and shown == ["a", "", "", "", "", ""] and writer.text == "a"


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=60),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=3),
)
@example(list("ab" * 30), ["bac"])
@settings(max_examples=80)
def test_shown_is_exactly_what_begins_no_stop_string(texts, letters, stop):
    """By definition: the longest start whose rest is not the beginning of a stop string."""
    llama = texts["llama"]
    writer, shown, written = Writer(llama, ids_of(llama, "c")[0], stop), "", ""
    for letter in letters:
        ended = writer.push(ids_of(llama, letter)[0])
        written += letter
        shown += writer.settled()
        if ended:
            assert shown == cut_at_stop(written, stop)
            return
        begins = [n for n in range(len(written) + 1) if any(s.startswith(written[n:]) for s in stop)]
        assert shown == written[: min(begins, default=len(written))]


@pytest.mark.parametrize("kind", ["ctc", "suffix"])
def test_a_decoder_that_changes_earlier_text_shows_its_answer_at_the_end(texts, kind):
    text = texts[kind]
    writer = Writer(text, ids_of(text, "b")[0])
    for token in ids_of(text, "c", "ab", "ab", "b"):
        writer.push(token)
        assert writer.settled() == ""
    whole = writer.finish()
    assert whole and writer.settled() == whole


# --- what it costs


@pytest.mark.parametrize(
    "pieces", [["▁the"], ["a", "<s>"], ["<0xE2>", "b"], [OPEN], ["<0xC3>", "<0xA9>", "c", "▁"]], ids=str
)
@pytest.mark.parametrize("kind", ["llama", "gemma", "metaspace", "wordpiece"])
@pytest.mark.parametrize("stop", [(), ("zzz",)])
def test_a_token_costs_a_window_and_not_the_answer(texts, monkeypatch, kind, pieces, stop):
    text = texts[kind]
    decoded, plain = [], text.plain
    monkeypatch.setattr(text, "plain", lambda ids: decoded.append(len(ids)) or plain(ids), raising=False)
    writer = Writer(text, ids_of(text, "b")[0], stop)
    for token in ids_of(text, *pieces) * (600 // len(pieces)):
        writer.push(token)
        writer.settled()
    assert max(decoded) <= 3 * REACH
    assert sum(decoded) <= 1.75 * REACH * 600


def test_open_bytes_without_an_end_cost_a_window_too(texts, monkeypatch):
    """What a damaged model may write: the same byte again and again."""
    text = texts["bytes"]
    decoded, plain = [], text.plain
    monkeypatch.setattr(text, "plain", lambda ids: decoded.append(len(ids)) or plain(ids), raising=False)
    for byte in text.encode("é€😀"):
        writer = Writer(text, byte, ("zzz",))
        for _ in range(200):
            writer.push(byte)
    assert max(decoded) <= 3 * REACH


def test_without_a_stop_string_nothing_is_decoded_until_it_is_asked_for(texts, monkeypatch):
    text = texts["llama"]
    writer = Writer(text, ids_of(text, "b")[0])
    decoded, plain = [], text.plain
    monkeypatch.setattr(text, "plain", lambda ids: decoded.append(len(ids)) or plain(ids), raising=False)
    for token in ids_of(text, "▁the", "é") * 100:
        assert not writer.push(token)
    assert decoded == []
    assert writer.text == " theé" * 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [(), ("<s>",), ("e\n", "zz")])
def test_special_tokens_are_kept_where_that_is_asked(texts, kind, stop):
    """Against the whole decoded with its special tokens, after every token."""
    text, random_ = texts[kind], random.Random(kind)
    special = sorted(text.special_tokens)
    vocabulary = len(text.tokenizer)
    for _ in range(6):
        last, *ids = [
            random_.choice(special) if random_.random() < 0.2 else random_.randrange(vocabulary) for _ in range(60)
        ]
        writer, shown = Writer(text, last, stop, keep_special=True), ""
        for count in range(1, len(ids) + 1):
            ended = writer.push(ids[count - 1])
            base, whole = text.spelt([last]), text.spelt([last, *ids[:count]])
            plain = whole[len(base) :] if whole.startswith(base) else text.spelt(ids[:count])
            cut = cut_at_stop(plain, stop)
            assert writer.text == (plain if cut is None else cut)
            assert ended == (cut is not None)
            shown += writer.settled()
            assert writer.text.startswith(shown)
            if ended:
                break
        answer = writer.finish()
        assert shown + writer.settled() == answer
