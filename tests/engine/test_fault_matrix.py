"""Where faults of quantized caches hid: every KV format, its scale other than 1, over 150 and more tokens, in each way
in which a request can meet its pages.

The naive path is transformers' own model in one forward over prompt and answer; its attention rounds keys and values
through the format by formula, in float64, and knows neither pages nor codes. Answers of fp32 weights are held against
it: only a rounding that goes the other way can part the two. In bf16 each way must give the cold answer's bits.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM

from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.engine import Engine
from evalsvc.engine.kv.pool import KVPool
from evalsvc.engine.precision import KVFormat, PrecisionPlan, WeightFormat, parse_plan
from evalsvc.engine.requests import GenerateRequest, GenerateResult

FORMATS = {
    "bf16": "bf16",
    "fp8 token-head": "fp8",
    "fp8 tensor": "fp8:tensor:calibrated",
    "fp8 head": "fp8:head:calibrated",
    "fp8 given": "fp8:head:given",
    "fp8 uncalibrated": "fp8:uncalibrated",
    "int8 token-head": "int8",
    "int8 tensor": "int8:tensor:calibrated",
    "int8 head": "int8:head:calibrated",
}
ONE_STAGE = {name: f"kv={text}" for name, text in FORMATS.items()}
HANDED = {
    f"bf16 > {name}": f"kv=bf16 > kv={FORMATS[name]}"
    for name in ("fp8 token-head", "fp8 tensor", "fp8 head", "int8 token-head", "int8 tensor")
}
HANDED |= {f"{name} > bf16": f"kv={FORMATS[name]} > kv=bf16" for name in ("fp8 tensor", "int8 token-head")}
HANDED |= {
    "fp8 head > fp8 tensor": "kv=fp8:head:calibrated > kv=fp8:tensor:calibrated",
    "fp8 head > fp8 given": "kv=fp8:head:calibrated > kv=fp8:head:given",
    "int8 tensor > fp8 given": "kv=int8:tensor:calibrated > kv=fp8:head:given",
    "fp8 token-head > int8 token-head": "kv=fp8 > kv=int8",
}
PLANS = ONE_STAGE | HANDED
EVERY_WAY = (
    "bf16 > fp8 token-head",
    "bf16 > int8 tensor",
    "int8 token-head > bf16",
    "fp8 head > fp8 given",
    "int8 tensor > fp8 given",
)
LONG = 160
QUICK = ("fp8 token-head", "fp8 head", "int8 tensor", "bf16 > int8 tensor", "fp8 head > fp8 given")
EOS = 1
PROMPTS = ("the end of the beginning", "0123456789", "some other text\nof two lines")


def each(names):
    """The names as parameters; all but a few of every kind count as slow, being many."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


# -- the naive path ----------------------------------------------------------------------------------------------------


