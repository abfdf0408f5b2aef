"""The measurements. Each returns rows; two sides that are compared run in turn, cold, with the same threads."""

from collections.abc import Sequence
from typing import Any

from evalsvc.engine.engine import Engine
from evalsvc.engine.requests import GenerateRequest, RequestFailure, ScoreRequest

from . import jobs
from .common import Row, Settings, Spent, at_least, at_most, clocked, forget
from .equality import GAP, LOGLIKELIHOOD, flips, largest_difference, listed

BF16 = "w=bf16,kv=bf16"
PROMPT = 256
ARMS = {
    "bf16": BF16,
    "kv-fp8": f"{BF16} > w=bf16,kv=fp8",
    "int4": f"{BF16} > w=int4:g32:asym,kv=bf16",
    "fp8-w8a16": f"{BF16} > w=fp8:w8a16,kv=bf16",
}


def multiple_choice(settings: Settings) -> list[Row]:
    """(a) A whole subject with 5 shots, and the flips in bf16."""
    every = jobs.choices(settings)
    some = jobs.hf_documents(settings, every, 16, 4)
    ours = jobs.ours(settings, BF16)
    hf1 = jobs.hf(settings, "bfloat16", 1)
    hf8 = jobs.hf(settings, "bfloat16", 8, hf1)
    for lm in (hf1, hf8, ours):
        jobs.ask(settings, lm, jobs.CHOICES, every[:2])
    asked = {}
    for name, lm, documents in (("hf1", hf1, some), ("whole", ours, every), ("hf8", hf8, some), ("some", ours, some)):
        if lm is ours:
            forget(ours.engine)
        asked[name] = jobs.ask(settings, lm, jobs.CHOICES, documents)
    jobs.same_questions(asked["hf1"], asked["some"])
    each = {name: a.spent / len(a.by_document()) for name, a in asked.items()}
    rows = [_seconds(settings, each)]
    for batch in ("hf1", "hf8"):
        label = f"lm-eval hf, batch {batch[2:]}, over the engine"
        note = f"hf on {len(some)} items spread over the {len(every)} that the engine answers, an item"
        rows.append(at_least(f"multiple choice: {label}", each[batch], each["whole"], 9, note))
        rows.append(
            Row(
                f"  the same {len(some)} items: {label}",
                each[batch].over(each["some"]),
                note="the prefix weighs more on few items",
            )
        )
    note = f"bf16, {len(some)} items; lm-eval's hf rounds its log-probabilities to bf16"
    rows.append(Row("flips: hf batch 1 / engine", listed(flips(asked["hf1"], asked["some"])), note=note))
    rows.append(Row("flips: hf batch 1 / hf batch 8", listed(flips(asked["hf1"], asked["hf8"])), note=note))
    alone = flips(asked["whole"], asked["some"])
    rows.append(Row("flips: engine, whole subject / these items", listed(alone), "none", not alone, note))
    return rows


def _seconds(settings: Settings, each: dict[str, Spent]) -> Row:
    note = f"bf16, 5 shots, {settings.threads} threads, from requests to answers, prefix cache empty at the start"
    names = {"hf1": "hf, batch 1", "hf8": "hf, batch 8", "whole": "engine, all", "some": "engine, hf's items"}
    return Row("seconds an item", "\n".join(f"{names[name]}: {spent}" for name, spent in each.items()), note=note)


def generation(settings: Settings) -> list[Row]:
    """(b) 5 shots in GSM8K's form, with 96 new tokens, and once more with the task's own stop string."""
    rows = []
    for until, words, target in ([], f"{jobs.NEW_TOKENS} new tokens", 6), (["Question:"], "stopped at 'Question:'", 0):
        rows += _generation(settings, until, words, target)
        if settings.quick:
            break
    return rows


def _generation(settings: Settings, until: list[str], words: str, target: float) -> list[Row]:
    every = jobs.generation(settings, until)
    some = jobs.hf_documents(settings, every, 8, 2)
    ours = jobs.ours(settings, BF16, kv_tokens=65536, max_batch=64)
    hf1 = jobs.hf(settings, "bfloat16", 1)
    hf8 = jobs.hf(settings, "bfloat16", 8, hf1)
    jobs.ask(settings, ours, jobs.GENERATION, every[:1])
    asked = {}
    for name, lm, documents in (("hf1", hf1, some), ("whole", ours, every), ("hf8", hf8, some), ("some", ours, some)):
        if lm is ours:
            forget(ours.engine)
        asked[name] = jobs.ask(settings, lm, jobs.GENERATION, documents)
    jobs.same_questions(asked["hf1"], asked["some"])
    each = {name: a.spent / len(a.answers) for name, a in asked.items()}
    tokens = sum(len(ours.tok_encode(text)) for text in asked["whole"].answers)
    rows = [_seconds(settings, each)]
    for batch in ("hf1", "hf8"):
        what = f"generation, {words}: lm-eval hf, batch {batch[2:]}, over the engine"
        note = f"hf on {len(some)} of the engine's {len(every)} items, an item; {tokens / len(every):.0f} tokens each"
        ratio = (each[batch], each["whole"])
        rows.append(at_least(what, *ratio, target, note) if target else Row(what, ratio[0].over(ratio[1]), note=note))
    for name in ("some", "hf8"):
        equal = sum(a == b for a, b in zip(asked["hf1"].answers, asked[name].answers, strict=True))
        other = "engine" if name == "some" else "hf batch 8"
        rows.append(Row(f"equal texts in bf16: hf batch 1 / {other}", f"{equal} of {len(some)}"))
    apart = sum(asked["some"].answers[i] != asked["whole"].answers[every.index(d)] for i, d in enumerate(some))
    rows.append(
        Row("texts that other neighbours change: engine", str(apart), "0", not apart, "64 items / some of them")
    )
    return rows


