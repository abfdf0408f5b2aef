"""Tool calls are scored strictly, and every hostile answer has a score."""

import json

import pytest

from evalsvc.errors import ConfigError
from evalsvc.suites.toolcall import ToolCallSuite
from evalsvc.suites.toolcall.calls import Call
from evalsvc.suites.toolcall.cases import Expect
from evalsvc.suites.toolcall.parsers import FORMATS
from evalsvc.suites.toolcall.scoring import error_of as error_of_parsed
from evalsvc.suites.toolcall.template import template_of

SCHEMAS = {"set_timer": {"type": "object", "properties": {"minutes": {"type": "integer"}}}, "get_weather": {}}
CALL = Expect.model_validate({"call": {"name": "set_timer", "arguments": {"minutes": 5}}})
REFUSE = Expect.model_validate({"no_call": "no tool"})


def error_of(text, expect):
    return error_of_parsed(FORMATS["json"].parse(text, SCHEMAS), expect, SCHEMAS)


def call(name="set_timer", **arguments):
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (call(minutes=5), None),
        (f"  {call(minutes=5)}\n", None),
        ('{"arguments": {"minutes": 5}, "name": "set_timer"}', None),
        (call(minutes=6), "wrong_value"),
        (call(minutes=5.0), "wrong_type"),
        (call(minutes="5"), "wrong_type"),
        (call(minutes=True), "wrong_type"),
        (call(), "missing_required"),
        (call(minutes=5, unit="s"), "extra_argument"),
        (call("get_weather", minutes=5), "wrong_tool"),
        ('{"name": 5, "arguments": {}}', "unparsable"),
        ('{"name": "set_timer"}', "unparsable"),
        ('{"name": "set_timer", "arguments": [5]}', "unparsable"),
        ('{"name": "set_timer", "arguments": {"minutes": 5}, "id": 1}', "unparsable"),
        (f"[{call(minutes=5)}]", "unparsable"),
        ("5", "not_triggered"),
        ("", "not_triggered"),
        ("Sure!", "not_triggered"),
        (call(minutes=5) + call(minutes=5), "unparsable"),
        (f"Call: {call(minutes=5)}", "unparsable"),
        ("no tool", "not_triggered"),
        ('{"name": "set_timer", "name": "set_timer", "arguments": {"minutes": 5}}', "unparsable"),
        ('{"name": "set_timer", "arguments": {"minutes": NaN}}', "unparsable"),
        ('{"name": "set_timer", "arguments": {"minutes": -Infinity}}', "unparsable"),
        ('{"name": "set_timer", "arguments": {"minutes": 1e999}}', "wrong_type"),
        ('{"name": "set_timer", "arguments": {"minutes": ' + "9" * 6000 + "}}", "unparsable"),
        ('{"name": "\\ud800", "arguments": {}}', "hallucinated_tool"),
        ("\ud800", "not_triggered"),
        ("[" * 100_000, "unparsable"),
        ('{"name":' * 100_000, "unparsable"),
        ("x" * 1_000_000, "not_triggered"),
        (call(minutes=5) + " " * 1_000_000, None),
        ('"' + "x" * 1_000_000 + '"', "not_triggered"),
    ],
)
def test_an_answer_where_a_call_is_right(text, error):
    assert error_of(text, CALL) == error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (" no tool ", None),
        ("No tool", "other_text"),
        ("no tool fits", "other_text"),
        ("", "other_text"),
        ("[" * 100_000, "called_when_should_refrain"),
        (call(minutes=5), "called_when_should_refrain"),
        ('{"name": "set_tim', "called_when_should_refrain"),
    ],
)
def test_an_answer_where_a_refusal_is_right(text, error):
    assert error_of(text, REFUSE) == error


def test_deep_arguments_are_compared_without_following_the_answer(tmp_path):
    deep = "[" * 900 + "]" * 900
    assert error_of('{"name": "set_timer", "arguments": {"minutes": ' + deep + "}}", CALL) == "wrong_type"