@dataclass
class Naive:
    """What the naive attention does with keys and values.

    Attributes:
        prompt: Tokens that prefill computes; decode computes the others.
        scales: By stage the fixed scales of keys and of values.
        noise: Standard deviation of what is added before a rounding, in parts of the values' own root mean square.
    """

    plan: PrecisionPlan
    prompt: int
    scales: dict[str, tuple[Tensor, Tensor]]
    noise: float
    generator: torch.Generator

    def stored(self, stage: str, layer: int, part: int, x: Tensor, handed: bool = False) -> Tensor:
        """What a stage would read back of x, of shape (kv_heads, tokens, head_dim), in float64."""
        fmt: KVFormat = getattr(self.plan, stage).kv
        if self.noise and not handed:
            x = x + self.noise * x.square().mean().sqrt() * torch.randn(x.shape, generator=self.generator)
        if fmt.kind == "bf16":
            return x.bfloat16().double()
        if fmt.kind == "fp32":
            return x.double()
        if fmt.per == "token-head":
            scale = x.abs().amax(-1, keepdim=True) / {"fp8": 448, "int8": 127}[fmt.kind]
        elif stage in self.scales:
            scale = self.scales[stage][part][layer].reshape(-1, 1, 1)
        else:
            scale = torch.ones(1, 1, 1)
        ratio = (x / scale).double()
        codes = ratio.round().clamp(-127, 127) if fmt.kind == "int8" else nearest_e4m3(ratio)
        return codes * scale.double()

    def read(self, layer: int, part: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """What queries of the prompt read, and what later ones read, of keys or values in fp32."""
        mine = self.stored("prefill", layer, part, x[:, : self.prompt])
        equal = self.plan.prefill.kv == self.plan.decode.kv
        handed = mine if equal else self.stored("decode", layer, part, mine.float(), handed=True)
        return mine, torch.cat([handed, self.stored("decode", layer, part, x[:, self.prompt :])], dim=1)


def nearest_e4m3(x: Tensor) -> Tensor:
    """Nearest value of the format, ties to even: eight steps to each power of two from 2^-6 on, at most 448."""
    size = x.abs().clamp(max=448)
    step = torch.exp2(size.clamp(min=2.0**-6).log2().floor() - 3)
    return (size / step).round() * step * x.sign()


_naive: list[Naive] = []


def attend(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    naive, n = _naive[-1], _naive[-1].prompt
    causal = torch.ones(query.shape[2], query.shape[2]).tril().bool()
    keys, values = (naive.read(module.layer_idx, part, x[0].float()) for part, x in enumerate((key, value)))
    parts = []
    for rows, k, v in ((slice(0, n), keys[0], values[0]), (slice(n, None), keys[1], values[1])):
        q, group = query[0, :, rows].double(), query.shape[1] // key.shape[1]
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = (q @ k.transpose(1, 2) * scaling).masked_fill(~causal[rows, : k.shape[1]], -torch.inf)
        parts.append(scores.softmax(-1) @ v)
    return torch.cat(parts, 1).transpose(0, 1)[None].to(query.dtype), None


AttentionInterface.register("naive_stored_kv", attend)


@contextmanager
def reading(naive: Naive) -> Iterator[None]:
    _naive.append(naive)
    try:
        yield
    finally:
        _naive.pop()


class NaivePath:
    """transformers' model in fp32 with the attention above."""

    def __init__(self, path: Path):
        self.model = AutoModelForCausalLM.from_pretrained(
            path, attn_implementation="naive_stored_kv", dtype=torch.float32
        ).eval()

    def logprobs(self, engine: Engine, prompt: list[int], answer: list[int], noise: float = 0.0, seed: int = 0):
        """Of every token at each of the answer's positions. Shape: (tokens, vocabulary)."""
        (name,) = engine.specs
        scales = {stage: (held.k, held.v) for stage, held in engine.scales(name).items()}
        plan = engine.specs[name].plan
        naive = Naive(plan, len(prompt), scales, noise, torch.Generator().manual_seed(seed))
        with reading(naive), torch.no_grad():
            logits = self.model(torch.tensor([prompt + answer[:-1]]), use_cache=False).logits[0]
        return logits[len(prompt) - 1 :].double().log_softmax(-1)


def distance(naive: NaivePath, engine: Engine, prompt: list[int], answer: GenerateResult) -> tuple[float, float, float]:
    """How far an answer lies from the naive path, and what the naive path makes of noise itself.

    Roundings that go the other way are all that may part them. fp32 sums of 60 to 200 terms differ by some 2^-22 of
    their size; so the naive path is asked four times with 2^-18 before each rounding, which turns many more of them.

    Returns:
        Largest distance of a token's log-probability; largest lead of the naive path's likeliest token over the one
        that was written; largest distance between the naive path and itself under noise.
    """
    ids, given = list(answer.token_ids), answer.logprobs
    assert given is not None
    row = torch.arange(len(ids)), torch.tensor(ids)
    exact = naive.logprobs(engine, prompt, ids)
    ours = torch.tensor([entry.logprob for entry in given], dtype=torch.float64)
    noisy = [naive.logprobs(engine, prompt, ids, 2.0**-18, seed)[row] for seed in range(4)]
    noise = max(float((one - exact[row]).abs().max()) for one in noisy)
    lead = exact.amax(-1) - exact[row]
    return float((ours - exact[row]).abs().max()), float(lead.max()), noise


# -- engines and answers -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Calibration prompts, and given scales: 2 layers of 2 heads, no two alike and none a power of two."""
    folder = tmp_path_factory.mktemp("matrix")
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": p}) for p in PROMPTS))
    scales = {"k": [[0.013, 0.007], [0.009, 0.016]], "v": [[0.011, 0.006], [0.017, 0.008]]}
    (folder / "scales.json").write_text(json.dumps(scales))
    return folder


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory) -> Callable[[float], Path]:
    """The tiny llama, which never ends an answer, with keys times a factor and queries divided by it."""
    made: dict[float, Path] = {}

    def make(factor: float = 1.0) -> Path:
        if factor not in made:
            made[factor] = tmp_path_factory.mktemp("model")
            shutil.copytree(tiny("llama"), made[factor], dirs_exist_ok=True)
            llama = AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=torch.float32)
            with torch.no_grad():
                llama.lm_head.weight[EOS] = 0  # a logit of 0 among hundreds is never the largest
                for name, parameter in llama.named_parameters():
                    parameter.mul_({"k_proj": factor, "q_proj": 1 / factor}.get(name.split(".")[-2], 1.0))
            llama.save_pretrained(made[factor])
        return made[factor]

    return make


