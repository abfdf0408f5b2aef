"""Forty tools: what each is for, its arguments, and how a person asks for it."""

from collections.abc import Callable
from random import Random
from typing import Any

from making.base import CITIES, MONTHS, NAMES, WORDS, words

TITLES = words("choir practice|dentist|parents' evening|swimming lesson|book club|board meeting|car wash|chess", "|")
TEXTS = words("buy milk|water the ferns|call the bank|renew the passport|clean the oven|charge the camera", "|")
DISHES = words("lentil soup|apple pie|fried rice|potato salad|onion tart|pea risotto|plum cake|fish stew", "|")
FILES = words("cover.png|team.jpg|map.png|logo.jpg|poster.png|beach.jpg|chart.png|garden.jpg", "|")
PLACES = words("the station|the museum|the airport|the library|the harbour|the market|the stadium|the theatre", "|")
LANGUAGES = words("French Italian Polish Greek Dutch Swedish Turkish Welsh")
TOPPINGS = words("olives|mushrooms|onions|spinach|peppers|artichokes|capers|corn", "|")
STRING, INTEGER, NUMBER = ({"type": kind} for kind in ("string", "integer", "number"))
DATE = {"type": "string", "description": "YYYY-MM-DD"}
Draw = Callable[[Random], Any]

KINDS: dict[str, tuple[dict[str, Any], Draw]] = {
    "city": (STRING, lambda r: r.choice(CITIES)),
    "name": (STRING, lambda r: r.choice(NAMES)),
    "word": (STRING, lambda r: r.choice(WORDS)),
    "title": (STRING, lambda r: r.choice(TITLES)),
    "text": (STRING, lambda r: r.choice(TEXTS)),
    "dish": (STRING, lambda r: r.choice(DISHES)),
    "file": (STRING, lambda r: r.choice(FILES)),
    "place": (STRING, lambda r: r.choice(PLACES)),
    "language": (STRING, lambda r: r.choice(LANGUAGES)),
    "parcel": (STRING, lambda r: f"{r.choice('ABCDEFGH')}{r.choice('KLMNPQRS')}{r.randint(1000, 9999)}"),
    "clock": ({"type": "string", "description": "HH:MM"}, lambda r: f"{r.randint(10, 22)}:{r.choice((15, 30, 45))}"),
    "date": (DATE, lambda r: f"{r.randint(2024, 2031)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"),
    "few": (INTEGER, lambda r: r.randint(2, 12)),
    "count": (INTEGER, lambda r: r.randint(13, 98)),
    "amount": (NUMBER, lambda r: r.randint(21, 980)),
    "names": ({"type": "array", "items": STRING}, lambda r: r.sample(NAMES, 2)),
    "toppings": ({"type": "array", "items": STRING}, lambda r: r.sample(TOPPINGS, 2)),
}
CURRENCY = "EUR|USD|GBP|JPY"

