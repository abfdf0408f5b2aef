"""Through the engine: every planted fault that a mode claims ends who reads it, and changes nobody else's answer."""

import pytest

from evalsvc.engine.kv.perturb import BY_CONTENT, BY_TAGS
from tests.benchmarks.integrity_engine import Campaign

UNEQUAL = "w=bf16,kv=bf16 > w=bf16,kv=fp8"
EQUAL = "w=bf16"
HEADS = "w=bf16,kv=int8 > w=bf16,kv=fp8"


@pytest.mark.parametrize(
    ("plan", "mode", "kinds"),
    [(UNEQUAL, "tags", BY_TAGS), (EQUAL, "tags", BY_TAGS), (HEADS, "content", (*BY_TAGS, *BY_CONTENT))],
    ids=["unequal", "equal", "content"],
)
def test_faults_at_random_moments_are_caught_and_harm_nobody_else(tiny, plan, mode, kinds):
    campaign = Campaign(tiny("llama"), plan, mode, seed=len(plan))
    for kind in kinds:
        counts = campaign.run(kind, 4)
        assert (counts.caught, counts.false_alarms) == (counts.planted, 0), (kind, counts)


@pytest.mark.parametrize("kv_tokens", [1024, 112])
def test_runs_without_faults_raise_no_alarm(tiny, kv_tokens):
    """Also with pages for two requests, so that answers are preempted and fed again."""
    campaign = Campaign(tiny("llama"), UNEQUAL, "content", seed=2, kv_tokens=kv_tokens)
    assert campaign.soak(15_000) == 0
    assert (campaign.preemptions > 0) == (kv_tokens == 112)