@pytest.fixture(scope="module")
def engine_of(model, files) -> Callable[..., Engine]:
    """`engine_of("kv=fp8", weights="fp32", kv_tokens=256)`: an engine over NaN pools with one arm."""

    def make(plan: str, weights: Literal["fp32", "bf16"] = "bf16", factor: float = 1.0, **options) -> Engine:
        parsed = parse_plan(plan)
        stages = [replace(half, weights=WeightFormat(weights)) for half in (parsed.prefill, parsed.decode)]
        calibrated, given = (any(getattr(s.kv, key) for s in stages) for key in ("calibrated", "given"))
        spec = ArmSpec(
            PrecisionPlan(*stages),
            files / "prompts.jsonl" if calibrated else None,
            scales=files / "scales.json" if given else None,
        )
        settings = {"kv_tokens": 2048, "poison": True} | options
        return Engine.load(model(factor), plans={"arm": spec}, **settings)

    return make


@pytest.fixture(scope="module")
def naive(model) -> NaivePath:
    return NaivePath(model())


@pytest.fixture(scope="module")
def asked(ids) -> list[GenerateRequest]:
    """Prompts of one page, of two and one token, of a few tokens, and of two and a half pages.

    The last comes last and grows longest, so that its pages are the ones that are taken when they run out.
    """
    sizes = ((16, 84), (33, 8), (5, 4), (41, LONG))
    return [
        GenerateRequest(prompt=ids(length, 40 + i), max_tokens=new, logprobs=1, id=str(i))
        for i, (length, new) in enumerate(sizes)
    ]


def answers(engine: Engine, requests: list[GenerateRequest]) -> dict[str, GenerateResult]:
    found = {}
    for answer in engine.generate(requests):
        assert isinstance(answer, GenerateResult), answer
        found[answer.id] = answer
    assert set(found) == {request.id for request in requests}
    return found


def bits(found: dict[str, GenerateResult]) -> dict[str, tuple]:
    return {key: (one.token_ids, one.logprobs, one.finish_reason) for key, one in found.items()}


def cold_answers(engine: Engine, requests: list[GenerateRequest]) -> dict[str, GenerateResult]:
    """Each asked alone, of empty caches."""
    found = {}
    for request in requests:
        for stage in (engine.arm().prefill, engine.arm().decode):
            stage.cache.drop_all()
        found |= answers(engine, [request])
    return found


