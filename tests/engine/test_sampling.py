"""Sampling: transformers' kept sets, the stated distribution, and noise that belongs to the request alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from evalsvc.engine import sampling
from evalsvc.engine.requests import GenerateRequest
from evalsvc.engine.sampling import Choice, Sampling, all_top_logprobs, choose, filtered, problem, top_logprobs

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40)
TIED = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40)
SKEWED = torch.tensor([1.5, -0.5, 0.0, 2.0, -2.0, 0.7, 1.1, -1.0])
FLAT = torch.tensor([1.0, -0.2, 0.3, 0.8])


def draws(row, want: Sampling, count: int, axis: str = "step", **fixed) -> np.ndarray:
    """Tokens drawn from one row while one of `seed`, `sample`, `step` counts up."""
    fields = {"temperature": want.temperature, "top_k": want.top_k, "top_p": want.top_p, "min_p": want.min_p}
    fields["repetition_penalty"] = want.repetition_penalty
    choices = []
    for i in range(count):
        at = {"seed": want.seed, "sample": 0, "step": 0} | fixed
        at[axis] += i
        choices.append(Choice(Sampling(**fields, seed=at["seed"]), at["sample"], at["step"], (0, 3)))
    return np.array(choose(row.expand(count, -1), choices))


def alike(found: np.ndarray, expected: torch.Tensor) -> float:
    """p-value of the chi-square test of drawn tokens against probabilities; nothing of probability 0 was drawn."""
    counts = np.bincount(found, minlength=len(expected))
    likely = expected.double().numpy() > 0
    assert counts[~likely].sum() == 0
    probabilities = expected.double().numpy()[likely]
    return float(stats.chisquare(counts[likely], probabilities / probabilities.sum() * len(found)).pvalue)


# --- greedy


def test_greedy_rows_are_the_argmax_and_the_first_of_equals():
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [-torch.inf, -5.0, -6.0, -5.0]])
    assert choose(logits, [Choice(Sampling(seed=s)) for s in range(3)]) == [1, 0, 1]


def test_filters_and_seed_mean_nothing_at_temperature_0():
    row = SKEWED[None]
    assert choose(row, [Choice(Sampling(top_k=2, top_p=0.1, min_p=1.0, seed=9), 3, 4)]) == [3]


def test_a_penalty_reaches_greedy_rows():
    row = torch.tensor([[3.0, 2.9, -1.0]])
    assert not Sampling(repetition_penalty=1.1).greedy
    assert choose(row, [Choice(Sampling(repetition_penalty=1.1), seen=(0,))]) == [1]
    assert choose(row, [Choice(Sampling(repetition_penalty=1.1), seen=(2,))]) == [0]


# --- which tokens stay


def theirs(row: torch.Tensor, want: Sampling, seen) -> torch.Tensor:
    """transformers' processors in the order of `GenerationMixin._get_logits_processor`."""
    processors = []
    if want.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(want.repetition_penalty))
    processors.append(TemperatureLogitsWarper(want.temperature))
    if want.top_k:
        processors.append(TopKLogitsWarper(want.top_k, min_tokens_to_keep=1))
    if want.top_p < 1:
        processors.append(TopPLogitsWarper(want.top_p, min_tokens_to_keep=1))
    if want.min_p:
        processors.append(MinPLogitsWarper(want.min_p, min_tokens_to_keep=1))
    scores, ids = row[None].clone(), torch.tensor([[i for i in seen if i < len(row)]], dtype=torch.long)
    for processor in processors:
        scores = processor(ids, scores)
    return scores[0]


@given(
    st.one_of(LOGITS, TIED),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.05, 0.7, 1.0, 1.9]),
        top_k=st.integers(0, 45),
        top_p=st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.999, 1.0]),
        min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.6]),
    ),
    st.lists(st.integers(0, 45), max_size=5),
)
def test_scores_and_kept_sets_are_transformers_own(logits, want, seen):
    """To the bit. Of tokens that tie at the border of top-p transformers keeps any; there the values are compared."""
    row = torch.tensor(logits)
    ours, reference = filtered(row, want, seen), theirs(row, want, seen)
    assert torch.equal(ours.sort().values, reference.sort().values)
    if len(set(filtered(row, Sampling(want.temperature, 0, 1, 0, want.repetition_penalty), seen).tolist())) == len(row):
        assert torch.equal(ours, reference)


