"""Every format reads what it writes, keeps strict and lenient apart, and takes any text in linear time."""

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evalsvc.suites.toolcall.calls import Call
from evalsvc.suites.toolcall.cases import Expect
from evalsvc.suites.toolcall.parsers import FORMATS, detect
from evalsvc.suites.toolcall.parsers import native as own
from evalsvc.suites.toolcall.scoring import judge

from .conftest import BOOK, SCHEMAS, TIME, TIMER

ALL = [pytest.param(form, id=name) for name, form in FORMATS.items()]
MARKED = [pytest.param(form, id=name) for name, form in FORMATS.items() if name not in ("json", "harmony")]


CALLED = Expect.model_validate({"calls": [{"name": "book.table", "arguments": {"people": {"any": True}}}]})
REFRAINED = Expect.model_validate({"no_call": True})


def plain(calls):
    return [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("calls", [[BOOK], [TIME], [BOOK, TIME, TIMER], [TIMER, TIMER]])
@pytest.mark.parametrize("lenient", [False, True])
def test_a_format_reads_what_it_writes(form, calls, lenient):
    parsed = form.parse(form.write(calls), SCHEMAS, lenient=lenient)
    assert plain(parsed.calls) == plain(calls)
    assert (parsed.text, parsed.problems, parsed.repairs, parsed.attempted) == ("", (), (), True)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("form", [p for p in ALL if p.id not in ("glm", "qwen3_coder")])
@settings(max_examples=60, deadline=None)
@given(value=values)
@example(value="</think>")
@example(value={"<think>": "</think>"})
def test_any_value_survives(form, value):
    calls = [Call("f", {"x": value}), Call("g", {})]
    assert plain(form.parse(form.write(calls)).calls) == plain(calls)


@pytest.mark.parametrize("name", ["glm", "qwen3_coder"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(), value=values.filter(lambda v: not isinstance(v, str)))
def test_values_in_tags_take_their_type_from_the_schema(name, text, value):
    form = FORMATS[name]
    schemas = {"f": {"properties": {"s": {"type": "string"}}}}
    calls = [Call("f", {"s": text, "x": value})]
    assert plain(form.parse(form.write(calls), schemas).calls) == plain(calls)


@pytest.mark.parametrize("name", ["glm", "qwen3_coder"])
@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "20095", "20095"),
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "soon", "soon"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "12", 12),
        ({"enum": ["1", "2"]}, "1", "1"),
        (None, "true", True),
        (None, "yes", "yes"),
    ],
)
def test_a_value_in_tags(name, schema, text, value):
    form = FORMATS[name]
    schemas = {"f": {"properties": {"x": schema} if schema else {}}}
    (call,) = form.parse(form.write([Call("f", {"x": text})]), schemas).calls
    assert call.arguments == {"x": value}
    assert type(call.arguments["x"]) is type(value)


def test_an_end_tag_inside_a_value_is_data():
    for name in ("hermes", "glm", "qwen3_coder"):
        form = FORMATS[name]
        call = Call("f", {"s": "a </tool_call> b </arg_value> c </parameter> d </function> <tool_call>"})
        assert plain(form.parse(form.write([call]), {"f": {"properties": {"s": {"type": "string"}}}}).calls) == plain(
            [call]
        )


