"""Tools, calls and a short way to judge a text."""

from pathlib import Path

import pytest

from evalsvc.suites.toolcall.calls import Call
from evalsvc.suites.toolcall.cases import Expect, Tool
from evalsvc.suites.toolcall.parsers import FORMATS
from evalsvc.suites.toolcall.scoring import judge

SHARED = Path(__file__).parents[5] / "shared"

SCHEMAS = {
    tool["name"]: Tool.model_validate(tool).schema_
    for tool in [
        {
            "name": "book.table",
            "parameters": {
                "type": "object",
                "properties": {
                    "people": {"type": "integer"},
                    "where": {"type": "string"},
                    "budget": {"type": "number"},
                    "wishes": {"type": "array", "items": {"type": "object"}},
                    "note": {"type": "string"},
                },
                "required": ["people", "where"],
            },
        },
        {"name": "get_time", "arguments": {}},
        {"name": "set_timer", "arguments": {"minutes": "integer"}},
    ]
}
BOOK = Call(
    "book.table", {"people": 4, "where": "Trattoria 'Da Ü', \"old\"; town", "budget": -33.5, "wishes": [{"a": None}]}
)
TIME = Call("get_time", {})
TIMER = Call("set_timer", {"minutes": 5})


@pytest.fixture
def judged():
    """`judged(text, expect, form="hermes", finish="stop")`: what becomes of an answer."""

    def judge_text(text, expect, form="hermes", finish="stop"):
        strict, lenient = (FORMATS[form].parse(text, SCHEMAS, lenient=loose) for loose in (False, True))
        return judge(strict, lenient, Expect.model_validate(expect), SCHEMAS, finish, native=False)

    return judge_text


@pytest.fixture(scope="session")
def shared():
    """Folder of public data; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no public data beside the project")
    return SHARED