@pytest.mark.parametrize("size", [1000, 50_000])
def test_kept_sets_are_transformers_own_at_a_vocabularys_size(size):
    row = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 3
    for want in (Sampling(0.8, top_p=0.9), Sampling(1.5, top_k=200, top_p=0.5), Sampling(1.0, top_p=0.99, min_p=0.02)):
        ours = filtered(row, want)
        assert torch.equal(ours > -torch.inf, theirs(row, want, ()) > -torch.inf)
        assert 1 < int((ours > -torch.inf).sum()) < size


def stays(scores: torch.Tensor) -> set[int]:
    return set((scores > -torch.inf).nonzero().squeeze(1).tolist())


@given(st.one_of(LOGITS, TIED), st.integers(1, 45))
def test_top_k_keeps_what_fewer_than_k_tokens_exceed(logits, k):
    kept = stays(filtered(torch.tensor(logits), Sampling(1.0, top_k=k)))
    assert kept == {i for i, z in enumerate(logits) if sum(other > z for other in logits) < k}


@given(LOGITS, st.sampled_from([0.05, 0.3, 0.5, 0.8, 0.95]))
def test_top_p_keeps_the_fewest_likeliest_tokens_that_reach_p(logits, p):
    weights = [math.exp(z - max(logits)) for z in logits]
    probabilities = [w / sum(weights) for w in weights]
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    reached = [sum(probabilities[i] for i in order[: n + 1]) for n in range(len(order))]
    count = next(n for n, mass in enumerate(reached) if mass >= p or n == len(order) - 1) + 1
    assume(all(abs(mass - p) > 1e-6 for mass in reached))  # there fp32 decides
    assume(count == len(order) or logits[order[count - 1]] != logits[order[count]])
    assert stays(filtered(torch.tensor(logits), Sampling(1.0, top_p=p))) == set(order[:count])


@given(LOGITS, st.sampled_from([0.01, 0.1, 0.5, 0.9]))
def test_min_p_keeps_what_is_at_least_its_share_of_the_likeliest(logits, share):
    ratios = [math.exp(z - max(logits)) for z in logits]
    assume(all(abs(r - share) > 1e-5 for r in ratios))
    kept = stays(filtered(torch.tensor(logits), Sampling(1.0, min_p=share)))
    assert kept == {i for i, r in enumerate(ratios) if r >= share}


@given(LOGITS, st.sampled_from([0.5, 1.7]), st.lists(st.integers(0, 45), max_size=8))
def test_the_penalty_is_once_a_token_and_away_from_zero(logits, penalty, seen):
    found = filtered(torch.tensor(logits), Sampling(1.0, repetition_penalty=penalty), seen)
    expected = [(z / penalty if z >= 0 else z * penalty) if i in seen else z for i, z in enumerate(logits)]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_of_equal_tokens_at_the_border_of_top_p_the_lower_ids_stay():
    """So that the greedy token always stays."""
    assert stays(filtered(torch.zeros(8), Sampling(1.0, top_p=0.5))) == {0, 1, 2, 3}
    assert stays(filtered(torch.tensor([0.0, 1.0, 1.0, 1.0]), Sampling(1.0, top_p=0.01))) == {1}


# --- the distribution


WANTS = [
    Sampling(1.0),
    Sampling(0.4),
    Sampling(2.5, top_k=5),
    Sampling(1.0, top_p=0.8),
    Sampling(1.5, min_p=0.2),
    Sampling(0.9, top_k=6, top_p=0.95, min_p=0.05, repetition_penalty=1.4),
]


@pytest.mark.parametrize(
    ("want", "axis"),
    [*((want, "step") for want in WANTS), *((WANTS[i], axis) for i in (0, 5) for axis in ("seed", "sample"))],
)
def test_draws_have_the_stated_distribution_along_steps_seeds_and_samples(want, axis):
    """Fixed seeds, so the p-values are constants; over 1,440 streams and pairs they were uniform."""
    expected = theirs(SKEWED, want, (0, 3)).softmax(dim=-1)
    assert alike(draws(SKEWED, want, 2000, axis, seed=7), expected) > 1e-3


@pytest.mark.parametrize("other", [{"axis": "sample"}, {"axis": "seed"}, {"sample": 1}, {"seed": 8}])
def test_streams_are_independent_of_each_other(other):
    a, b = (draws(FLAT, Sampling(1.0), 1501, **({"seed": 7} | which))[1:] for which in ({}, other))
    expected = FLAT.softmax(dim=-1)
    assert alike(a * len(FLAT) + b, torch.outer(expected, expected).flatten()) > 1e-3


def test_consecutive_draws_of_an_answer_are_independent():
    found = draws(FLAT, Sampling(1.0), 3000, seed=7)
    expected = FLAT.softmax(dim=-1)
    assert alike(found[::2] * len(FLAT) + found[1::2], torch.outer(expected, expected).flatten()) > 1e-3