def arms(settings: Settings) -> list[Row]:
    """(c) Four decode arms over one prefill, scored through decode, against one arm."""
    every = jobs.choices(settings)
    lm = jobs.ours(settings, BF16)
    contexts = _contexts(jobs.ask(settings, lm, jobs.CHOICES, every[:32] if settings.quick else every))
    del lm
    engine = _engine(settings, ARMS)
    for name in ARMS:
        engine.arm(name)
    times: dict[str, Spent] = {}
    for label, names in (("warm", tuple(ARMS)), ("one", ("bf16",)), ("four", tuple(ARMS))):
        forget(engine)
        some = contexts[:2] if label == "warm" else contexts
        asked = [
            ScoreRequest(context=c, continuations=[f" {x}" for x in jobs.LETTERS], through="decode", arms=names)
            for c in some
        ]
        times[label], results = clocked(lambda asked=asked: _answers(engine, asked))
        assert len(results) == len(some) * len(names)
    note = f"{len(contexts)} items, 5 shots, through decode; prefill bf16, decode {', '.join(ARMS)}"
    return [
        Row("seconds in all", f"one arm: {times['one']}\nfour arms: {times['four']}", note=note),
        at_most("four decode arms over one prefill: four over one", times["four"], times["one"], 1.6, note),
    ]


def _contexts(asked: jobs.Asked) -> list[str]:
    return list(dict.fromkeys(request.args[0] for request in asked.requests))


def _engine(settings: Settings, plans: dict[str, str], **options: Any) -> Engine:
    sizes: dict[str, Any] = {"kv_tokens": 32768} | options
    return Engine.load(settings.model, plans=plans, device=settings.device, **sizes)


def _answers(engine: Engine, requests: Sequence[Any]) -> list[Any]:
    """All results; a request without one ends the measurement."""
    found = list(engine.answer(requests))
    for result in found:
        if isinstance(result, RequestFailure):
            raise AssertionError(f"no answer: {result.message}")
    return found


def decode(settings: Settings) -> list[Row]:
    """(d) New tokens a second at batch 32 and alone, over prompts whose pages are there already."""
    every = jobs.choices(settings)
    lm = jobs.ours(settings, BF16)
    text = _contexts(jobs.ask(settings, lm, jobs.CHOICES, every[:32]))
    prompts = [lm.tok_encode(context)[-PROMPT:] for context in text]
    del lm
    engine = _engine(settings, {"bf16": BF16})
    new = 16 if settings.quick else 64
    _answers(engine, [GenerateRequest(prompt=p, max_tokens=2) for p in prompts])
    each: dict[int, list[Spent]] = {1: [], 32: []}
    for start, batch in (0, 1), (0, 32), (1, 1), (0, 32), (2, 1):
        asked = [GenerateRequest(prompt=p, max_tokens=new) for p in prompts[start : start + batch]]
        spent, results = clocked(lambda asked=asked: _answers(engine, asked))
        each[batch].append(spent / sum(len(r.token_ids) for r in results))
    alone, many = (sorted(found, key=lambda s: s.wall)[len(found) // 2] for found in each.values())
    note = f"prompts of {PROMPT} tokens, computed before; {new} new ones; the middle of three alone, of two at batch 32"
    return [
        Row("seconds a token", f"alone: {alone}\nbatch 32: {many}", note=note),
        at_least("decode throughput: batch 32 over alone", alone, many, 8, note),
    ]


def exactness(settings: Settings) -> list[Row]:
    """(f) fp32 against lm-eval's hf in fp32: log-likelihoods and choices of some items, texts of a few."""
    every = jobs.choices(settings)
    some = jobs.hf_documents(settings, every, 16, 4)
    ours = jobs.ours(settings, "w=fp32,kv=fp32")
    hf = jobs.hf(settings, "float32", 1)
    theirs, mine = (jobs.ask(settings, lm, jobs.CHOICES, some) for lm in (hf, ours))
    jobs.same_questions(theirs, mine)
    difference, found = largest_difference(theirs, mine), flips(theirs, mine)
    wide = [flip for flip in found if max(flip.first_gap, flip.second_gap) >= GAP]
    note = f"fp32, {len(some)} items of {len(every)}, 5 shots, 4 continuations each"
    few = jobs.generation(settings, [])[: 2 if settings.quick else 4]
    texts = [jobs.ask(settings, lm, jobs.GENERATION, few).answers for lm in (hf, ours)]
    equal = sum(a == b for a, b in zip(*texts, strict=True))
    return [
        Row(
            "largest difference of log-likelihoods: hf / engine",
            f"{difference:.2g} nats",
            f"<= {LOGLIKELIHOOD:g}",
            difference <= LOGLIKELIHOOD,
            note,
        ),
        Row("choices that differ: hf / engine", listed(found), f"only under {GAP:g} nats", not wide, note),
        Row(
            "equal texts: hf / engine",
            f"{equal} of {len(few)}",
            "all",
            equal == len(few),
            f"fp32, {jobs.NEW_TOKENS} new tokens",
        ),
    ]
