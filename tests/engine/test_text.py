"""Text to ids and back."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from evalsvc.engine.text import Text, foreign_id
from evalsvc.errors import EngineError


@pytest.fixture(scope="module")
def text(tiny) -> Text:
    return Text(AutoTokenizer.from_pretrained(tiny("llama")), 1)


@pytest.mark.parametrize(
    ("config", "generation", "union"),
    [(9, [7, 8], {1, 7, 8, 9}), ([9, 1], None, {1, 9}), (None, 7, {1, 7}), (None, None, {1}), ([], 0, {0, 1})],
)
def test_eos_is_the_union_of_config_generation_config_and_tokenizer(text, config, generation, union):
    assert Text(text.tokenizer, config, generation).eos_ids == union


def test_a_tokenizer_without_an_end_of_its_own_adds_none():
    core = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    assert Text(PreTrainedTokenizerFast(tokenizer_object=core), 5).eos_ids == {5}


@pytest.fixture
def chat() -> Text:
    """A vocabulary of bytes whose tokenizer puts `<bos>` before every text, and a template."""
    symbols = ["<bos>", "<eos>", "<|user|>", "<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(symbol, special=True) for symbol in symbols[:4]])
    core.add_tokens([AddedToken("<think>", special=False)])
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = TEMPLATE
    return Text(tokenizer)


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'narrator' %}{{ raise_exception('no role ' + m.role + '\nnone') }}{% endif %}"
    "<|user|>{{ m.role }}:{{ m.content + '' }}<|end|>{% endfor %}"
    "{% if tools %}{{ tools[0].name }}{% endif %}{% if add_generation_prompt %}A:{% endif %}"
)
USER = {"role": "user", "content": "hi é"}


def test_tokens_are_spelt_one_by_one_as_they_stand_behind_others(chat, text):
    ids = chat.encode("hi é<|end|>")
    found = chat.apart(set(ids))
    assert [found[i] for i in ids] == ["<bos>", "h", "i", " ", "\ufffd", "\ufffd", "<|end|>"]
    assert chat.apart({ids[1]}) == {ids[1]: "h"} and chat.apart(set()) == {}


@pytest.mark.parametrize("prompt", ["a", "<bos>a", "<bos>"])
def test_a_text_begins_with_the_beginning_of_sequence_once(chat, prompt):
    ids = chat.encode(prompt)
    assert ids[0] == 0 and ids.count(0) == 1


def test_a_beginning_of_sequence_without_a_spelling_stands_at_the_start_of_no_text(chat):
    chat.tokenizer.bos_token = ""
    assert chat.encode("a")[0] == 0


def test_a_beginning_of_sequence_that_the_tokenizer_never_writes_is_not_made_up(text):
    assert text.encode("a").count(0) == 0
    assert text.encode("<bos>a").count(0) == 1


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a" * 99, 1), ("<bos>a", 1), ("<bos><bos>a", 2), ("<bos>" * 5, 5), ([0, 0, 7], 2), ([7, 0], 0), ([], 0)],
)
def test_lm07_beginnings_are_counted_as_they_are_sent(chat, prompt, count):
    assert chat.adds_bos is True and chat.leading_bos(prompt) == count
    ids = chat.encode(prompt)
    assert ids[:count] == [0] * count and ids[count : count + 1] != [0]


@pytest.mark.parametrize(("before", "count"), [("{{ bos_token }}", 1), ("{{ bos_token * 2 }}", 2), ("", 0)])
def test_lm07_a_templates_beginning_is_its_own(chat, before, count):
    """One that it writes is not doubled; one that it forgets is not made up, and can be seen."""
    chat.tokenizer.chat_template = TEMPLATE.replace("{{ bos_token }}", before)
    assert chat.leading_bos([USER] * 40) == count == chat.encode([USER] * 40).count(0)


def test_a_tokenizer_that_adds_no_beginning_says_so(text):
    assert text.adds_bos is False and text.leading_bos("a") == 0 and text.leading_bos("<bos>a") == 1
    core = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    without = Text(PreTrainedTokenizerFast(tokenizer_object=core), 5)
    assert without.adds_bos is None and without.leading_bos("a") == 0


# --- conversations


def test_messages_are_the_templates_text_up_to_the_answer(chat):
    conversation = [{"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "a"}, USER]
    ids = chat.encode(conversation)
    assert ids == chat.render(conversation) == chat.render(tuple(conversation))
    assert ids == chat.tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    spelt = "<bos><|user|>system:s<|end|><|user|>user:hi é<|end|><|user|>assistant:a<|end|><|user|>user:hi é<|end|>A:"
    assert chat.tokenizer.decode(ids) == spelt
    assert ids.count(0) == 1 and ids.count(2) == 4


def test_an_answer_that_has_begun_is_gone_on_from(chat):
    begun = [USER, {"role": "assistant", "content": "So it", "prefix": True}]
    assert chat.write(begun) == "<bos><|user|>user:hi é<|end|><|user|>assistant:So it"
    assert chat.encode(begun) == chat.encode_plain(chat.write(begun))
    assert begun[-1]["prefix"] is True, "the caller's messages are left alone"


def test_a_conversations_continuation_is_split_as_its_text_is(chat):
    """Spaces at the end of what the template writes move to the continuation, as in lm-eval."""
    chat.tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content + ':\\n' }}"
    context, tokens = chat.encode_pair([USER], "yes")
    assert chat.tokenizer.decode(context) == "<bos>hi é:" and chat.tokenizer.decode(tokens) == "\nyes"
    assert (context, tokens) == chat.encode_pair(chat.write([USER]), "yes")
    assert context.count(0) == 1


def test_without_context_a_text_follows_the_beginning_of_sequence_once(text):
    """Written out from lm-eval's `TemplateLM.loglikelihood`."""
    assert text.encode_pair("", "the end") == ([text.prefix_id], text.encode_plain("the end"))
    assert text.encode_pair("", "<bos>the end") == ([0], text.encode_plain("the end"))