@pytest.mark.parametrize(
    ("name", "text", "repair"),
    [
        ("hermes", '<tool_call>{"name": "set_timer", "arguments": {"minutes": 5}}', "no end tag"),
        ("hermes", "<tool_call>{'name': 'set_timer', 'arguments': {'minutes': 5}}</tool_call>", "Python literal"),
        (
            "hermes",
            '<tool_call>```json\n{"name": "set_timer", "arguments": {"minutes": 5}}\n```</tool_call>',
            "code fence",
        ),
        ("hermes", '<tool_call>{"name": "set_timer", "parameters": {"minutes": 5}}</tool_call>', "no key 'arguments'"),
        (
            "hermes",
            '<tool_call>{"name": "set_timer", "arguments": "{\\"minutes\\": 5}"}</tool_call>',
            "arguments as text",
        ),
        ("json", 'Sure: {"name": "set_timer", "arguments": {"minutes": 5}}', "text before the call"),
        ("json", '{"name": "set_timer", "arguments": {"minutes": 5}} Done!', "text after the call"),
        ("json", '```json\n{"name": "set_timer", "arguments": {"minutes": 5}}\n```', "code fence"),
        ("json", '[{"name": "set_timer", "arguments": {"minutes": 5}}]', "a list of one call"),
        ("json", '{"name": "set_timer", "arguments": {"minutes": 5}, "id": 1}', "unknown key 'id'"),
        ("llama_json", '{"name": "set_timer", "parameters": {"minutes": 5}} ok?', "text after the call"),
        ("pythonic", "Here: [set_timer(minutes=5)]", "text before the call"),
        ("pythonic", "[set_timer(5)]", "an argument without a name"),
        ("pythonic", "<|python_start|>[set_timer(minutes=5)]", "no end tag"),
        (
            "kimi_k2",
            '<|tool_call_begin|>functions.set_timer:0<|tool_call_argument_begin|>{"minutes": 5}<|tool_call_end|>',
            "no begin of the section",
        ),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>set_timer<|tool_call_argument_begin|>"
            '{"minutes": 5}<|tool_call_end|><|tool_calls_section_end|>',
            "not an id `functions.NAME:IDX`",
        ),
        (
            "deepseek_v31",
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>set_timer<｜tool▁sep｜>{"minutes": 5}<｜tool▁call▁end｜>',
            "no end of the section",
        ),
        ("glm", "<tool_call>set_timer\n<arg_key>minutes</arg_key>\n<arg_value>5</arg_value>\n</tool_call", None),
        (
            "harmony",
            '<|channel|>analysis to=functions.set_timer<|message|>{"minutes": 5}<|call|>',
            "a call on another channel",
        ),
    ],
)
def test_a_repair_is_lenient_and_stated(name, text, repair):
    strict, lenient = (FORMATS[name].parse(text, SCHEMAS, lenient=loose) for loose in (False, True))
    assert strict.problems and not strict.repairs
    if repair is None:
        assert lenient.problems
    else:
        assert plain(lenient.calls) == plain([TIMER])
        assert lenient.problems == () and repair in lenient.repairs


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("lenient", [False, True])
def test_a_call_that_was_cut_off_is_never_completed(form, lenient):
    whole = form.write([Call("book.table", {"people": 25, "where": "Rome"})])
    for end in range(len(whole)):
        for call in form.parse(whole[:end], SCHEMAS, lenient=lenient).calls:
            assert call.name == "book.table"
            assert call.arguments == {"people": 25, "where": "Rome"}, whole[:end]


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize(("thought", "opened"), [(True, True), (True, False), (False, True)])
def test_a_call_drafted_in_thought_is_none(form, thought, opened):
    if form.name == "harmony":
        pytest.skip("has channels")
    draft, said = form.write([TIME]), form.write([TIMER])
    text = f"{'<think>' if opened else ''}maybe {draft} or not</think>\n{said}" if thought else f"<think>maybe {draft}"
    parsed = form.parse(text, SCHEMAS)
    assert plain(parsed.calls) == (plain([TIMER]) if thought else [])
    assert draft in parsed.reasoning and parsed.text == ""
    assert parsed.attempted == thought


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("value", ["</think>", "a </think> b </think>", "<think>x</think>", "<think>", "[/THINK]"])
def test_a_tag_of_thought_inside_an_argument_is_data(form, value, lenient):
    schemas = {"set_timer": {"properties": {"minutes": {"type": "string"}}}, "get_time": {}}
    call = Call("set_timer", {"minutes": value})
    for calls in ([call], [call, TIME], [TIME, call], [call, call]):
        parsed = form.parse(form.write(calls), schemas, lenient=lenient)
        assert (plain(parsed.calls), parsed.text, parsed.reasoning) == (plain(calls), "", "")


@pytest.mark.parametrize("form", [form for form in ALL if form.values[0].name != "harmony"])
def test_a_thought_that_is_a_draft_alone_is_still_a_thought(form):
    draft, said = form.write([TIME]), form.write([TIMER])
    for begins in ("", "<think>"):
        parsed = form.parse(f"{begins}{draft}</think>\n{said}", SCHEMAS)
        assert (plain(parsed.calls), parsed.reasoning, parsed.text) == (plain([TIMER]), draft, "")


def test_text_around_marked_calls_stays_text():
    for name in ("hermes", "mistral", "kimi_k2", "deepseek_v3", "glm"):
        parsed = FORMATS[name].parse(f"Let me see. {FORMATS[name].write([TIMER])}", SCHEMAS)
        assert (plain(parsed.calls), parsed.text, parsed.problems) == (plain([TIMER]), "Let me see.", ())