# Description, arguments, and requests; a request has every argument, a date in words.
TOOLS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "get_weather": ("weather in a city", {"city": "city"}, ["Will it rain in {city} today?", "Is it cold in {city}?"]),
    "set_timer": ("start a timer", {"minutes": "count"}, ["Set a timer for {minutes} minutes."]),
    "set_alarm": ("wake the user at a time", {"time": "clock"}, ["Wake me at {time}.", "I must be up at {time}."]),
    "send_message": ("send a text message", {"to": "name", "text": "text"}, ['Text {to}: "{text}".']),
    "call_contact": ("phone a person", {"name": "name"}, ["Ring {name}.", "Get {name} on the phone."]),
    "book_table": (
        "book a restaurant table",
        {"people": "few", "time": "clock", "name": "name"},
        ["A table for {people} at {time}, please, the name is {name}.", "Book {name} a table for {people} at {time}."],
    ),
    "translate_word": ("translate a word", {"word": "word", "language": "language"}, ["What is {word} in {language}?"]),
    "convert_currency": (
        "convert money",
        {"amount": "amount", "source": CURRENCY, "target": CURRENCY},
        ["How much is {amount} {source} in {target}?"],
    ),
    "convert_length": (
        "convert a length",
        {"value": "amount", "source": "meter|mile|foot", "target": "kilometer|inch|yard"},
        ["Turn a length of {value} in the unit {source} into the unit {target}."],
    ),
    "get_time": ("local time in a city", {"city": "city"}, ["What time is it in {city}?"]),
    "play_song": ("play a song", {"title": "word"}, ["Play the song {title}.", "I want to hear {title}."]),
    "set_volume": ("set the loudness", {"percent": "count"}, ["Turn the music to {percent} percent."]),
    "set_light": (
        "color of a room's light",
        {"room": "kitchen|bedroom|office|hall", "color": "red|blue|green|white"},
        ["Make the light in the {room} {color}.", "I want {color} light in the {room}."],
    ),
    "set_heating": (
        "heat a room",
        {"room": "kitchen|bedroom|office|hall", "mode": "off|eco|comfort"},
        ["Put the heating of the {room} on {mode}."],
    ),
    "lock_door": ("lock a door", {"door": "front|back|garage|cellar"}, ["Lock the {door} door."]),
    "add_event": ("put into the calendar", {"title": "title", "date": "date"}, ["Put {title} on {date}."]),
    "list_events": ("events of a day", {"date": "date"}, ["What is on my calendar on {date}?"]),
    "set_reminder": ("remind on a day", {"text": "text", "date": "date"}, ["Remind me on {date} to {text}."]),
    "add_task": (
        "add to the task list",
        {"text": "text", "priority": "low|medium|high"},
        ["New task: {text}. Priority {priority}.", "With {priority} priority I have to {text}."],
    ),
    "create_note": ("write a note down", {"text": "text"}, ["Note this down: {text}.", "Write a note: {text}."]),
    "find_route": (
        "find the way",
        {"goal": "place", "mode": "foot|bike|car|train"},
        ["How do I get to {goal} by {mode}?", "Show me the way to {goal} by {mode}."],
    ),
    "call_taxi": ("order a taxi", {"place": "place", "people": "few"}, ["A taxi for {people} to {place}, please."]),
    "search_flights": (
        "look for flights",
        {"origin": "city", "goal": "city", "date": "date"},
        ["Which flights go from {origin} to {goal} on {date}?"],
    ),
    "book_hotel": (
        "book a hotel room",
        {"city": "city", "arrival": "date", "nights": "few"},
        ["A hotel in {city} from {arrival} for {nights} nights."],
    ),
    "track_parcel": ("where a parcel is", {"number": "parcel"}, ["Where is parcel {number}?", "Track {number}."]),
    "order_pizza": (
        "order a pizza",
        {"size": "small|medium|large", "toppings": "toppings"},
        ["One {size} pizza with {toppings}."],
    ),
    "add_to_cart": ("put into the cart", {"item": "word", "quantity": "few"}, ["I need {quantity} of this: {item}."]),
    "get_recipe": ("look up a recipe", {"dish": "dish"}, ["How do I cook {dish}?", "Find a recipe for {dish}."]),
    "log_meal": ("note what was eaten", {"food": "dish", "grams": "count"}, ["I ate {grams} grams of {food}."]),
    "start_workout": (
        "start training",
        {"kind": "running|rowing|yoga|boxing", "minutes": "count"},
        ["I do {minutes} minutes of {kind} now."],
    ),
    "get_sunrise": (
        "when the sun rises",
        {"city": "city", "date": "date"},
        ["When is sunrise in {city} on {date}?"],
    ),
    "add_contact": (
        "save a contact",
        {"contact": {"name": "name", "city": "city"}},
        ["Save {contact[name]} from {contact[city]} as a contact."],
    ),
    "resize_image": (
        "change an image's size",
        {"file": "file", "size": {"width": "count", "height": "count"}},
        ["Make {file} {size[width]} wide and {size[height]} high."],
    ),
    "ship_order": (
        "send goods",
        {"goods": {"item": "word", "quantity": "few"}, "receiver": {"name": "name", "city": "city"}},
        ["Ship {goods[quantity]} of {goods[item]} to {receiver[name]} in {receiver[city]}."],
    ),
    "transfer_money": (
        "send money",
        {"to": "name", "amount": "amount", "currency": CURRENCY},
        ["Send {to} {amount} {currency}.", "Transfer {amount} {currency} to {to}."],
    ),
    "roll_dice": ("roll dice", {"count": "few", "sides": "count"}, ["Roll {count} dice of {sides} sides."]),
    "define_word": ("meaning of a word", {"word": "word"}, ["What does {word} mean?", "Look up the word {word}."]),
    "get_news": ("latest news", {"topic": "word", "limit": "few"}, ["Show me {limit} news items about {topic}."]),
    "water_plants": (
        "water a part of the garden",
        {"zone": "roof|balcony|lawn|hedge", "liters": "few"},
        ["Give the {zone} {liters} liters of water."],
    ),
    "schedule_meeting": (
        "set up a meeting",
        {"title": "title", "date": "date", "guests": "names"},
        ["Plan {title} for {date} with {guests}."],
    ),
}


