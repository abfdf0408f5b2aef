"""The shipped JSON schema of decisions: what every decision is, with no key more and none less."""

import copy
import json
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError

from evalsvc.decision import SCHEMA

GOLDEN = Path(__file__).parent / "golden"
VERDICTS = ("PASS", "REGRESSED", "INCONCLUSIVE", "INVALID")


@pytest.fixture(scope="module")
def schema():
    text = files("evalsvc").joinpath("schemas/decision.json").read_text(encoding="utf-8")
    found = json.loads(text)
    Draft202012Validator.check_schema(found)
    return found


@pytest.fixture(params=VERDICTS)
def document(request):
    return json.loads((GOLDEN / f"{request.param}.json").read_text())


def test_it_carries_the_version_that_decisions_carry(schema):
    assert schema["$id"] == schema["properties"]["schema"]["const"] == SCHEMA


def test_every_verdict_is_one(schema, document):
    Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize("place", [(), ("baseline",), ("rows", 0)])
def test_a_key_more_or_a_key_less_is_none(schema, document, place):
    def part(of):
        for step in place:
            of = of[step]
        return of

    more, less = copy.deepcopy(document), copy.deepcopy(document)
    part(more)["surprise"] = 1
    part(less).pop(sorted(part(less))[0])
    for changed in (more, less):
        with pytest.raises(ValidationError):
            Draft202012Validator(schema).validate(changed)
