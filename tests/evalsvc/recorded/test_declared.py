"""What is said of an arm, and what answers can have met: nothing is covered that nobody knows to be."""

import pytest

from evalsvc.errors import ConfigError
from evalsvc.recorded.declared import coverage, declared_plan


def test_no_plan_says_nothing():
    assert declared_plan(None) == ("", {"prefill": {}, "decode": {}})


def test_a_plan_becomes_canonical_stages():
    text, stages = declared_plan("kv=bf16 > w=int4,kv=fp8")
    assert text == "w=bf16,kv=bf16 > w=int4:g128:sym,kv=fp8:token-head"
    assert stages["decode"] == {"weights": "int4:g128:sym", "kv": "fp8:token-head"}


def test_formats_that_only_others_serve_may_be_declared():
    text, stages = declared_plan("w=int4,kv=fp8:latent128 > w=fp8:w8a16")
    assert text == "w=int4:g128:sym,kv=fp8:latent128 > w=fp8:w8a16:channel,kv=bf16"
    assert stages["prefill"] == {"weights": "int4:g128:sym", "kv": "fp8:latent128"}
    assert declared_plan("kv=fp8:latent128")[0] == "w=bf16,kv=fp8:latent128"


@pytest.mark.parametrize(
    "text",
    [f"kv=fp8:latent128{rest}" for rest in (",kv=fp8", ",x=1", " > kv=", " > w=bf16 > w=bf16", ",w=q9", " > kv=q9")],
)
def test_what_is_no_plan_is_refused_beside_a_foreign_format_too(text):
    with pytest.raises(ConfigError, match="plan"):
        declared_plan(text)


@pytest.mark.parametrize(
    ("scored_by", "answers", "settings", "stages"),
    [
        ("unknown", ["some words"], {}, set()),
        ("loglikelihood", None, {}, {"prefill"}),
        ("generation", ["some words"], {}, {"prefill", "decode"}),
        ("generation", ["B"], {}, {"prefill"}),  # one token comes from prefill
        ("generation", [" 1234"], {}, {"prefill"}),
        ("generation", [""], {}, {"prefill"}),
        ("generation", ["B", "some words"], {}, {"prefill", "decode"}),
        ("generation", ["字" * 40], {}, {"prefill", "decode"}),
        ("generation", ["some words"], {"max_gen_toks": 1}, {"prefill"}),
        ("generation", None, {}, {"prefill", "decode"}),  # a person said so
    ],
)
def test_stages_that_an_answer_met(scored_by, answers, settings, stages):
    met = coverage(scored_by, answers, settings)
    assert set(met["stage_tokens"]) == stages
    assert met["handed_over"] == ("decode" in stages)