def test_both_forms_of_mistral():
    listed = json.dumps([{"name": call.name, "arguments": call.arguments} for call in (BOOK, TIME)])
    for text in (f"[TOOL_CALLS]{listed}", FORMATS["mistral"].write([BOOK, TIME])):
        assert plain(FORMATS["mistral"].parse(text).calls) == plain([BOOK, TIME])


def test_ids_are_kept():
    (call, other) = FORMATS["kimi_k2"].parse(FORMATS["kimi_k2"].write([BOOK, TIMER])).calls
    assert (call.id, call.name, other.id) == ("functions.book.table:0", "book.table", "functions.set_timer:1")


def test_harmony_separates_channels():
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I will look.<|end|>"
        '<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{"t": "<|call|>"}<|call|>'
    )
    parsed = FORMATS["harmony"].parse(text)
    assert (parsed.reasoning, parsed.text, parsed.problems) == ("hm", "I will look.", ())
    assert plain(parsed.calls) == [("get_time", {"t": "<|call|>"})]


def test_lfm2_writes_objects_between_its_tags_too():
    text = '<|tool_call_start|>[{"name": "set_timer", "arguments": {"minutes": 5}, "id": "a"}]<|tool_call_end|>'
    for lenient in (False, True):
        assert FORMATS["pythonic"].parse(text, lenient=lenient).calls == (Call("set_timer", {"minutes": 5}, "a"),)
    for cut in range(1, len(text) - len("<|tool_call_end|>")):
        assert FORMATS["pythonic"].parse(text[:cut], lenient=True).calls == ()


def test_a_kimi_template_without_marks_is_known():
    assert detect("{{ '<|im_system|>tool_declare<|im_middle|>' }}") == "kimi_k2"


TEMPLATES = {
    "hermes": '{{- \'\\n<tool_call>\\n{"name": "\' }}',
    "kimi_k2": "<|tool_calls_section_begin|>{% for %}",
    "deepseek_v3": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + '```json'",
    "deepseek_v31": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'",
    "glm": "<tool_call>{{ name }}\n<arg_key>",
    "qwen3_coder": "<tool_call>\n<function=example>\n<parameter=a>",
    "mistral": "[TOOL_CALLS] [{{ call }}]",
    "pythonic": "<|python_start|>[func_name1(params=1)]<|python_end|>",
    "llama_json": "{{ '<|python_tag|>' }}{{ '<|eom_id|>' }}",
    "harmony": "<|start|>assistant<|channel|>final<|message|>",
    None: "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_chat_template_says_the_format(name):
    assert detect(TEMPLATES[name]) == name


@pytest.mark.parametrize(
    "code", ["__import__('os').abort()", "f'{1}'", "1+1", "x", "lambda: 1", "[i for i in a]", "b''"]
)
@pytest.mark.parametrize("lenient", [False, True])
def test_nothing_is_evaluated(code, lenient):
    parsed = FORMATS["pythonic"].parse(f"[set_timer(minutes={code})]", SCHEMAS, lenient=lenient)
    assert parsed.problems and not parsed.calls


PIECES = [mark for form in FORMATS.values() for mark in form.marks] + [
    '{"name": "a", "arguments": {',
    "}",
    "[",
    "]",
    "{",
    '"',
    "'",
    "\\",
    "```json",
    "```",
    "<think>",
    "</think>",
    "</tool_call>",
    "<arg_value>",
    "</arg_value>",
    "</arg_key>",
    "<parameter=a>",
    "</parameter>",
    "</function>",
    "[ARGS]",
    "<|message|>",
    "<|start|>assistant",
    "<|end|>",
    "<|tool_call_begin|>functions.a:0",
    "<|tool_call_argument_begin|>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n",
    "<｜tool▁call▁end｜>",
    "(",
    ")",
    "a(b=",
    ";",
    ":",
    ",",
    " ",
    "\n",
    "-",
    "1e9",
    "9" * 5000,
    "\ud800",
    "\x00",
    "é",
    "name",
    "parameters",
    "true",
    "None",
]


@pytest.mark.parametrize("form", ALL)
@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=25).map("".join), lenient=st.booleans())
def test_any_text_is_taken_apart(form, text, lenient):
    parsed = form.parse(text, SCHEMAS, lenient=lenient)
    assert all(isinstance(call.arguments, dict) and call.name for call in parsed.calls)
    assert parsed.attempted or not parsed.calls
    assert lenient or not parsed.repairs
    for expect in (CALLED, REFRAINED):
        found = judge(parsed, parsed, expect, SCHEMAS, "stop", native=False)
        assert found.error is not None or found.trigger_right


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("depth", [80, 900, 100_000])
def test_deep_arguments_have_a_score(form, depth):
    deep = "[" * depth + "]" * depth
    text = form.write([Call("book.table", {"people": 4, "wishes": 7777})]).replace("7777", deep)
    strict, lenient = (form.parse(text, SCHEMAS, lenient=loose) for loose in (False, True))
    found = judge(strict, lenient, CALLED, SCHEMAS, "stop", native=False)
    assert found.error is not None and found.schema_valid is False


