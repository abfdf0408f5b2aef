"""What was measured of an arm can be read in 80 columns."""

from io import StringIO

from rich.console import Console

from evalsvc.cli.proof_report import render_proof

STAGE = {
    "weights": {"linears_reading_what_is_packed": 210, "resident_bytes": 212_336_640, "code_bits": 16.0, "none": {}},
    "kv": {"dtype": "bfloat16"},
    "graphs": {"because": "prompts are computed in chunks of all lengths, and that is a long reason"},
    "tokens_computed": 5109,
    "mismatches": [],
}
DECODE = STAGE | {"kv": {"dtype": "float8_e4m3fn", "scale": "tensor:calibrated"}, "weights": {"code_bits": 4.5}}
PROOF = {
    "prefill": STAGE,
    "decode": DECODE,
    "mismatches": [],
    "batches": {"count": 103, "sha256": "0123456789abcdef" * 4},
    "beginnings": {"tokenizer_adds": False},
}


def lines(proof):
    out = StringIO()
    Console(file=out, width=80, markup=False).print(render_proof(proof))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_groups_stand_side_by_side_and_no_name_is_broken():
    found = lines(PROOF)
    assert max(map(len, found)) <= 80
    words = [line.split() for line in found]
    assert ["linears_reading_what_is_packed", "210"] in words and ["code_bits", "16", "4.50"] in words
    assert ["resident_bytes", "202.5", "MiB"] in words and ["tokens_computed", "5,109", "5,109"] in words
    kv = found.index("kv")
    assert [line.split()[0] for line in found[kv + 1 : kv + 3]] == ["dtype", "scale"], "a later stage's facts join"
    assert ["sha256", "0123456789ab..."] in words and found.count("kv") == 1


def test_what_is_empty_or_said_in_words_elsewhere_is_left_out():
    found = " ".join(lines(PROOF))
    assert "mismatches" not in found and "none" not in found and "beginnings" not in found
    assert "broken" in " ".join(lines({"mismatches": ["kv is broken"]})) and lines({}) == []