def schema(kind: Any) -> dict[str, Any]:
    """JSON Schema of an argument: a kind's, an enumeration's, or an object's."""
    if isinstance(kind, dict):
        inner = {key: schema(value) for key, value in kind.items()}
        return {"type": "object", "properties": inner, "required": list(inner), "additionalProperties": False}
    return {"type": "string", "enum": kind.split("|")} if "|" in kind else KINDS[kind][0]


def tool(name: str) -> dict[str, Any]:
    """A tool as a case has it."""
    said, arguments, _ = TOOLS[name]
    return {"name": name, "description": said, "parameters": schema(arguments)}


def value(kind: Any, rng: Random) -> Any:
    """A random value of an argument."""
    if isinstance(kind, dict):
        return {key: value(inner, rng) for key, inner in kind.items()}
    return rng.choice(kind.split("|")) if "|" in kind else KINDS[kind][1](rng)


def arguments(name: str, rng: Random) -> dict[str, Any]:
    """Random arguments of a tool; no two are equal, so that a conversion converts and a flight leads elsewhere."""
    while True:
        made = value(TOOLS[name][1], rng)
        plain = [v for v in made.values() if isinstance(v, str)]
        if len(set(plain)) == len(plain):
            return made


def spoken(kind: Any, given: Any) -> Any:
    """An argument as a request says it: a date in words, a list with `and`."""
    if isinstance(kind, dict):
        return {key: spoken(inner, given[key]) for key, inner in kind.items()}
    if kind == "date":
        year, month, day = map(int, given.split("-"))
        return f"{MONTHS[month - 1]} {day}, {year}"
    return " and ".join(given) if isinstance(given, list) else given


def ask(name: str, rng: Random) -> dict[str, Any]:
    """One request with its call."""
    made = arguments(name, rng)
    said = rng.choice(TOOLS[name][2]).format(**spoken(TOOLS[name][1], made))
    return {"user": said, "call": {"name": name, "arguments": made}}


def with_kind(*kinds: str, most: int = 9) -> list[str]:
    """Tools that have an argument of one of the kinds (`|`: an enumeration, `{`: an object)."""
    return [
        name
        for name, (_, given, _) in TOOLS.items()
        if len(given) <= most and any(map(kinds.__contains__, _sorts(given)))
    ]


def _sorts(given: dict[str, Any]) -> list[str]:
    return ["{" if isinstance(kind, dict) else "|" if "|" in kind else kind for kind in given.values()]
