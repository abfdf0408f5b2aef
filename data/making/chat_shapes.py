"""Format cases as conversations, without examples, for larger models: each kind of constraint by a template."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from making.base import NAMES, SEED
from making.base import words as words_of
from making.documents import DOCUMENTS

DRAWS = 2
THINGS = words_of(
    "window table spoon drum kite bell rope hat jacket basket candle bottle garden pencil mirror carpet pillow castle "
    "hammer kettle needle ribbon saddle tunnel ladder button bridge clock lamp chair"
)
Made = tuple[str, list[dict[str, Any]], str]  # what is asked, constraints, a right answer
SAID = (
    "A {} is a useful thing.",
    "Many people own one.",
    "Some are old and some are new.",
    "You see them in every town.",
    "They last for years.",
    "Few things are as simple.",
)


def about(thing: str, count: int, between: str = " ") -> str:
    return between.join(SAID[:count]).format(thing)


def words(rng: Random, thing: str) -> Made:
    most = rng.randint(8, 20)
    return (
        f"What is a {thing}? Answer with at most {most} words.",
        [{"kind": "words", "min": 3, "max": most}],
        about(thing, 1),
    )


def sentences(rng: Random, thing: str) -> Made:
    n = rng.randint(2, 5)
    right = [{"kind": "sentences", "min": n, "max": n}]
    return f"Write exactly {n} sentences about a {thing}.", right, about(thing, n)


def characters(rng: Random, thing: str) -> Made:
    most = rng.randint(60, 120)
    right = [{"kind": "characters", "min": 10, "max": most}]
    return f"Describe a {thing} in at most {most} characters, spaces included.", right, about(thing, 1)


def lines(rng: Random, thing: str) -> Made:
    n = rng.randint(3, 5)
    right = [{"kind": "lines", "min": n, "max": n}]
    return f"Write a poem of exactly {n} lines about a {thing}. No title.", right, about(thing, n, "\n")


def paragraphs(rng: Random, thing: str) -> Made:
    n = rng.randint(2, 4)
    right = [{"kind": "paragraphs", "min": n, "max": n}]
    return f"Write {n} paragraphs about a {thing}, a blank line between two.", right, about(thing, n, "\n\n")


def paragraph_start(rng: Random, thing: str) -> Made:
    right = [{"kind": "paragraph_start", "paragraph": 2, "of": 3, "word": "Many"}]
    asked = f"Write 3 paragraphs about a {thing}, a blank line between two. The second begins with the word Many."
    return asked, right, about(thing, 3, "\n\n")


def stop_words(rng: Random, thing: str) -> Made:
    most = rng.choice((40, 45, 50))
    asked = f"Sell a {thing} in one line in which at most {most} % of the words are words like the, of or and."
    return asked, [{"kind": "stop_words", "max_percent": most}], f"Beautiful {thing}, barely used, fair price!"


def bullets(rng: Random, thing: str) -> Made:
    n = rng.randint(3, 5)
    right = [{"kind": "bullets", "min": n, "max": n}]
    return f"Say {n} things about a {thing}, each as a bullet (- ...).", right, "- " + about(thing, n, "\n- ")


def numbered_list(rng: Random, thing: str) -> Made:
    n = rng.randint(3, 6)
    text = "\n".join(f"{place}. {said}" for place, said in enumerate(about(thing, n, "|").split("|"), 1))
    right = [{"kind": "numbered_list", "n": n, "only": True}]
    return f"Write a numbered list of exactly {n} facts about a {thing} and nothing else.", right, text


def highlights(rng: Random, thing: str) -> Made:
    n = rng.randint(2, 4)
    text = "*" + about(thing, n, "* *") + "*"
    asked = f"Write about a {thing} and put at least {n} phrases in asterisks, *like this*."
    return asked, [{"kind": "highlights", "min": n}], text


def sections(rng: Random, thing: str) -> Made:
    n = rng.randint(2, 4)
    text = "\n".join(f"Part {place}\n{said}" for place, said in enumerate(about(thing, n, "|").split("|"), 1))
    asked = f"Explain a {thing} in {n} sections, headed Part 1, Part 2 and so on."
    return asked, [{"kind": "sections", "word": "Part", "min": n, "max": n}], text


def placeholders(rng: Random, thing: str) -> Made:
    n = rng.randint(2, 4)
    text = f"I sell a {thing}: " + ", ".join(("[name]", "[street]", "[price]", "[date]")[:n]) + "."
    asked = f"Write an advertisement for a {thing} with at least {n} placeholders in square brackets, like [name]."
    return asked, [{"kind": "placeholders", "min": n}], text


def title(rng: Random, thing: str) -> Made:
    asked = f"Write a short text about a {thing} with a title in double angular brackets, <<like this>>."
    return asked, [{"kind": "title"}], f"<<The {thing}>>\n{about(thing, 3)}"


def quoted(rng: Random, thing: str) -> Made:
    return (
        f'Say something about a {thing}, all of it in "quotation marks".',
        [{"kind": "quoted"}],
        f'"{about(thing, 2)}"',
    )


def postscript(rng: Random, thing: str) -> Made:
    asked = f"Write a short letter about a {thing} that ends with a postscript beginning with P.S."
    return asked, [{"kind": "postscript"}], f"{about(thing, 3)}\n\nP.S. {SAID[4]}"


def two_responses(rng: Random, thing: str) -> Made:
    asked = f"Give two different descriptions of a {thing}, and between them only the line ******."
    return asked, [{"kind": "two_responses"}], f"{about(thing, 1)}\n******\n{SAID[1]}"


def include(rng: Random, thing: str) -> Made:
    given = rng.sample([word for word in THINGS if word != thing], 2)
    asked = f"Write a sentence about a {thing} with the words {given[0]} and {given[1]}."
    return asked, [{"kind": "include", "words": given}], f"The {thing} stood by the {given[0]} and the {given[1]}."


def exclude(rng: Random, thing: str) -> Made:
    asked = f"Describe a {thing} in two sentences without using the words {thing}, the and of."
    right = [{"kind": "exclude", "words": [thing, "the", "of"]}, {"kind": "sentences", "min": 2, "max": 2}]
    return asked, right, " ".join(SAID[1:3])


def frequency(rng: Random, thing: str) -> Made:
    n = rng.randint(2, 4)
    asked = f"Write a text with the word {thing} exactly {n} times."
    return asked, [{"kind": "frequency", "word": thing, "min": n, "max": n}], " ".join([f"I see a {thing}."] * n)


def letter(rng: Random, thing: str) -> Made:
    most = rng.randint(1, 3)
    asked = f"Describe a {thing} in one sentence in which the letter z occurs at least {most} times."
    return asked, [{"kind": "letter", "letter": "z", "min": most}], f"A {thing} of azure and bronze is a prize."


def no_commas(rng: Random, thing: str) -> Made:
    right = [{"kind": "no_commas"}, {"kind": "sentences", "min": 3}]
    return f"Write at least 3 sentences about a {thing} without any comma.", right, about(thing, 3)


def choice(rng: Random, thing: str) -> Made:
    right = [{"kind": "choice", "options": ["yes", "no", "maybe"]}]
    return f"Would you buy a {thing}? Answer with yes, no or maybe: one word in small letters.", right, "maybe"


def regex(rng: Random, thing: str) -> Made:
    asked = f"Make up an order number for a {thing}: three capitals, a dash and four digits, and nothing else."
    return asked, [{"kind": "regex", "pattern": "[A-Z]{3}-[0-9]{4}"}], f"ABC-{rng.randint(1000, 9999)}"


def starts_with(rng: Random, thing: str) -> Made:
    name = rng.choice(NAMES)
    asked = f"Write to {name} about a {thing}. Begin with exactly: Dear {name},"
    return asked, [{"kind": "starts_with", "text": f"Dear {name},"}], f"Dear {name},\n{about(thing, 2)}"


def ends_with(rng: Random, thing: str) -> Made:
    asked = f"Write a sales talk for a {thing} that ends with exactly: Any questions?"
    return asked, [{"kind": "ends_with", "text": "Any questions?"}], f"{about(thing, 2)} Any questions?"


def repeats(rng: Random, thing: str) -> Made:
    asked = f"How do I clean a {thing}?"
    whole = f"First repeat the next line word for word, then answer it.\n{asked}"
    return whole, [{"kind": "repeats", "text": asked}], f"{asked}\nWith warm water."


def stops_at(rng: Random, thing: str) -> Made:
    asked = f"Write two sentences about a {thing}, then ###, and nothing after it."
    return asked, [{"kind": "stops_at", "marker": "###"}], f"{about(thing, 2)} ###"


def nothing_after(rng: Random, thing: str) -> Made:
    asked = f"Write two sentences about a {thing}, each followed by the word OVER, and nothing after the last one."
    right = [{"kind": "nothing_after", "marker": "OVER"}, {"kind": "frequency", "word": "OVER", "min": 2, "max": 2}]
    return asked, right, f"{SAID[0].format(thing)} OVER\n{SAID[1]} OVER"


def language(rng: Random, thing: str) -> Made:
    code, name, text = rng.choice(
        (
            ("de", "German", "Das ist ein sehr schönes Ding. Ich möchte es gern behalten."),
            ("fr", "French", "C'est une très belle chose. Je voudrais la garder chez moi."),
            ("es", "Spanish", "Es una cosa muy bonita. Me gustaría guardarla en mi casa."),
        )
    )
    return f"Describe a {thing} in two sentences in {name}.", [{"kind": "language", "language": code}], text


def casing(rng: Random, thing: str) -> Made:
    case, named = rng.choice((("upper", "capital"), ("lower", "small")))
    text = about(thing, 2)
    right = [{"kind": "casing", "case": case}]
    return f"Describe a {thing} in {named} letters only.", right, text.upper() if case == "upper" else text.lower()


def capital_words(rng: Random, thing: str) -> Made:
    n = rng.randint(2, 4)
    right = [{"kind": "capital_words", "min": n}]
    text = " ".join(f"This {thing} is NICE." for _ in range(n))
    return f"Praise a {thing} and write at least {n} words in capitals.", right, text


TEXTS: tuple[Callable[[Random, str], Made], ...] = (
    words,
    sentences,
    characters,
    lines,
    paragraphs,
    paragraph_start,
    stop_words,
    bullets,
    numbered_list,
    highlights,
    sections,
    placeholders,
    title,
    quoted,
    postscript,
    two_responses,
    include,
    exclude,
    frequency,
    letter,
    no_commas,
    choice,
    regex,
    starts_with,
    ends_with,
    repeats,
    stops_at,
    nothing_after,
    language,
    casing,
    capital_words,
)


def case(id_: str, family: str, level: str, made: Made) -> dict[str, Any]:
    asked, constraints, text = made
    messages = [{"role": "user", "content": asked}]
    right = {"constraints": constraints, "example": text}
    return {"id": id_, "family": family, "level": level, "messages": messages, **right}


def medium() -> Iterator[dict[str, Any]]:
    """Every template some times, each time about another thing."""
    for draw in (*DOCUMENTS, *TEXTS):
        name = draw.__name__.rstrip("_")
        rng = Random(f"{SEED}:shapes:medium:{name}")
        for number, thing in enumerate(rng.sample(THINGS, DRAWS)):
            yield case(f"{name}-medium-{number}", name, "medium", draw(rng, thing))