def test_a_token_keeps_its_noise_whatever_the_filters_take_away():
    free = draws(SKEWED, Sampling(1.0), 500)
    for want in WANTS[2:5]:
        kept = stays(filtered(SKEWED, Sampling(1.0, want.top_k, want.top_p, want.min_p)))
        cut = draws(SKEWED, Sampling(1.0, want.top_k, want.top_p, want.min_p), 500)
        inside = np.isin(free, list(kept))
        assert 0 < inside.sum() < 500
        assert (free[inside] == cut[inside]).all()


def test_arms_that_nearly_agree_nearly_always_draw_the_same():
    """Gumbel-max with common noise: P(differ) <= 2 TV / (1 + TV), here with three standard errors of 2,000 draws."""
    other = SKEWED + torch.tensor([0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1])
    distance = float((SKEWED.softmax(0) - other.softmax(0)).abs().sum() / 2)
    bound = 2 * distance / (1 + distance)
    differ = np.mean(draws(SKEWED, Sampling(1.0), 2000) != draws(other, Sampling(1.0), 2000))
    assert 0 < differ < bound + 3 * math.sqrt(bound / 2000)


# --- what a draw depends on


def test_a_draw_is_a_function_of_seed_sample_and_step_alone():
    """Batch, neighbours, order and repetition change nothing."""
    rows = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    mix = [Sampling(1.0, seed=7), Sampling(), Sampling(0.7, top_p=0.9, seed=7), Sampling(0.0, repetition_penalty=1.2)]
    choices = [Choice(mix[i % 4], i % 3, i // 3, list(range(i))) for i in range(40)]
    together = choose(rows, choices)
    alone = [choose(rows[i : i + 1], [choices[i]])[0] for i in reversed(range(40))][::-1]
    assert together == alone
    poisoned = torch.cat([rows[:20], torch.full((1, 300), torch.nan), rows[20:]])
    there = choose(poisoned, [*choices[:20], Choice(Sampling()), *choices[20:]])
    assert there[:20] + there[21:] == together


@pytest.mark.parametrize("axis", ["seed", "sample", "step"])
def test_each_of_seed_sample_and_step_changes_draws(axis):
    row = torch.zeros(1000)
    assert len(set(draws(row, Sampling(1.0), 50, axis).tolist())) > 40


def test_step_seed_and_sample_are_not_added_up():
    row = torch.zeros(1000)
    at = [
        Choice(Sampling(1.0, seed=a), b, c)
        for a, b, c in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 0, 0), (0, 0, 2**40)]
    ]
    assert len(set(choose(row.expand(5, -1), at))) == 5


def test_draws_stay_what_they_were():
    """A stored run's seeds mean the same tokens after an upgrade."""
    assert draws(SKEWED, Sampling(1.0, seed=1234), 16).tolist() == [6, 6, 4, 3, 3, 5, 0, 3, 3, 0, 3, 3, 1, 6, 5, 3]


# --- what is never drawn


def test_a_single_kept_token_is_it_at_any_seed():
    for want in (Sampling(5.0, top_k=1), Sampling(5.0, top_p=1e-6), Sampling(5.0, min_p=1.0)):
        assert set(draws(SKEWED, want, 200, "seed")) == {3}
    assert set(draws(torch.tensor([-torch.inf, 0.0, -torch.inf]), Sampling(9.0), 200)) == {1}


def test_a_token_of_probability_zero_is_never_drawn():
    row = torch.tensor([0.0, -torch.inf, -120.0, 0.0])
    assert float(row.softmax(0)[2]) == 0.0
    assert set(draws(row, Sampling(1.0), 300)) == {0, 3}


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_the_most_extreme_noise_is_finite_and_does_not_reach_probability_zero(monkeypatch, word):
    class Extreme:
        def __init__(self, **_):
            pass

        def random_raw(self, count):
            return np.array([word] + [2**63] * (count - 1), dtype=np.uint64)

    monkeypatch.setattr(sampling.np.random, "Philox", Extreme)
    noise = sampling.gumbel(0, 0, 0, np.arange(2))
    assert -3.7 < noise[0] < 36.8
    assert noise[1] == pytest.approx(-math.log(math.log(2)))
    assert choose(torch.tensor([[-104.0, 0.0]]), [Choice(Sampling(1.0))]) == [1]


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-45, 5e-324])
def test_a_temperature_near_0_is_greedy(temperature):
    row = torch.tensor([-3.0, 10.0, 9.0, -80.0])
    for want in (Sampling(temperature), Sampling(temperature, top_k=3, top_p=0.9, min_p=0.1)):
        assert set(draws(row, want, 20)) == {1}
    assert set(draws(-row.abs(), Sampling(temperature), 20)) == {0}