@pytest.fixture(scope="module", params=each(ONE_STAGE))
def cold(request, engine_of, asked) -> tuple[str, dict[str, tuple]]:
    plan = ONE_STAGE[request.param]
    return plan, bits(cold_answers(engine_of(plan, max_batch=1), asked))


def scales_in_use(pool: KVPool) -> list[Tensor]:
    return [scale[scale.isfinite()] for scale in (pool.k_scale, pool.v_scale) if scale is not None]


# -- against the naive path --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", each(PLANS))
def test_a_long_answer_is_the_naive_paths_token_for_token(name, engine_of, naive, asked):
    """Cold, and handed off between unequal formats: 160 tokens, and each one's log-probability."""
    engine = engine_of(PLANS[name], "fp32")
    (answer,) = answers(engine, asked[-1:]).values()
    far, lead, noise = distance(naive, engine, asked[-1].prompt, answer)
    allowed = noise + 2e-5  # fp32 arithmetic without any rounding between: 5e-6 was seen
    assert len(answer.token_ids) == LONG and noise < 0.05
    assert far <= allowed and lead <= 2 * allowed, (far, lead, noise)
    held = engine.arm()
    for pool in (held.prefill.pool, held.decode.pool):
        if "uncalibrated" not in str(pool.fmt):
            assert all(bool(((scale - 1).abs() > 0.01).all()) for scale in scales_in_use(pool))
    assert engine.proof()["mismatches"] == []


# -- every way to a page gives the cold answer's bits ------------------------------------------------------------------


def test_in_a_batch(cold, engine_of, asked, nothing_held):
    engine = engine_of(cold[0])
    assert bits(answers(engine, asked)) == cold[1]
    assert engine.proof()["batches"]["mean_requests"] > 1
    nothing_held(engine)


def test_after_a_prefix_hit(cold, engine_of, asked):
    """The same prompts again: two whole pages of each long one, and all but the last token of the page of another."""
    engine = engine_of(cold[0])
    answers(engine, [replace(one, max_tokens=1) for one in asked])
    before = engine.proof()["prefix_cache"]["hit_tokens"]
    assert bits(answers(engine, asked)) == cold[1]
    assert engine.proof()["prefix_cache"]["hit_tokens"] >= before + 15 + 32 + 40 // 16 * 16


def test_in_chunks_of_five_tokens(cold, engine_of, asked):
    """What a chunk leaves in the pages shows in every later token; 40 of them here."""
    requests = [*asked[1:3], replace(asked[3], max_tokens=40)]
    found = bits(answers(engine_of(cold[0], chunk=5), requests))
    assert {key: found[key] for key in "12"} == {key: cold[1][key] for key in "12"}
    assert found["3"][:2] == (cold[1]["3"][0][:40], cold[1]["3"][1][:40])


def test_preempted_and_resumed(cold, engine_of, asked, nothing_held):
    """13 pages for two answers that come to 7 and 13: the longer gives its own back and starts again."""
    engine = engine_of(cold[0], kv_tokens=13 * 16)
    assert bits(answers(engine, [asked[0], asked[3]])) == {key: cold[1][key] for key in "03"}
    assert engine.stats()["preemptions"] > 0
    nothing_held(engine)


@pytest.mark.parametrize("name", each(EVERY_WAY))
def test_handed_off_to_another_format_in_every_way_at_once(name, engine_of, asked):
    """Batched, chunked, preempted, and again after hits: the bits of each alone and cold."""
    requests = [asked[0], replace(asked[3], max_tokens=90), *asked[1:3]]
    alone = bits(cold_answers(engine_of(HANDED[name], max_batch=1), requests))
    engine = engine_of(HANDED[name], kv_tokens=10 * 16, chunk=7)
    assert bits(answers(engine, requests)) == alone
    assert bits(answers(engine, requests)) == alone
    assert engine.stats()["preemptions"] > 0 and engine.proof()["prefix_cache"]["hit_tokens"] > 0


