"""Plan text: canonical, closed under parsing, and refused with the part that is wrong."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsvc.engine.precision import FACTORS, PrecisionPlan, parse_plan
from evalsvc.errors import ConfigError

WEIGHTS = ["fp32", "bf16", "fp8", "fp8:w8a16", "fp8:w8a8:token", "int4", "int4:g32", "int4:asym", "int4:asym:g64"]
WEIGHTS += ["int8", "int8:w8a16", "int8:token:lm_head", "nvfp4", "nvfp4:w4a16", "nvfp4:lm_head:w4a4:token"]
WEIGHTS += ["fp8:block128", "fp8:block128:w8a16", "fp8:group128:block128:lm_head"]
WEIGHTS += ["fp8:lm_head", "int4:lm_head:g64", "fp8:w8a16:lm_head"]
KVS = ["fp32", "bf16", "fp8", "fp8:token-head", "fp8:calibrated:tensor", "fp8:calibrated", "fp8:uncalibrated"]
KVS += ["fp8:head:calibrated", "fp8:given", "fp8:given:head", "int8", "int8:token-head", "int8:calibrated"]
KVS += ["int8:head:calibrated", "int8:tensor:given", "int8:head:given"]
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
        ("kv=int8", "w=bf16,kv=int8:token-head"),
        ("w=stored > w=int4:g32", "w=stored,kv=bf16 > w=int4:g32:sym,kv=bf16"),
        ("kv=int8:calibrated", "w=bf16,kv=int8:tensor:calibrated"),
        ("kv=fp8:calibrated:head", "w=bf16,kv=fp8:head:calibrated"),
        ("kv=fp8:given", "w=bf16,kv=fp8:tensor:given"),
        ("kv=bf16 > kv=fp8:latent128", "w=bf16,kv=bf16 > w=bf16,kv=fp8:latent128"),
        ("kv=int8:given:head", "w=bf16,kv=int8:head:given"),
        ("w=int4:lm_head:g32", "w=int4:g32:sym:lm_head,kv=bf16"),
        ("w=fp8:lm_head", "w=fp8:w8a8:channel:token:lm_head,kv=bf16"),
        ("w=fp8:lm_head:w8a16", "w=fp8:w8a16:channel:lm_head,kv=bf16"),
        ("w=fp8:block128", "w=fp8:w8a8:block128:group128,kv=bf16"),
        ("w=fp8:block128:w8a16", "w=fp8:w8a16:block128,kv=bf16"),
        ("w=fp8:group128:lm_head:block128", "w=fp8:w8a8:block128:group128:lm_head,kv=bf16"),
        ("w=int8", "w=int8:w8a8:channel:token,kv=bf16"),
        ("w=int8:w8a16", "w=int8:w8a16:channel,kv=bf16"),
        ("w=int8:token:lm_head", "w=int8:w8a8:channel:token:lm_head,kv=bf16"),
        ("w=nvfp4", "w=nvfp4:w4a4:token,kv=bf16"),
        ("w=nvfp4:lm_head:w4a16", "w=nvfp4:w4a16:lm_head,kv=bf16"),
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
        ("kv=fp8:tensor", "needs `:calibrated`, `:given` or `:uncalibrated`"),
        ("kv=fp8:head", "needs `:calibrated`, `:given`$"),
        ("kv=int8:tensor", "needs `:calibrated`, `:given`$"),
        ("kv=fp8:tensor:token-head", "choose one"),
        ("kv=fp8:tensor:head:calibrated", "choose one"),
        ("kv=int8:token-head:given", "dynamic, it cannot be given"),
        ("kv=fp8:latent128:calibrated", "tile of a latent is dynamic, it cannot be calibrated"),
        ("kv=fp8:latent128:token-head", "choose one"),
        ("kv=int8:latent128", "write `fp8:latent128`"),
        ("kv=fp8:head:uncalibrated", "write `fp8:uncalibrated`"),
        ("kv=int8:uncalibrated", "whole numbers"),
        ("kv=int8:tensor:uncalibrated", "whole numbers"),
        ("kv=fp8:head:head:given", "choose one"),
        ("kv=fp8:", "''"),
        ("kv=fp8:given:", "''"),
        ("kv=int8:w8a8", "w8a8"),
        ("w=bf16:lm_head", "without being asked"),
        ("w=fp32:lm_head", "without being asked"),
        ("w=int4:lm_head:lm_head", "'lm_head' twice"),
        ("w=fp8:channel:channel", "'channel' twice"),
        ("kv=fp8:calibrated:uncalibrated", "choose one"),
        ("w=fp8:w8a16:token", "'token' does not go with the rest; what does: channel, lm_head, w8a16"),
        ("w=fp8:block128:token", "'token' does not go with the rest; what does: block128, group128, lm_head, w8a8"),
        ("w=fp8:group128", "'group128' does not go with the rest"),
        ("w=fp8:block128:channel", "'channel' does not go with the rest"),
        ("w=fp8:block64", "unknown option 'block64'; accepted: w8a8, w8a16, channel, block128"),
        ("w=int8:block128", "unknown option 'block128'; accepted: w8a8, w8a16, channel, token, lm_head"),
        ("w=int8:w8a16:token", "'token' does not go with the rest"),
        ("w=int8:sym", "unknown option 'sym'"),
        ("w=int8:w8a8:w8a16", "choose one"),
        ("w=nvfp4:w8a8", "unknown option 'w8a8'; accepted: w4a4, w4a16, token, lm_head"),
        ("w=nvfp4:w4a16:token", "'token' does not go with the rest"),
        ("w=nvfp4:g16", "unknown option 'g16'"),
        (
            "w=mxfp4",
            "unknown weights format 'mxfp4'; use fp32, .*fp8 has w8a8, .* block128, .*nvfp4 has w4a4",
        ),
        ("w=int4:", "''"),
        ("w=stored:lm_head", "the lm_head is held at stored without being asked"),
        ("w=stored:g32", "unknown weights format 'stored:g32'"),
    ],
)
def test_what_is_no_plan_is_refused_and_names_the_part(text, part):
    with pytest.raises(ConfigError, match=part):
        parse_plan(text)


def test_plans_are_read_without_torch():
    code = "import sys; from evalsvc.engine import parse_plan; parse_plan('w=int4'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_formats_name_all_four_factors():
    assert tuple(PrecisionPlan().formats()) == FACTORS


def test_a_quantized_head_is_another_format_of_the_weights():
    plain, head = parse_plan("w=int4:g32"), parse_plan("w=int4:g32 > w=int4:g32:lm_head")
    assert plain.differing_factors(head) == {"decode.weights"}
    assert head.decode.weights.lm_head and not head.prefill.weights.lm_head
    assert head.decode.weights.stored == plain.decode.weights.stored == "int4:g32:sym"


@pytest.mark.parametrize(
    ("text", "per", "origin"),
    [
        ("bf16", "", (False, False)),
        ("int8", "token-head", (False, False)),
        ("fp8:uncalibrated", "tensor", (False, False)),
        ("int8:head:calibrated", "head", (True, False)),
        ("fp8:given", "tensor", (False, True)),
    ],
)
def test_a_kv_format_says_whose_scale_it_is_and_where_it_comes_from(text, per, origin):
    kv = parse_plan(f"kv={text}").decode.kv
    assert (kv.per, (kv.calibrated, kv.given)) == (per, origin)