def case(**changes):
    made = {
        "id": "a",
        "input": "User: hi\nCall:",
        "tools": [{"name": "set_timer", "arguments": {"minutes": "integer"}}],
        "expect": {"call": {"name": "set_timer", "arguments": {"minutes": 5}}},
    }
    return made | changes


def write(tmp_path, *cases):
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(c) + "\n" for c in cases))
    return path


def test_a_users_own_case_needs_no_prefix_and_is_scored(tmp_path, answer):
    whole = case(prompt="Say it.", input=None, family="mine")
    suite = ToolCallSuite("own", write(tmp_path, whole, case(id="b")))
    mine, other = suite.items()
    assert (mine.family, mine.cluster, other.family) == ("mine", "", "own")
    request = suite.next_request(mine, [])
    assert request is not None
    assert (request.prompt, request.stop) == ("Say it.", ("\n",))
    assert suite.next_request(mine, [answer("x")]) is None
    right, *_ = suite.score(mine, [answer(call(minutes=5))])
    wrong, *_ = suite.score(mine, [answer("five")])
    assert (right.metric, right.value, right.error_class) == (mine.metric, 1.0, None)
    assert (wrong.value, wrong.error_class) == (0.0, "not_triggered")


def test_the_item_hash_follows_what_is_right_and_not_the_limits(tmp_path):
    def hash_of(**changes):
        return ToolCallSuite("s", write(tmp_path, case(**changes))).items()[0].sha256

    assert hash_of() == hash_of(max_tokens=9, stop=["\n\n"])
    assert hash_of() != hash_of(expect={"no_call": "no tool"})
    assert hash_of() != hash_of(tools=[{"name": "set_timer", "arguments": {"minutes": "number"}}])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"expect": {}}, "either `call` or `no_call`"),
        ({"expect": {"no_call": "x", "call": {"name": "set_timer", "arguments": {}}}}, "either `call` or `no_call`"),
        ({"expect": {"call": {"name": "fly", "arguments": {}}}}, "'fly' is not among the tools"),
        ({"tools": []}, "tools"),
        ({"tools": [{"name": "x"}, {"name": "x"}]}, "same name"),
        ({"tool": []}, "unknown key 'tool'"),
    ],
)
def test_a_wrong_case_is_named_with_its_line(tmp_path, changes, complaint):
    path = write(tmp_path, case(), case(id="b", **changes))
    with pytest.raises(ConfigError, match=complaint) as caught:
        ToolCallSuite("s", path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "\n" not in str(caught.value)


WEATHER = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def talk(**changes):
    return {
        "id": "t",
        "messages": [{"role": "user", "content": "Rome and Oslo?"}],
        "tools": [{"type": "function", "function": WEATHER}],
        "expect": {
            "calls": [
                {"name": "get_weather", "arguments": {"city": "Rome"}},
                {"name": "get_weather", "arguments": {"city": "Oslo"}},
            ]
        },
        "turns": [{"results": ["18", "4"], "user": "And in words?", "expect": {"no_call": True}}],
    } | changes


def in_turn(form, *cities):
    return FORMATS[form].write([Call("get_weather", {"city": city}) for city in cities])


def test_a_conversation_goes_on_with_the_recorded_results_of_the_calls_as_they_came(tmp_path, answer):
    suite = ToolCallSuite("s", write(tmp_path, talk()), form="kimi_k2")
    (item,) = suite.items()
    assert item.filter == "kimi_k2"
    first = suite.next_request(item, [])
    assert first is not None and list(first.prompt) == [{"role": "user", "content": "Rome and Oslo?"}]
    assert [tool["function"]["name"] for tool in first.tools] == ["get_weather"]
    assert (first.stop, first.max_tokens, first.keep_special) == ((), 512, True)
    said = answer(in_turn("kimi_k2", "Oslo", "Rome"))
    second = suite.next_request(item, [said])
    assert second is not None
    _, called, one, two, asked = second.prompt
    assert [call["function"]["arguments"]["city"] for call in called["tool_calls"]] == ["Oslo", "Rome"]
    assert (one["content"], one["tool_call_id"]) == ("4", "functions.get_weather:0")
    assert (two["content"], two["tool_call_id"]) == ("18", "functions.get_weather:1")
    assert asked == {"role": "user", "content": "And in words?"}
    done = [said, answer("Warm and cold.")]
    assert suite.next_request(item, done) is None
    scores = {score.metric: score for score in suite.score(item, done)}
    assert {score.filter for score in scores.values()} == {"kimi_k2"}
    assert {name: score.value for name, score in scores.items()} == dict.fromkeys(
        (
            "correct",
            "correct_lenient",
            "triggered",
            "trigger_right",
            "schema_valid",
            "function_right",
            "arguments_right",
        ),
        1.0,
    )


def test_a_conversation_ends_with_its_first_wrong_answer(tmp_path, answer):
    suite = ToolCallSuite("s", write(tmp_path, talk()), form="hermes")
    (item,) = suite.items()
    wrong = [answer(in_turn("hermes", "Rome", "Paris"))]
    assert suite.next_request(item, wrong) is None
    scores = suite.score(item, wrong)
    assert (scores[0].metric, scores[0].value, scores[0].error_class) == ("correct", 0.0, "wrong_value")
    late = [answer(in_turn("hermes", "Rome", "Oslo")), answer(in_turn("hermes", "Rome"))]
    assert (suite.score(item, late)[0].value, suite.score(item, late)[0].error_class) == (
        0.0,
        "called_when_should_refrain",
    )


def test_plain_json_tells_the_tools_and_the_results_in_messages(tmp_path, answer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rome and Oslo?"}]
    suite = ToolCallSuite("s", write(tmp_path, talk(messages=messages)), form="json")
    (item,) = suite.items()
    request = suite.next_request(item, [])
    assert request is not None and (request.tools, request.keep_special) == ((), False)
    assert (
        request.prompt[0]["content"].startswith("Be brief.\n\nYou can call")
        and '"city"' in request.prompt[0]["content"]
    )
    said = in_turn("json", "Rome", "Oslo")
    following = suite.next_request(item, [answer(said)])
    assert following is not None
    assert following.prompt[2] == {"role": "assistant", "content": said}
    assert following.prompt[3]["content"] == ("Result of get_weather: 18\nResult of get_weather: 4\n\nAnd in words?")


def test_the_format_is_the_templates_unless_the_suite_names_one(tmp_path):
    path = write(tmp_path, talk(), case(id="b"))
    taught = ToolCallSuite("s", path, template="{{ '<tool_call>' }}").items()
    assert [item.filter for item in taught] == ["hermes", "json"]
    assert [item.filter for item in ToolCallSuite("s", path, form="glm").items()] == ["glm", "glm"]
    assert [item.filter for item in ToolCallSuite("s", path, template="ChatML").items()] == ["json", "json"]
    with pytest.raises(ConfigError, match="give the suite `format:`"):
        ToolCallSuite("s", path)
    with pytest.raises(ConfigError, match="no format 'xml'"):
        ToolCallSuite("s", path, form="xml")


def test_the_template_is_read_from_a_model_directory(tmp_path):
    assert template_of(tmp_path / "absent") is None and template_of(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "one"}))
    assert template_of(tmp_path) == "one"
    both = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    config.write_text(json.dumps({"chat_template": both}))
    assert template_of(tmp_path) == "tools"
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert template_of(tmp_path) == "beside"


