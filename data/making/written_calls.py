"""Tool-call cases written by hand: indirect wordings, dates and units to work out, things left open.

A case: request, tools that it is about, how many others stand around them, what is right, and later turns.
"""

from typing import Any


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": {key: _matcher(value) for key, value in arguments.items()}}


def _matcher(value: Any) -> Any:
    if isinstance(value, str):
        return {"same_text": value}
    return value if isinstance(value, dict) else {"exact": value}


def calls(*right: dict[str, Any]) -> dict[str, Any]:
    return {"calls": list(right)}


def then(results: list[str], user: str | None, expect: dict[str, Any]) -> dict[str, Any]:
    return {"results": results, "expect": expect} | ({} if user is None else {"user": user})


NO_CALL = {"no_call": True}
OSLO, ROME = call("get_weather", city="Oslo"), call("get_weather", city="Rome")
WRITTEN: dict[str, list[tuple[Any, ...]]] = {
    "simple": [
        ("My eggs take a quarter of an hour. Let me know.", ["set_timer"], 6, calls(call("set_timer", minutes=15))),
        (
            "Half past six in the evening, and I am asleep: wake me.",
            ["set_alarm"],
            6,
            calls(call("set_alarm", time="18:30")),
        ),
        (
            "It is far too quiet; half of the full loudness would do.",
            ["set_volume"],
            6,
            calls(call("set_volume", percent=50)),
        ),
        (
            'Let everybody know? No, only Nora: text her the words "I am late".',
            ["send_message"],
            6,
            calls(call("send_message", to="Nora", text="I am late")),
        ),
        ("A dozen six-sided dice, throw them.", ["roll_dice"], 6, calls(call("roll_dice", count=12, sides=6))),
    ],
    "choice": [
        (
            "I wonder whether I can leave my coat at home in Lisbon today.",
            ["get_weather"],
            39,
            calls(call("get_weather", city="Lisbon")),
        ),
        (
            "Is it too late to phone my aunt in Tokyo? Just look at the clock there.",
            ["get_time"],
            39,
            calls(call("get_time", city="Tokyo")),
        ),
        ('I never understood what "ribbon" means.', ["define_word"], 39, calls(call("define_word", word="ribbon"))),
        (
            "My dear friend Victor would love to hear my voice.",
            ["call_contact"],
            39,
            calls(call("call_contact", name="Victor")),
        ),
        (
            "Burglars come through the cellar, they say. Make that door safe.",
            ["lock_door"],
            39,
            calls(call("lock_door", door="cellar")),
        ),
        (
            "D4711 was sent a week ago and is still not here.",
            ["track_parcel"],
            39,
            calls(call("track_parcel", number={"same_text": ["D4711"]})),
        ),
    ],
    "parallel": [
        ("Compare the weather of Oslo with that of Rome.", ["get_weather"], 8, calls(OSLO, ROME)),
        (
            "Lock front and back, and also the garage.",
            ["lock_door"],
            8,
            calls(*(call("lock_door", door=d) for d in ("front", "back", "garage"))),
        ),
        (
            "What time is it in Lima and in Seoul, and is it cold in Seoul?",
            ["get_time", "get_weather"],
            8,
            calls(call("get_time", city="Lima"), call("get_time", city="Seoul"), call("get_weather", city="Seoul")),
        ),
        (
            "Kitchen light green, bedroom light red.",
            ["set_light"],
            8,
            calls(call("set_light", room="kitchen", color="green"), call("set_light", room="bedroom", color="red")),
        ),
        (
            "Two timers: one of 10 minutes, one of twice that.",
            ["set_timer"],
            8,
            calls(call("set_timer", minutes=10), call("set_timer", minutes=20)),
        ),
    ],
    "nested": [
        (
            "Our customer Irene in Vienna gets a dozen kites.",
            ["ship_order"],
            8,
            calls(
                call(
                    "ship_order",
                    goods={"object": {"item": {"same_text": ["kite", "kites"]}, "quantity": 12}},
                    receiver={"object": {"name": "Irene", "city": "Vienna"}},
                )
            ),
        ),
        (
            "I met Hugo, who lives in Dublin. Keep that.",
            ["add_contact"],
            8,
            calls(call("add_contact", contact={"object": {"name": "Hugo", "city": "Dublin"}})),
        ),
        (
            "logo.jpg should be a square of 64.",
            ["resize_image"],
            8,
            calls(call("resize_image", file="logo.jpg", size={"object": {"width": 64, "height": 64}})),
        ),
        (
            "map.png: 90 high and a third of that wide.",
            ["resize_image"],
            8,
            calls(call("resize_image", file="map.png", size={"object": {"width": 30, "height": 90}})),
        ),
    ],
    "enums": [
        (
            "This is really urgent: renew the passport. Onto the list with it.",
            ["add_task"],
            8,
            calls(call("add_task", text="renew the passport", priority="high")),
        ),
        (
            "How many yen are 300 dollars?",
            ["convert_currency"],
            8,
            calls(call("convert_currency", amount={"number": 300}, source="USD", target="JPY")),
        ),
        (
            "The office should be the color of the sky.",
            ["set_light"],
            8,
            calls(call("set_light", room="office", color="blue")),
        ),
        (
            "Nobody is in the hall for weeks: no heating there at all.",
            ["set_heating"],
            8,
            calls(call("set_heating", room="hall", mode="off")),
        ),
        (
            "I walk to the harbour. Which way?",
            ["find_route"],
            8,
            calls(call("find_route", goal={"same_text": ["harbour", "the harbour"]}, mode="foot")),
        ),
    ],
    "dates": [
        (
            "Is there anything on the last day of February 2028?",
            ["list_events"],
            8,
            calls(call("list_events", date="2028-02-29")),
        ),
        (
            "Put chess on the day before the first of March 2027.",
            ["add_event"],
            8,
            calls(call("add_event", title="chess", date="2027-02-28")),
        ),
        (
            "When does the sun rise in Cairo on Christmas Eve 2026?",
            ["get_sunrise"],
            8,
            calls(call("get_sunrise", city="Cairo", date="2026-12-24")),
        ),
        (
            "A hotel in Prague from 30.12.2026, a fortnight.",
            ["book_hotel"],
            8,
            calls(call("book_hotel", city="Prague", arrival="2026-12-30", nights=14)),
        ),
        (
            "Two hours and a half of rowing, starting now.",
            ["start_workout"],
            8,
            calls(call("start_workout", kind="rowing", minutes=150)),
        ),
        (
            "I ate a quarter of a kilogram of plum cake.",
            ["log_meal"],
            8,
            calls(call("log_meal", food="plum cake", grams=250)),
        ),
    ],
    "irrelevant": [
        ("I have set the timer myself already, thank you.", ["set_timer"], 8, NO_CALL),
        ("What is a good way to remember people's names?", ["add_contact"], 8, NO_CALL),
        ("Do you think that Oslo is a pretty city?", ["get_weather", "get_time"], 8, NO_CALL),
        ("How do taxis know the way?", ["call_taxi", "find_route"], 8, NO_CALL),
        ("Do not send any money to Karl, whatever he says.", ["transfer_money"], 8, NO_CALL),
    ],
    "asking": [
        ("Send Rosa some money.", ["transfer_money"], 8, {"ask_back": ["how much", "amount", "currency"]}),
        ("Book us a table for 4 at 19:30.", ["book_table"], 8, {"ask_back": ["name"]}),
        (
            "I want to fly to Athens on May 4, 2027.",
            ["search_flights"],
            8,
            {"ask_back": ["from", "where", "origin", "depart"]},
        ),
        ("A pizza with olives and capers.", ["order_pizza"], 8, {"ask_back": ["size", "large", "big", "small"]}),
    ],
    "turns": [
        (
            "Is it colder in Oslo than in Rome?",
            ["get_weather"],
            6,
            calls(OSLO, ROME),
            then(["4 degrees", "18 degrees"], None, NO_CALL),
            then([], "And in Lima?", calls(call("get_weather", city="Lima"))),
        ),
        (
            "Where is parcel K8123?",
            ["track_parcel", "call_contact"],
            6,
            calls(call("track_parcel", number="K8123")),
            then(
                ["left with the neighbour, Wanda"],
                "Get that neighbour on the phone.",
                calls(call("call_contact", name="Wanda")),
            ),
        ),
        (
            "Find a recipe for pea risotto.",
            ["get_recipe", "add_to_cart"],
            6,
            calls(call("get_recipe", dish="pea risotto")),
            then(
                ["peas, rice, 2 onions, 1 lemon"],
                "I have everything but the lemons; put twice as many as needed into the cart.",
                calls(call("add_to_cart", item={"same_text": ["lemon", "lemons"]}, quantity=2)),
            ),
        ),
        (
            "Wake me.",
            ["set_alarm"],
            6,
            {"ask_back": ["time", "when"]},
            then(
                [],
                "At a quarter to seven in the morning.",
                calls(call("set_alarm", time={"one_of": ["06:45", "6:45"]})),
            ),
        ),
    ],
}
