"""What a template shows is tried: one that drops what it does not know answers without a word."""

import pytest

from evalsvc.errors import EngineError
from evalsvc.targets.templates import tried


def shows_all(messages, tools):
    return repr((messages, tools))


def drops_tools_and_system(messages, tools):
    return repr([message for message in messages if message["role"] != "system"])


def refuses_tools(messages, tools):
    if tools:
        raise EngineError("tiny: its chat template takes no tools; leave them out")
    return repr(messages)


@pytest.mark.parametrize(
    ("write", "can"),
    [
        (shows_all, {"chat messages", "system messages", "tools on offer", "results of tools"}),
        (drops_tools_and_system, {"chat messages", "results of tools"}),
        (refuses_tools, {"chat messages", "system messages"}),
    ],
)
def test_a_template_can_what_it_shows(write, can):
    found = tried(write)
    assert {name for name, one in found.items() if one["can"]} == can
    assert len(found) == 4 and all(one["about"] for one in found.values())
    if write is refuses_tools:
        assert found["tools on offer"]["about"].startswith("tiny: its chat template takes no tools")