def test_the_endpoints_own_calls_are_read(tmp_path, answer):
    suite = ToolCallSuite("s", write(tmp_path, talk(turns=[])), form="native")
    (item,) = suite.items()

    class Listed:
        text, finish_reason = "", "tool_calls"
        tool_calls = tuple(
            {"id": city, "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}
            for city in ("Rome", "Oslo")
        )

    right, *_ = suite.score(item, [Listed()])  # pyright: ignore[reportArgumentType]
    assert (right.value, right.filter) == (1.0, "native")
    left, *_ = suite.score(item, [answer(in_turn("hermes", "Rome", "Oslo"))])
    assert left.error_class == "call_in_text"


YAML = """\
- id: t
  messages: [{role: user, content: "Rome?"}]
  tools:
    - name: get_weather
      parameters: {type: object, properties: {city: {type: string}}}
  expect:
    calls: [{name: get_weather, arguments: {city: {same_text: rome}}}]
- id: u
  prompt: Say it.
  tools: [{name: get_time}]
  expect: {ask_back: true}
"""


def test_cases_may_be_a_yaml_list(tmp_path, answer):
    path = tmp_path / "cases.yaml"
    path.write_text(YAML)
    one, two = ToolCallSuite("s", path, form="hermes").items()
    suite = ToolCallSuite("s", path, form="hermes")
    assert suite.score(one, [answer(in_turn("hermes", " ROME"))])[0].value == 1
    assert suite.score(two, [answer("When?")])[0].value == 1
    path.write_text(YAML.replace("ask_back", "ask_bak"))
    with pytest.raises(ConfigError, match=r"cases\.yaml:11: unknown key 'expect\.ask_bak'"):
        ToolCallSuite("s", path, form="hermes")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"messages": None}, "either `prompt` or `input` or `messages`"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "has `content`"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "the last one is not the assistant's"),
        ({"tools": [{"name": "get_weather", "parameters": {"type": "dict"}}]}, "not a JSON Schema of draft 2020-12"),
        ({"tools": [WEATHER | {"arguments": {}}]}, "either `parameters` or"),
        ({"tools": [{"name": "get_weather", "arguments": {"x": "text"}}]}, "tools.0.arguments.x"),
        ({"turns": [{"results": ["18"], "expect": {"no_call": True}}]}, "1 results of 2 calls"),
        ({"expect": {"no_call": True}, "turns": [{"expect": {"no_call": True}}]}, "neither `results` nor `user`"),
        ({"expect": {"calls": [{"name": "fly"}]}}, "'fly' is not among the tools"),
        ({"expect": {"calls": [{"name": "get_weather", "arguments": {"city": {"x": 1}}}]}}, "unknown key"),
        ({"expect": {"calls": [{"name": "get_weather", "arguments": {"city": {}}}]}}, "a matcher has exactly one of"),
        ({"expect": {"calls": [{"name": "get_weather", "arguments": {"city": {"regex": "("}}}]}}, "not a pattern"),
        (
            {"expect": {"calls": [{"name": "get_weather", "arguments": {"city": {"any": True, "abs": 1}}}]}},
            "`abs` and `rel`",
        ),
        ({"expect": {"no_call": True, "order": "fixed"}}, "`order` goes with `calls`"),
        ({"expect": {"ask_back": []}}, "are empty"),
    ],
)
def test_a_wrong_conversation_is_named_with_its_line(tmp_path, changes, complaint):
    path = write(tmp_path, case(), talk(**changes))
    with pytest.raises(ConfigError, match=complaint) as caught:
        ToolCallSuite("s", path, form="hermes")
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("form", "kind"), [("hermes", dict), ("mistral", dict), ("deepseek_v31", str)])
def test_calls_go_into_the_history_as_templates_want_them(tmp_path, answer, form, kind):
    suite = ToolCallSuite("s", write(tmp_path, talk()), form=form)
    (item,) = suite.items()
    request = suite.next_request(item, [answer(in_turn(form, "Rome", "Oslo"))])
    assert request is not None
    calls = request.prompt[1]["tool_calls"]
    assert all(isinstance(call["function"]["arguments"], kind) for call in calls)
    assert all(len(call["id"]) == 9 and call["id"].isalnum() for call in calls)
    assert [message["tool_call_id"] for message in request.prompt[2:4]] == [call["id"] for call in calls]