def test_a_very_high_temperature_is_uniform():
    assert alike(draws(SKEWED, Sampling(1e38), 1000), torch.full((8,), 0.125)) > 1e-3


# --- parameters


BAD = [
    ({"temperature": -0.1}, "temperature is -0.1"),
    ({"temperature": math.nan}, "temperature is nan"),
    ({"temperature": math.inf}, "temperature is inf"),
    ({"temperature": "hot"}, "temperature is 'hot'"),
    ({"temperature": True}, "temperature is True"),
    ({"top_k": -1}, "top_k is -1"),
    ({"top_k": 2.0}, "top_k is 2.0"),
    ({"top_k": True}, "top_k is True"),
    ({"top_p": 0.0}, "top_p is 0.0"),
    ({"top_p": 1.01}, "top_p is 1.01"),
    ({"top_p": math.nan}, "top_p is nan"),
    ({"min_p": -0.01}, "min_p is -0.01"),
    ({"min_p": 1.01}, "min_p is 1.01"),
    ({"min_p": None}, "min_p is None"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0"),
    ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 2**64}, f"seed is {2**64}"),
    ({"seed": 1.5}, "seed is 1.5"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_a_parameter_out_of_its_range_is_named_with_the_range(change, words):
    said = problem(Sampling(**change))
    assert said is not None and said.startswith(words + "; it must be") and "\n" not in said


@pytest.mark.parametrize(
    "fine",
    [
        {},
        {"temperature": 1},
        {"top_k": 10**9},
        {"top_p": 1},
        {"top_p": 1e-9},
        {"min_p": 0},
        {"min_p": 1.0},
        {"repetition_penalty": 0.01},
        {"seed": 0},
        {"seed": 2**64 - 1},
    ],
)
def test_the_ends_of_every_range_are_fine_and_draw(fine):
    want = Sampling(**({"temperature": 1.0} | fine))
    assert problem(want) is None
    assert 0 <= choose(SKEWED[None], [Choice(want, seen=(1, 10**6))])[0] < 8


def test_a_requests_parameters_are_all_taken():
    request = GenerateRequest(
        prompt="a", max_tokens=1, temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, repetition_penalty=2.0, seed=11
    )
    assert Sampling.from_request(request) == Sampling(0.5, 3, 0.25, 0.125, 2.0, 11)
    assert Sampling.from_request(GenerateRequest(prompt="a", max_tokens=1)).greedy


# --- log-probabilities


@given(st.one_of(LOGITS, TIED), st.integers(0, 45), st.integers(0, 39))
def test_log_probabilities_are_the_models_and_the_likeliest_come_first(logits, k, token):
    token %= len(logits)
    found = top_logprobs(torch.tensor(logits), token, k)
    total = math.log(sum(math.exp(z - max(logits)) for z in logits)) + max(logits)
    assert found.token == token
    assert found.logprob == pytest.approx(logits[token] - total, abs=1e-5)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]
    assert [i for i, _ in found.top] == order
    assert [p for _, p in found.top] == pytest.approx([logits[i] - total for i in order], abs=1e-5)


@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([0, 1, 5, 20]), st.sampled_from([0.5, 2.0, None]))
@settings(max_examples=40, deadline=None)
def test_the_likeliest_of_many_rows_are_those_of_each_whether_logits_tie_or_not(seed, count, k, step):
    """Over a vocabulary that is read block by block, with a rest behind its last block."""
    rows = torch.randn(count, 64 * 120 + 17, generator=torch.Generator().manual_seed(seed)) * 4
    rows = rows if step is None else (rows / step).round() * step
    rows[:, -3] = rows.max()
    tokens = [int(row.argmin()) for row in rows]
    for row, token, found in zip(rows, tokens, all_top_logprobs(rows, tokens, [k] * count), strict=True):
        logprobs = row.log_softmax(-1)
        order = row.argsort(descending=True, stable=True)[:k].tolist()
        assert (found.token, found.logprob) == (token, pytest.approx(float(logprobs[token]), abs=1e-5))
        assert [i for i, _ in found.top] == order
        assert [p for _, p in found.top] == pytest.approx(logprobs[order].tolist(), abs=1e-5)


def test_the_greedy_token_is_the_first_of_the_likeliest():
    row = torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    row[[77, 40_000]] = 9.0
    token = choose(row[None], [Choice(Sampling())])[0]
    found = top_logprobs(row, token, 5)
    assert found.top[0] == (token, found.logprob) == (77, found.top[1][1]) and found.top[1][0] == 40_000