# -- scales that are wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["kv=bf16", "kv=fp8", "kv=int8", "kv=fp8:head:calibrated", "kv=int8:calibrated"])
def test_keys_out_of_range_are_nothing_to_a_scale_of_their_own(plan, engine_of, asked):
    """Keys times 2^9 and queries over 2^9 are the same model to the last bit, and so they are to scales that follow."""
    request = replace(asked[3], max_tokens=24)
    plain, large = (bits(answers(engine_of(plan, factor=factor), [request])) for factor in (1.0, 512.0))
    assert plain == large


def test_keys_out_of_range_are_ruined_by_a_scale_of_one(engine_of, asked, ids):
    """At scale 1.0 the model's own keys do well; times 2^9 all but the smallest are cut off at 448."""
    text = ids(150, 7)
    exact = engine_of("kv=bf16").logits(text)

    def harm(plan: str, factor: float) -> float:
        ours = engine_of(plan, factor=factor).logits(text).double().log_softmax(-1)
        p = exact.double().log_softmax(-1)
        return float((p.exp() * (p - ours)).sum(-1).mean())

    fits, cut = harm("kv=fp8:uncalibrated", 1.0), harm("kv=fp8:uncalibrated", 512.0)
    assert cut > 20 * fits > 0
    assert harm("kv=fp8:calibrated", 512.0) < 2 * fits
    request, engine = replace(asked[3], max_tokens=24), engine_of("kv=fp8:uncalibrated", factor=512.0)
    (ruined,), (whole,) = (answers(one, [request]).values() for one in (engine, engine_of("kv=bf16")))
    assert ruined.token_ids != whole.token_ids
    assert engine.proof()["decode"]["kv"]["scale"] == "tensor:uncalibrated"


@pytest.mark.parametrize("per", ["tensor", "head"])
def test_a_doubled_scale_shows_on_either_side_alone_and_on_both_changes_no_bit(per, tiny, tmp_path, ids, monkeypatch):
    """A scale that reaches neither side would pass the second and fail the first.

    Scales are powers of two, and the text is one whose codes all stay in e4m3's normal range, where doubling moves
    exponents alone: about one in four is.
    """
    scales = [2.0**-5, 2.0**-6] if per == "tensor" else [[2.0**-5, 2.0**-6], [2.0**-6, 2.0**-5]]
    (tmp_path / "scales.json").write_text(json.dumps({"k": scales, "v": scales}))
    spec = ArmSpec(parse_plan(f"kv=fp8:{per}:given"), scales=tmp_path / "scales.json")
    engine = Engine.load(tiny("llama"), plans={"a": spec}, kv_tokens=64, poison=True)
    own, factors = KVPool.write_scale, {"write": 1.0, "read": 1.0}

    def doubled(part: str, side: str) -> Callable[[KVPool, str, int], Tensor | None]:
        def scale(pool: KVPool, name: str, layer: int) -> Tensor | None:
            held = own(pool, name, layer)
            return held if held is None or name != part else held * factors[side]

        return scale

    def fits(text: list[int], stage: str) -> bool:
        engine.logits(text, "a", stage)
        pool: KVPool = getattr(engine.arm("a"), stage).pool
        codes = torch.stack([pool.k, pool.v])[:, :, : len(text)].view(torch.uint8) & 0x7F
        return bool(((codes >= 0x10) & (codes < 0x7E) | (codes == 0)).all())  # twice the smallest normal one, and more

    def logits(stage: str, write: float, read: float) -> Tensor:
        factors.update(write=write, read=read)
        return engine.logits(text, "a", stage)

    texts = (ids(16, seed) for seed in range(300))
    text = next(text for text in texts if fits(text, "prefill") and fits(text, "decode"))
    for part in ("k", "v"):
        for side in ("write", "read"):
            monkeypatch.setattr(KVPool, f"{side}_scale", doubled(part, side))
        for stage in ("prefill", "decode"):
            plain = logits(stage, 1, 1)
            assert torch.equal(logits(stage, 2, 2), plain)
            for sides in ((2, 1), (1, 2)):
                assert (logits(stage, *sides) - plain).abs().max() > 0.1, (part, stage, sides)
