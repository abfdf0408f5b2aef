"""Format cases written by hand: several constraints at once. A case: request, constraints, a right answer."""

import json
from typing import Any

DAYS = {
    "january": 31,
    "february": 29,
    "march": 31,
    "april": 30,
    "may": 31,
    "june": 30,
    "july": 31,
    "august": 31,
    "september": 30,
    "october": 31,
    "november": 30,
    "december": 31,
}
MONTHS = list(DAYS)
DECADES = [{"from": start, "to": start + 9} for start in (0, 10, 20)]
CUBES = ["n,square,cube", *(f"{n},{n**2},{n**3}" for n in range(1, 6))]
WRITTEN: dict[str, list[tuple[str, list[dict[str, Any]], str]]] = {
    "combined": [
        (
            "Name three rivers: a numbered list, each in capitals, and nothing else.",
            [{"kind": "numbered_list", "n": 3, "only": True}, {"kind": "casing", "case": "upper"}],
            "1. NILE\n2. RHINE\n3. VOLGA",
        ),
        (
            "Explain rain in two sentences of at most 25 words in all, without a comma. End with: That is rain.",
            [
                {"kind": "sentences", "min": 2, "max": 2},
                {"kind": "words", "max": 25},
                {"kind": "no_commas"},
                {"kind": "ends_with", "text": "That is rain."},
            ],
            "Water rises as vapour and falls again as drops. That is rain.",
        ),
        (
            "Write four bullets (- ...) about bread. Each is a line of its own, the word flour occurs exactly twice, "
            "and the word dough not at all.",
            [
                {"kind": "bullets", "min": 4, "max": 4},
                {"kind": "lines", "min": 4, "max": 4},
                {"kind": "frequency", "word": "flour", "min": 2, "max": 2},
                {"kind": "exclude", "words": ["dough"]},
            ],
            "- It begins with flour.\n- Any flour will do.\n- Salt gives it taste.\n- It is baked hot.",
        ),
        (
            "Answer in German, in small letters only, with at most 20 words: what is a bridge?",
            [
                {"kind": "casing", "case": "lower", "language": "de"},
                {"kind": "words", "min": 4, "max": 20},
            ],
            "eine brücke ist ein bauwerk, das über einen fluss oder eine straße führt.",
        ),
        (
            "Write three paragraphs on sleep, divided by a line ***, the last one in quotation marks... no: none in "
            "quotation marks, and with the words night and rest somewhere.",
            [
                {"kind": "paragraphs", "divider": "***", "min": 3, "max": 3},
                {"kind": "include", "words": ["night", "rest"]},
                {"kind": "exclude", "words": ['"'], "match": "substring"},
            ],
            "Sleep is rest.\n***\nIt comes at night.\n***\nNobody does without it.",
        ),
        (
            "Write a letter to Mr. Hill with a title in <<double angular brackets>>, two placeholders in square "
            "brackets, and a postscript beginning with P.S.",
            [{"kind": "title"}, {"kind": "placeholders", "min": 2, "max": 2}, {"kind": "postscript"}],
            "<<An offer>>\nDear Mr. Hill, come on [date] to [place].\n\nP.S. Bring your hat.",
        ),
        (
            "Give two sentences on the sea, divided by ###, and write a word of each in capitals.",
            [
                {"kind": "two_responses", "divider": "###"},
                {"kind": "capital_words", "min": 2},
            ],
            "The sea is DEEP. ### The sea is SALTY.",
        ),
        (
            "Three paragraphs on tea, a blank line between two. The second begins with the word However, the last ends "
            "with the word cup.",
            [
                {"kind": "paragraph_start", "paragraph": 2, "of": 3, "word": "However"},
                {"kind": "paragraphs", "min": 3, "max": 3},
                {"kind": "regex", "pattern": r"(?s).*\bcup[.!]?"},
            ],
            "Tea is a drink.\n\nHowever, it is a plant too.\n\nIt is best from a good cup.",
        ),
        (
            "Describe a lamp in 10 to 20 words and three sentences, without the letter x, and put the whole answer "
            "in double quotation marks.",
            [
                {"kind": "words", "min": 10, "max": 20},
                {"kind": "sentences", "min": 3, "max": 3},
                {"kind": "letter", "letter": "x", "max": 0},
                {"kind": "quoted"},
            ],
            '"A lamp gives light. It stands on a table. At night it is very useful."',
        ),
        (
            "Five bullets (- ...) with one fruit each, in small letters, no fruit with the letter p, and then a line "
            "of its own: end",
            [
                {"kind": "bullets", "min": 5, "max": 5},
                {"kind": "casing", "case": "lower"},
                {"kind": "letter", "letter": "p", "max": 0},
                {"kind": "stops_at", "marker": "\nend"},
            ],
            "- kiwi\n- mango\n- fig\n- lemon\n- cherry\nend",
        ),
        (
            "Repeat this line word for word, then answer it in French in one more line: Where is the station?",
            [
                {"kind": "repeats", "text": "Where is the station?"},
                {"kind": "lines", "min": 2, "max": 2},
                {"kind": "regex", "pattern": r"(?s).*\b(gare|près|derrière|devant|est)\b.*"},
            ],
            "Where is the station?\nLa gare est derrière le parc.",
        ),
        (
            "Two sections, headed Step 1 and Step 2, each with two highlighted phrases (*like this*), in all at "
            "most 60 words, and no comma.",
            [
                {"kind": "sections", "word": "Step", "min": 2, "max": 2},
                {"kind": "highlights", "min": 4, "max": 4},
                {"kind": "words", "max": 60},
                {"kind": "no_commas"},
            ],
            "Step 1\nTake *flour* and *salt*.\nStep 2\nAdd *water* and *wait*.",
        ),
        (
            "Eight words that rhyme with light: a numbered list and nothing else, none of them with the letters gh.",
            [
                {"kind": "numbered_list", "n": 8, "only": True},
                {"kind": "exclude", "words": ["gh"], "match": "substring"},
            ],
            "1. kite\n2. bite\n3. site\n4. white\n5. quite\n6. write\n7. invite\n8. polite",
        ),
    ],
    "documents": [
        (
            "JSON alone: an object with 12 keys, the names of the months in small letters and in order, each with "
            "its number of days in a leap year.",
            [{"kind": "json", "strict_integers": True, "keys": MONTHS, "schema": {"const": DAYS}}],
            json.dumps(DAYS),
        ),
        (
            "YAML alone: a list of three mappings with the keys from and to, for 0 to 9, 10 to 19 and 20 to 29.",
            [{"kind": "yaml", "schema": {"const": DECADES}}],
            "- from: 0\n  to: 9\n- from: 10\n  to: 19\n- from: 20\n  to: 29",
        ),
        (
            "CSV with the columns n, square and cube for n from 1 to 5, and nothing else.",
            [{"kind": "regex", "pattern": r"\s*".join(CUBES)}, {"kind": "csv", "columns": ["n", "square", "cube"]}],
            "\n".join(CUBES),
        ),
        (
            "JSON alone: an array of exactly three objects with the keys id (1, 2, 3) and square (of the id), in this "
            "order of keys.",
            [
                {
                    "kind": "json",
                    "schema": {"const": [{"id": 1, "square": 1}, {"id": 2, "square": 4}, {"id": 3, "square": 9}]},
                },
                {"kind": "regex", "pattern": r'(?s)\[\s*(\{\s*"id".*?"square"[^}]*\}\s*,?\s*){3}\]'},
            ],
            '[{"id": 1, "square": 1}, {"id": 2, "square": 4}, {"id": 3, "square": 9}]',
        ),
        (
            "A JSON object in one code fence and nothing around it: name is null, sizes has the even numbers up to 8 "
            "and open is false.",
            [
                {
                    "kind": "json",
                    "around": "fence",
                    "strict_integers": True,
                    "schema": {"const": {"name": None, "sizes": [2, 4, 6, 8], "open": False}},
                },
                {"kind": "starts_with", "text": "```"},
            ],
            '```json\n{"name": null, "sizes": [2, 4, 6, 8], "open": false}\n```',
        ),
        (
            "YAML alone: host is db.local, port is 5432, users is a list of two mappings, ada with admin true and bob "
            "with admin false (keys name and admin).",
            [
                {
                    "kind": "yaml",
                    "keys": ["host", "port", "users"],
                    "schema": {
                        "properties": {
                            "host": {"const": "db.local"},
                            "port": {"const": 5432},
                            "users": {"const": [{"name": "ada", "admin": True}, {"name": "bob", "admin": False}]},
                        }
                    },
                }
            ],
            "host: db.local\nport: 5432\nusers:\n- name: ada\n  admin: true\n- name: bob\n  admin: false",
        ),
        (
            "CSV with semicolons, header key;note, two rows. The first note has a semicolon in it, so it stands in "
            "double quotes.",
            [
                {"kind": "csv", "delimiter": ";", "columns": ["key", "note"], "min_rows": 2, "max_rows": 2},
                {"kind": "regex", "pattern": r'key;note\n[^;\n]+;"[^"\n]*;[^"\n]*"\n[^\n]+'},
            ],
            'key;note\na;"first; and more"\nb;second',
        ),
        (
            "A sentence, then a markdown table with the columns n and double for n from 1 to 4, then the word END.",
            [
                {"kind": "table", "columns": ["n", "double"], "min_rows": 4, "max_rows": 4, "around": True},
                {"kind": "stops_at", "marker": "END"},
                {"kind": "regex", "pattern": r"(?s).*\|\s*4\s*\|\s*8\s*\|?.*"},
            ],
            "Here it is.\n\n| n | double |\n| --- | --- |\n| 1 | 2 |\n| 2 | 4 |\n| 3 | 6 |\n| 4 | 8 |\n\nEND",
        ),
        (
            "XML alone with the root list and three entry elements, of which the second is empty.",
            [
                {"kind": "xml", "root": "list", "elements": ["entry"]},
                {
                    "kind": "regex",
                    "pattern": r"(?s).*<entry>[^<]+</entry>\s*<entry\s*(/>|>\s*</entry>)\s*<entry>[^<]+</entry>.*",
                },
            ],
            "<list><entry>a</entry><entry/><entry>b</entry></list>",
        ),
        (
            "Two fenced python blocks and nothing else: the first defines a function twice(x), the second prints "
            "twice(4).",
            [
                {"kind": "code", "language": "python", "blocks": 2, "only": True},
                {"kind": "include", "words": ["def twice(x):", "print(twice(4))"], "match": "substring"},
            ],
            "```python\ndef twice(x):\n    return 2 * x\n```\n```python\nprint(twice(4))\n```",
        ),
        (
            "One fenced block of toml alone: a table server with the port 8080 and the list names of a and b.",
            [
                {"kind": "code", "language": "toml", "only": True},
                {"kind": "include", "words": ["[server]", "8080"], "match": "substring"},
            ],
            '```toml\n[server]\nport = 8080\nnames = ["a", "b"]\n```',
        ),
    ],
}