def test_an_empty_message_is_a_message(chat):
    spelt = "<bos><|user|>system:<|end|><|user|>user:hi é<|end|>A:"
    assert chat.tokenizer.decode(chat.render([{"role": "system", "content": ""}, USER])) == spelt


def test_only_the_template_says_where_a_beginning_of_sequence_stands(chat):
    chat.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert chat.render([USER]) == chat.encode("hi é")[1:]


def test_tools_reach_a_template_that_takes_them_and_are_refused_by_another(chat):
    with_tools = chat.render([USER], tools=[{"name": "look"}])
    assert chat.tokenizer.decode(with_tools) == "<bos><|user|>user:hi é<|end|>lookA:"
    assert chat.render([USER], tools=[]) == chat.render([USER])
    chat.tokenizer.chat_template = "{{ messages[0].content }}"
    assert chat.tokenizer.decode(chat.render([USER], tools=[])) == "hi é"
    with pytest.raises(EngineError, match="takes no tools"):
        chat.render([USER], tools=[{"name": "look"}])


def test_a_requests_tools_go_with_messages_alone(chat):
    tools = [{"name": "look"}]
    assert chat.encode([USER], tools) == chat.render([USER], tools) != chat.encode([USER])
    for prompt in ("text", [1, 2]):
        with pytest.raises(EngineError, match="tools go with messages"):
            chat.encode(prompt, tools)


def test_special_tokens_are_spelt_where_that_is_asked(chat):
    ids = chat.encode("a<|user|>b")
    assert (chat.plain(ids), chat.spelt(ids)) == ("ab", "<bos>a<|user|>b")


CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]}


def test_a_message_that_calls_a_tool_needs_no_content(chat):
    chat.tokenizer.chat_template = "{% for m in messages %}{{ m.role }},{% endfor %}"
    assert chat.tokenizer.decode(chat.render([USER, CALL, {"role": "tool", "content": "7"}])) == "user,assistant,tool,"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ({"role": "user", "content": "a"}, "give a list of messages"),
        ([USER, {"content": "a"}], "message 2 of 2 has no role"),
        ([{"role": 3, "content": "a"}, USER], "message 1 of 2 has no role"),
        ([{"role": "user"}], "message 1 of 1 has no content"),
        ([{"role": "user", "content": None}], "message 1 of 1 has no content"),
        ([USER, 17], "message 2 of 2 is 17; token ids and messages do not mix"),
        ([5, USER], "message 1 of 2 is 5; token ids and messages do not mix"),
        ([USER, {"role": "assistant", "content": "so"}], "the last message is the assistant's"),
        ([{**USER, "prefix": True}], "says `prefix`, and is no text of the assistant's"),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [1], "prefix": True}], "is no text of the assis"),
        ([{"role": "narrator", "content": "a"}], "chat template refuses the messages (no role narrator)"),
        ([{"role": "user", "content": 5}], "chat template refuses the messages (unsupported operand"),
        ([USER, {"role": "user", "content": "a\ud800"}], "message 2 of 2 holds half a surrogate pair at character 1"),
        ([{"role": "us\ud800er", "content": "a"}], "the conversation holds half a surrogate pair"),
    ],
)
def test_a_conversation_that_cannot_be_rendered_is_one_sentence(chat, messages, words):
    with pytest.raises(EngineError) as caught:
        chat.encode(messages)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_conversation_without_messages_is_refused(chat):
    with pytest.raises(EngineError, match="no message"):
        chat.render([])


