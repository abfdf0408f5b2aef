"""What a parser makes of an answer."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """One call as the model wrote it.

    Attributes:
        name: The function's name.
        arguments: Values as JSON has them; nothing is converted to what a schema would like.
        id: Its id, in formats that write one.
    """

    name: str
    arguments: dict[str, Any]
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """An answer taken apart.

    Attributes:
        calls: The calls before the first problem, in the order written.
        text: What the user would read: neither calls nor reasoning. What could not be read stays in it.
        reasoning: Thoughts before the answer; calls drafted in them are none.
        problems: Why the answer is not well-formed; empty when it is.
        repairs: What a lenient reading forgave.
        attempted: Whether a call was begun, well or badly.
    """

    calls: tuple[Call, ...] = ()
    text: str = ""
    reasoning: str = ""
    problems: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    attempted: bool = False


class Malformed(Exception):
    """A call that is not written as its format asks."""


@dataclass
class Leniency:
    """How a text is read: strictly, or with repairs that are noted.

    Attributes:
        on: Whether repairs are allowed.
        done: The repairs made, each once.
    """

    on: bool = False
    done: list[str] = field(default_factory=list)

    def repair(self, what: str) -> None:
        """Notes a repair.

        Raises:
            Malformed: Reading strictly.
        """
        if not self.on:
            raise Malformed(what)
        if what not in self.done:
            self.done.append(what)
