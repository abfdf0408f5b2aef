"""Writes every file under data/tasks and data/suites. `python data/generate.py [FOLDER]`.

Each family has `PREFIXES` few-shot prefixes, each its own draw of shots (for tools, its own draw and order of three
tools), and `PER_PREFIX[family]` items under each prefix. Raise those numbers for a sharper verdict, run the script and
commit what it wrote: a test compares the committed bytes with a fresh run. All randomness comes from one
`random.Random` per family and prefix, seeded by name; nothing here depends on how any model answers.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from making.base import (
    CITIES,
    JOBS,
    MONTHS,
    NAMES,
    PREFIXES,
    SEED,
    WORDS,
    Cases,
    Draw,
    Shots,
    fresh,
    plan,
    prefix_id,
    words,
    write,
    write_cases,
    write_lines,
)
from making.calls import write_calls
from making.shapes import write_shapes

PER_PREFIX = {"addition": 4, "copying": 4, "dates": 3, "choosing": 4, "refraining": 3, "json": 3, "marker": 4}


Drawn = Iterator[tuple[int, Shots, Shots]]  # prefix number, shots, documents


def sum_of_two(rng: Random) -> dict[str, Any]:
    a, b = rng.randint(3, 29), rng.randint(3, 19)
    near = [a + b + d for d in range(-3, 4) if d]
    return {"a": a, "b": b, "choices": [str(n) for n in (a + b, *rng.sample(near, 3))], "gold": 0}


def at_position(doc: dict[str, Any], gold: int) -> dict[str, Any]:
    """Moves the right choice, drawn first, to a position."""
    rest = doc["choices"][1:]
    return doc | {"choices": [*rest[:gold], doc["choices"][0], *rest[gold:]], "gold": gold}


def addition() -> Drawn:
    seen: set[Any] = set()
    for number, rng in plan("addition"):
        answers: set[Any] = set()
        shots = [at_position(fresh(rng, sum_of_two, right_sum, answers), rng.randrange(4)) for _ in range(3)]
        seen |= {(s["a"], s["b"]) for s in shots}
        docs = []
        while len(docs) < PER_PREFIX["addition"]:
            doc = fresh(rng, sum_of_two, lambda d: (d["a"], d["b"]), seen)
            if right_sum(doc) not in answers:
                docs.append(doc)
        order = [i % 4 for i in range(len(docs))]
        rng.shuffle(order)
        yield number, shots, [at_position(d, gold) for d, gold in zip(docs, order, strict=True)]


def right_sum(doc: dict[str, Any]) -> int:
    return doc["a"] + doc["b"]


def list_of_four(rng: Random) -> dict[str, Any]:
    keys, values = rng.sample(WORDS, 4), rng.sample(range(11, 100), 4)
    asked = rng.randrange(4)
    lines = "\n".join(f"{k}: {v}" for k, v in zip(keys, values, strict=True))
    return {"lines": lines, "key": keys[asked], "value": str(values[asked])}


def some_date(rng: Random) -> dict[str, Any]:
    year, month, day = rng.randint(1950, 2019), rng.randint(1, 12), rng.randint(1, 28)
    # No field holds a whole ISO date: the JSON reader of `datasets` would turn it into a timestamp.
    text = f"{MONTHS[month - 1]} {day}, {year}"
    return {"text": text, "year": f"{year:04d}", "month": f"{month:02d}", "day": f"{day:02d}"}


def generative(family: str, draw: Draw, shots: int, answer: Callable[[dict[str, Any]], Any]) -> Drawn:
    """Shots with different answers, and new documents whose answer no shot of their prefix has."""
    seen: set[Any] = set()
    for number, rng in plan(family):
        under: set[Any] = set()
        drawn = [fresh(rng, draw, answer, under) for _ in range(shots)]
        docs = []
        while len(docs) < PER_PREFIX[family]:
            doc = fresh(rng, draw, lambda d: json.dumps(d), seen)
            if answer(doc) not in under:
                docs.append(doc)
        yield number, drawn, docs


BASE = """\
# {title}
dataset_path: json
test_split: test
fewshot_split: shots
fewshot_config: {{sampler: first_n}}
num_fewshot: {shots}
doc_to_text: "{text}"
doc_to_target: "{target}"
{rest}"""
GENERATED = """\
output_type: generate_until
generation_kwargs: {{until: ["\\n"], max_gen_toks: {limit}, do_sample: false}}
filter_list:
  - name: strip
    filter: [{{function: remove_whitespace}}, {{function: take_first}}]
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
CHOSEN = """\
output_type: multiple_choice
doc_to_choice: choices
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""


def task_families() -> Iterator[tuple[str, dict[str, Any], Drawn]]:
    """Name, what the base configuration says, and the documents of the families that lm-eval runs."""
    said: dict[str, Any] = {
        "title": "Sums, chosen among four numbers by log-likelihood.",
        "shots": 3,
        "text": "Question: What is {{a}} plus {{b}}?\\nAnswer:",
        "target": "gold",
        "rest": CHOSEN,
    }
    yield "addition", said, addition()
    said = {
        "title": "Copying the line of a key from a list of four.",
        "shots": 2,
        "text": "List:\\n{{lines}}\\nCopy the line of {{key}}.\\n{{key}}:",
        "target": "value",
        "rest": GENERATED.format(limit=6),
    }
    yield "copying", said, generative("copying", list_of_four, 2, lambda d: d["value"])
    said = {
        "title": "Dates into ISO form.",
        "shots": 4,
        "text": "{{text}} =",
        "target": "{{year}}-{{month}}-{{day}}",
        "rest": GENERATED.format(limit=14) + 'fewshot_delimiter: "\\n"\n',
    }
    yield "dates", said, generative("dates", some_date, 4, lambda d: (d["year"], d["month"], d["day"]))


def write_tasks(root: Path) -> None:
    """One folder a family: a base configuration, and a small one with its two files of documents per prefix."""
    for family, said, drawn in task_families():
        folder = root / "tasks" / family
        write(folder / "_base.yaml", BASE.format(**said))
        for number, shown, docs in drawn:
            write_lines(folder / f"p{number}.jsonl", docs)
            write_lines(folder / f"p{number}_shots.jsonl", shown)
            write(
                folder / f"p{number}.yaml",
                f"include: _base.yaml\ntask: evalsvc_{family}_p{number}\n"
                f"dataset_kwargs: {{data_files: {{test: p{number}.jsonl, shots: p{number}_shots.jsonl}}}}\n"
                f"metadata: {{version: 1, family: {family}, prefix: {prefix_id(family, number)}}}\n",
            )


TOOLS = {
    "set_timer": ("minutes", "integer", "start a timer of some minutes"),
    "send_email": ("to", "string", "send an email to a person"),
    "get_weather": ("city", "string", "weather in a city"),
    "book_table": ("people", "integer", "book a restaurant table for some people"),
    "translate": ("word", "string", "translate a word into French"),
}
ASKS = {
    "set_timer": ("Set a timer for {} minutes.", "Count down {} minutes for the eggs.", "Wake me in {} minutes."),
    "send_email": ("Mail {} my thanks.", "Send an email to {}.", "Write to {} that I am late."),
    "get_weather": ("Will it rain in {} today?", "What is the weather like in {}?", "Is it cold in {}?"),
    "book_table": ("Get us a table for {} people.", "Book dinner for {} people.", "We are {} people and want to eat."),
    "translate": ("What is {} in French?", "Translate {} for me.", "How do the French say {}?"),
}
NO_TOOL = "no tool"
CHAT = words(
    "Tell me something nice.|What is a comet?|What rhymes with moon?|Who wrote Hamlet?|Why is the sky blue?|"
    "Name three colors.|How many legs has a spider?|What is the opposite of hot?|Tell me a joke.|"
    "What do bees make?|Who painted the Mona Lisa?|Is a whale a fish?|What is seven times eight?|Say good night.|"
    "How old is the moon?|What is bread made of?|Which animal is the tallest?|Why do cats purr?|"
    "What is the largest ocean?|Give me a name for a dog.|Who was the first king?|What do owls eat?|"
    "How does a candle burn?|What is a good book?|Why do leaves fall?|Which metal is liquid?|Tell me about Mars.|"
    "How many days has June?|What is a sonnet?|Do fish sleep?|What makes a rainbow?|Who invented paper?|"
    "What is the speed of light?|Why is the sea salty?|Name a large bird.|How tall is a giraffe?|"
    "What is a prime number?|Tell me a short story.|What do pandas eat?|Who discovered gravity?|"
    "Are you awake?|What is the capital of Peru?|How is glass made?|Which fruit is yellow?|What is a haiku?|"
    "Why do we yawn?|How long is a year?|What does a cello sound like?",
    "|",
)


def tool_value(tool: str, rng: Random) -> str | int:
    ranges: dict[str, Callable[[], str | int]] = {
        "set_timer": lambda: rng.randint(3, 59),
        "send_email": lambda: rng.choice(NAMES),
        "get_weather": lambda: rng.choice(CITIES),
        "book_table": lambda: rng.randint(2, 12),
        "translate": lambda: rng.choice(WORDS),
    }
    return ranges[tool]()


def ask(tool: str, rng: Random) -> dict[str, Any]:
    """One request that a tool answers, with its call."""
    value = tool_value(tool, rng)
    call = {"name": tool, "arguments": {TOOLS[tool][0]: value}}
    return {"tool": tool, "user": rng.choice(ASKS[tool]).format(value), "call": call}


def user_turn(text: str) -> str:
    return f"User: {text}\nCall:"


def tools_text(names: list[str], refuse: bool) -> str:
    lines = [f"- {n}({TOOLS[n][0]}): {TOOLS[n][2]}" for n in names]
    return "\n".join(["Tools:", *lines, *([f"If no tool fits, write: {NO_TOOL}"] if refuse else [])]) + "\n\n"


def tool_case(prefix: str, number: int, names: list[str], text: str, expect: dict[str, Any]) -> dict[str, Any]:
    tools = [{"name": n, "description": TOOLS[n][2], "arguments": {TOOLS[n][0]: TOOLS[n][1]}} for n in names]
    return {
        "id": f"{prefix}-{number}",
        "family": prefix.rsplit("-", 1)[0],
        "prefix": prefix,
        "input": user_turn(text),
        "stop": ["\n"],
        "max_tokens": 36,
        "tools": tools,
        "expect": expect,
    }


def choosing() -> Cases:
    seen: set[Any] = set()
    for number, rng in plan("choosing"):
        prefix, names = prefix_id("choosing", number), rng.sample(sorted(TOOLS), 3)
        used: set[Any] = set()
        order = rng.sample(names, 3) + rng.sample(names, 3)
        shots = [fresh(rng, lambda r, t=t: ask(t, r), lambda m: json.dumps(m["call"]), used) for t in order]
        text = tools_text(names, False) + "".join(f"{user_turn(s['user'])} {json.dumps(s['call'])}\n\n" for s in shots)
        wanted = [names[i % 3] for i in range(PER_PREFIX["choosing"])]
        rng.shuffle(wanted)
        seen |= {s["user"] for s in shots}
        items = []
        for tool in wanted:
            made = fresh(rng, lambda r, t=tool: ask(t, r), lambda m: m["user"], seen)
            while json.dumps(made["call"]) in used:
                made = fresh(rng, lambda r, t=tool: ask(t, r), lambda m: m["user"], seen)
            items.append(tool_case(prefix, len(items), names, made["user"], {"call": made["call"]}))
        yield {"id": prefix, "text": text}, items


def refraining() -> Cases:
    if len(CHAT) < PREFIXES * (1 + PER_PREFIX["refraining"]):
        raise ValueError(f"CHAT has {len(CHAT)} questions, too few for {PREFIXES} prefixes: write more")
    questions = Random(f"{SEED}:questions").sample(CHAT, len(CHAT))
    for number, rng in plan("refraining"):
        prefix, names = prefix_id("refraining", number), rng.sample(sorted(TOOLS), 3)
        turns = [(m["user"], json.dumps(m["call"])) for m in (ask(t, rng) for t in rng.sample(names, 3))]
        turns += [(questions.pop(), NO_TOOL)]
        turns += [(m["user"], json.dumps(m["call"])) for m in (ask(t, rng) for t in rng.sample(names, 2))]
        text = tools_text(names, True) + "".join(f"{user_turn(q)} {a}\n\n" for q, a in turns)
        asked = [questions.pop() for _ in range(PER_PREFIX["refraining"])]
        expect = {"no_call": NO_TOOL}
        yield {"id": prefix, "text": text}, [tool_case(prefix, i, names, q, expect) for i, q in enumerate(asked)]


PERSON = (
    "The {job} {name}, aged {age}, moved to {city} last spring.",
    "{name} is {age} years old and works as a {job} in {city}.",
    "At {age}, {name} is still a {job} and lives in {city}.",
)


def person(rng: Random) -> dict[str, Any]:
    fields = {
        "name": rng.choice(NAMES),
        "age": rng.randint(19, 79),
        "job": rng.choice(JOBS),
        "city": rng.choice(CITIES),
    }
    return {"text": rng.choice(PERSON).format(**fields), "fields": fields}


def format_case(prefix: str, number: int, text: str, limit: int, check: dict[str, Any]) -> dict[str, Any]:
    family = prefix.rsplit("-", 1)[0]
    case = {"id": f"{prefix}-{number}", "family": family, "prefix": prefix, "input": text}
    return case | {"stop": ["\n"], "max_tokens": limit, "check": check}


def json_family() -> Cases:
    def turn(text: str) -> str:
        return f"Text: {text}\nJSON:"

    for number, shots, docs in generative("json", person, 2, lambda m: m["fields"]["name"]):
        prefix = prefix_id("json", number)
        shown = "".join(f"{turn(s['text'])} {json.dumps(s['fields'])}\n\n" for s in shots)
        cases = [format_case(prefix, i, turn(d["text"]), 48, {"json_equals": d["fields"]}) for i, d in enumerate(docs)]
        yield {"id": prefix, "text": shown}, cases


def marker_family() -> Cases:
    def turn(words: list[str]) -> str:
        return f"Copy the words and then write END.\nWords: {' '.join(words)}\nCopy:"

    for number, rng in plan("marker"):
        prefix = prefix_id("marker", number)
        shots = [rng.sample(WORDS, n) for n in rng.sample((2, 3, 4), 3)]
        shown = "".join(f"{turn(s)} {' '.join(s)} END\n\n" for s in shots)
        cases = []
        for i in range(PER_PREFIX["marker"]):
            words = rng.sample(WORDS, rng.randint(5, 9))
            check = {"text_equals": " ".join([*words, "END"]), "marker": "END"}
            cases.append(format_case(prefix, i, turn(words), 32, check))
        yield {"id": prefix, "text": shown}, cases


def main(root: Path) -> None:
    """Writes everything under a folder."""
    write_tasks(root)
    write_cases(root / "suites" / "tools.jsonl", choosing(), refraining())
    write_cases(root / "suites" / "formats.jsonl", json_family(), marker_family())
    write_calls(root / "suites" / "calls.jsonl")
    write_shapes(root / "suites" / "shapes.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