def test_a_model_without_a_template_is_named_with_a_remedy(tiny):
    path = tiny("llama")
    with pytest.raises(EngineError, match=r"has no chat template; .*chat_template\.jinja") as caught:
        Text(AutoTokenizer.from_pretrained(path)).encode([USER])
    assert str(path) in str(caught.value)


def test_the_default_of_several_templates_is_taken(chat):
    chat.tokenizer.chat_template = {"default": "D{{ messages[0].content }}", "tool_use": "T"}
    assert chat.tokenizer.decode(chat.render([USER])) == "Dhi é"
    chat.tokenizer.chat_template = {"tool_use": "T"}
    with pytest.raises(EngineError, match="has no chat template"):
        chat.render([USER])


def test_a_broken_template_is_one_sentence(chat):
    chat.tokenizer.chat_template = "{% for m in messages %}"
    with pytest.raises(EngineError, match="refuses the messages") as caught:
        chat.render([USER])
    assert "\n" not in str(caught.value)


@pytest.mark.model
def test_the_small_models_conversations_are_transformers_own(small_model):
    text = Text(AutoTokenizer.from_pretrained(small_model))
    ids = text.encode([{"role": "user", "content": "Name three colours."}])
    theirs = text.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name three colours."}], add_generation_prompt=True, return_dict=False
    )
    assert ids == theirs
    assert text.tokenizer.decode(ids).endswith("<|im_end|>\n<|im_start|>assistant\n")


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
    assert text.decode(ids[1], ids[2:]) == "\ufffd\ufffd"


def steps(*parts):
    return decoders.Sequence(list(parts))


LOCAL = {
    "bytes": (decoders.ByteLevel(), True),
    "none": (None, True),
    "wordpiece": (decoders.WordPiece(), True),
    "metaspace": (steps(decoders.ByteFallback(), decoders.Metaspace()), True),
    "llama": (
        steps(decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)),
        True,
    ),
    "strips each token": (steps(decoders.Strip(" ", 1, 1), decoders.Fuse()), True),
    "strips the end": (steps(decoders.Fuse(), decoders.Strip(" ", 0, 1)), False),
    "strips the end of bytes": (steps(decoders.ByteLevel(), decoders.Strip(" ", 0, 1)), False),
    "replaces across tokens": (steps(decoders.Fuse(), decoders.Replace("ab", "c")), False),
    "cleans up the whole": (steps(decoders.Fuse(), decoders.WordPiece()), False),
    "strips, then cleans up the whole": (
        steps(decoders.Fuse(), decoders.Strip(" ", 1, 0), decoders.WordPiece()),
        False,
    ),
    "merges repeats": (decoders.CTC("a"), False),
    "suffix": (decoders.BPEDecoder("</w>"), False),
}


@pytest.mark.parametrize("name", LOCAL)
def test_decoders_that_only_append_are_known(name):
    decoder, local = LOCAL[name]
    core = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    core.decoder = decoder  # pyright: ignore[reportAttributeAccessIssue]
    assert Text(PreTrainedTokenizerFast(tokenizer_object=core)).decodes_locally is local


def test_a_tokenizer_of_another_library_is_not_taken_for_one_that_only_appends():
    class Other:
        eos_token_id = 3

    assert Text(Other()).decodes_locally is False


def test_pieces_are_the_vocabularys_and_none_for_what_leaves_no_text(text):
    assert [text.piece(i) for i in text.encode(" the")] == ["Ġthe"]
    assert text.piece(0) is None and text.piece(10**6) is None
    assert text.special_tokens == {0: "<bos>", 1: "<eos>"}


def test_an_added_token_that_is_not_special_is_text(chat):
    ids = chat.encode("a<think>")[1:]
    assert len(ids) == 2
    assert chat.piece(ids[1]) == "<think>" and ids[1] not in chat.special_tokens
    assert chat.decode(0, ids) == "a<think>"


@pytest.mark.parametrize("bad", [-1, 288, 1.5, "a", None])
def test_an_id_that_is_not_the_models_is_named(bad):
    assert foreign_id([0, 287], 288) is None
    assert repr(bad) in str(foreign_id([0, bad], 288))