HOSTILE = [
    "[",
    "{",
    '{"name":',
    "(",
    "<tool_call>",
    "<tool_call>{",
    '<tool_call>{"a": "',
    '<tool_call>{"name": "a", "arguments": {}}',
    "<tool_call>a\n<arg_key>k</arg_key><arg_value>",
    "</arg_value> ",
    "<tool_call>\n<function=a>\n<parameter=k>\n",
    "</parameter>\n",
    "[TOOL_CALLS]",
    "[TOOL_CALLS][",
    "[TOOL_CALLS]a",
    "<｜tool▁calls▁begin｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|channel|>",
    "<|channel|>final<|message|>",
    "<|start|>assistant",
    "to=functions.a",
    "<|python_tag|>",
    "{}; ",
    "<|python_start|>[",
    "[a(",
    "[a(b=[",
    "[a(b='",
    "'a' ",
    "-",
    "9",
    " ",
    "\n",
    "\\",
    '"',
    "```",
    "<think>",
    "</think>",
    '"<tool_call>[1,",',
    "a.",
    "x",
]


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("size", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_time_grows_with_the_length_and_no_faster(form, size):
    """Ten times the text, after each kind of beginning: far from the hundredfold time of a quadratic reading.

    A reading that a busy machine held up is measured again.
    """
    for start in ["", *form.marks[:1], form.write([BOOK])[:-3]]:
        for unit in HOSTILE:
            for lenient in (False, True):
                texts = [start + unit * (length // len(unit)) for length in (size, 10 * size)]
                tries = ([_seconds(form, text, lenient) for text in texts] for _ in range(3))
                assert any(took[1] < 0.2 or took[1] < 40 * took[0] for took in tries), (start[:30], unit, lenient)


def _seconds(form, text, lenient):
    began = time.process_time()
    form.parse(text, SCHEMAS, lenient=lenient)
    return time.process_time() - began


def test_the_endpoints_own_list():
    entry = {"id": "c1", "type": "function", "function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}
    parsed = own.read([entry], None or "")
    assert (parsed.calls, parsed.attempted, parsed.problems) == ((Call("set_timer", {"minutes": 5}, "c1"),), True, ())
    assert own.read([], "hi").attempted is False and own.read(None, "hi").text == "hi"


@pytest.mark.parametrize(
    "arguments",
    ["", None, {"minutes": 5}, '{"minutes": 5} x', "{'minutes': 5}"],
    ids=["empty", "none", "object", "more", "quotes"],
)
def test_lists_that_are_read_leniently_alone(arguments):
    entry = {"function": {"name": "set_timer", "arguments": arguments}}
    assert own.read([entry], "").problems and not own.read([entry], "", lenient=True).problems


@pytest.mark.parametrize(
    "entry", [None, {}, {"function": {}}, {"function": {"name": 5}}, {"function": {"name": "a", "arguments": "[1]"}}]
)
def test_lists_that_nobody_can_read(entry):
    assert own.read([entry], "", lenient=True).problems


def test_a_stream_in_any_pieces_makes_the_same_list():
    arguments = json.dumps({"a": "one } two", "n": 73})
    for size in (1, 2, 3, 5, 8, 99):
        parts = [arguments[at : at + size] for at in range(0, len(arguments), size)]
        pieces = [
            {
                "index": call,
                "id": f"c{call}" if not n else None,
                "function": {"name": "f" if not n else None, "arguments": part},
            }
            for call in (0, 1)
            for n, part in enumerate(parts)
        ]
        assert [c["function"]["arguments"] for c in own.join(pieces)] == [arguments] * 2
        interleaved = sorted(pieces, key=lambda piece: piece["id"] is None)
        assert [c["id"] for c in own.join(interleaved)] == ["c0", "c1"]
