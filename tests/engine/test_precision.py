"""Plan text: canonical, closed under parsing, and refused with the part that is wrong."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.engine.precision import FACTORS, PrecisionPlan, parse_plan
from evalsvc.errors import CapabilityError, ConfigError

WEIGHTS = ["fp32", "bf16", "fp8", "fp8:w8a16", "fp8:w8a8:token", "int4", "int4:g32", "int4:asym", "int4:asym:g64"]
KVS = ["fp32", "bf16", "fp8", "fp8:token-head", "fp8:calibrated:tensor", "fp8:calibrated", "fp8:uncalibrated"]
stage = st.builds(lambda w, kv: f"w={w},kv={kv}", st.sampled_from(WEIGHTS), st.sampled_from(KVS))


@given(stage, stage)
def test_canonical_text_reads_back_as_the_same_plan(prefill, decode):
    plan = parse_plan(f"{prefill} > {decode}")
    assert parse_plan(str(plan)) == plan
    assert str(parse_plan(str(plan))) == str(plan)


@given(stage, stage)
def test_differing_factors_are_symmetric_and_empty_only_for_equal_plans(left, right):
    a, b = parse_plan(left), parse_plan(f"{left} > {right}")
    assert a.differing_factors(b) == b.differing_factors(a)
    assert (not a.differing_factors(b)) == (a == b)
    assert a.differing_factors(b) <= {"decode.weights", "decode.kv"} < set(FACTORS)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("w=bf16,kv=bf16", "w=bf16,kv=bf16"),
        ("w=fp8", "w=fp8:w8a8:channel:token,kv=bf16"),
        ("kv=fp8", "w=bf16,kv=fp8:token-head"),
        (" KV = bf16".lower().replace(" ", ""), "w=bf16,kv=bf16"),
        ("w=INT4", "w=int4:g128:sym,kv=bf16"),
        ("w=int4:asym:g32", "w=int4:g32:asym,kv=bf16"),
        ("kv=bf16 > kv=fp8:calibrated", "w=bf16,kv=bf16 > w=bf16,kv=fp8:tensor:calibrated"),
        ("kv=fp8:uncalibrated", "w=bf16,kv=fp8:tensor:uncalibrated"),
        ("w=fp8:w8a16>w=bf16", "w=fp8:w8a16:channel,kv=bf16 > w=bf16,kv=bf16"),
        ("w=bf16 > w=bf16,kv=bf16", "w=bf16,kv=bf16"),
    ],
)
def test_defaults_are_expanded(text, canonical):
    assert str(parse_plan(text)) == canonical


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "PREFILL > DECODE"),
        ("w=bf16 >", "PREFILL > DECODE"),
        ("w=bf16 > w=bf16 > w=bf16", "PREFILL > DECODE"),
        ("weights=bf16", "weights=bf16"),
        ("w=", "w="),
        ("w=bf16,w=fp8", "twice"),
        ("w=fp9", "fp9"),
        ("kv=fp8_e4m3", "fp8_e4m3"),
        ("kv=int4", "int4"),
        ("w=int4:g48", "g48"),
        ("w=int4:g32:g64", "choose one"),
        ("w=bf16:g32", "bf16:g32"),
        ("kv=fp8:tensor", "calibrated"),
        ("kv=fp8:tensor:token-head", "one scale per tensor"),
        ("kv=fp8:calibrated:uncalibrated", "choose one"),
        ("w=fp8:w8a16:token", "token"),
        ("w=int4:", "''"),
    ],
)
def test_what_is_no_plan_is_refused_and_names_the_part(text, part):
    with pytest.raises(ConfigError, match=part):
        parse_plan(text)


@pytest.mark.parametrize("text", ["w=nvfp4", "w=int8", "w=fp8:block128", "kv=int8", "kv=fp8:latent128"])
def test_known_formats_that_are_not_served_say_so(text):
    with pytest.raises(CapabilityError, match="not served"):
        parse_plan(text)


def test_plans_are_read_without_torch():
    code = "import sys; from evalsvc.engine import parse_plan; parse_plan('w=int4'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_formats_name_all_four_factors():
    assert tuple(PrecisionPlan().formats()) == FACTORS
