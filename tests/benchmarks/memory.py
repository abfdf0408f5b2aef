"""(e) Anonymous memory of a process that loads an engine and answers, against the bytes that its proof counts.

The measured process is one of its own: `python -m tests.benchmarks.memory MODEL PLAN KV_TOKENS CONTEXTS.json THREADS`.
Its pools are filled, so that every page of them is really there.
"""

import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .common import Row, Settings

MIB = 2**20
PLANS = ("w=bf16,kv=bf16", "w=bf16,kv=bf16 > w=int4:g32:asym,kv=fp8")
KV_TOKENS = 8192


def anonymous() -> int:
    """Bytes of anonymous memory that this process holds."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


class Peak:
    """The highest level inside a `with` block, looked at every few milliseconds."""

    def __enter__(self) -> "Peak":
        self.bytes = anonymous()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.bytes = max(self.bytes, anonymous())

    def _watch(self) -> None:
        while not self._ended.is_set():
            self.bytes = max(self.bytes, anonymous())
            time.sleep(0.003)


def resident(proof: dict[str, Any]) -> int:
    """Bytes that a proof counts as held, what both stages share once."""
    prefill, decode = proof["prefill"], proof["decode"]
    shared = prefill["weights"]["linears_by_format"] == decode["weights"]["linears_by_format"]
    stages = (prefill,) if shared else (prefill, decode)
    weights = sum(stage["weights"]["resident_bytes"] for stage in stages)
    other = max(stage["weights"]["other_bytes"] for stage in stages)
    return weights + other + prefill["kv"]["resident_bytes"] + decode["kv"]["resident_bytes"]


def measured(model: str, plan: str, kv_tokens: int, contexts: list[str], threads: int) -> dict[str, int]:
    """In this process: levels before and after loading, and the peaks of loading and of answering, in bytes."""
    import torch
    import transformers.models.auto.modeling_auto
    from transformers.models.llama import modeling_llama

    from evalsvc.engine.engine import Engine
    from evalsvc.engine.requests import ScoreRequest

    torch.set_num_threads(threads)
    del transformers, modeling_llama
    warm = torch.nn.functional.linear(torch.ones(64, 64).bfloat16(), torch.ones(64, 64).bfloat16())
    del warm
    gc.collect()
    start = anonymous()
    with Peak() as loading:
        engine = Engine.load(model, plan=plan, kv_tokens=kv_tokens, poison=True)
        engine.arm()
        _ = engine.text
    gc.collect()
    loaded = anonymous()
    asked = [ScoreRequest(context=c, continuations=[" A", " B", " C", " D"], through="decode") for c in contexts]
    with Peak() as answering:
        answers = list(engine.score(asked))
    assert len(answers) == len(contexts)
    proof = engine.proof()
    assert not proof["mismatches"], proof["mismatches"]
    return {
        "resident": resident(proof),
        "loading_peak": loading.bytes - start,
        "loaded": loaded - start,
        "answering_peak": answering.bytes - start,
    }


def memory(settings: Settings) -> list[Row]:
    """Loads and answers in processes of their own, one for each plan."""
    from . import jobs
    from .parts import BF16, _contexts

    every = jobs.choices(settings)
    lm = jobs.ours(settings, BF16)
    contexts = _contexts(jobs.ask(settings, lm, jobs.CHOICES, every[: 4 if settings.quick else 24]))
    del lm
    path = settings.work / "contexts.json"
    path.write_text(json.dumps(contexts), encoding="utf-8")
    rows = []
    for plan in PLANS:
        command = [sys.executable, "-m", "tests.benchmarks.memory", str(settings.model), plan]
        done = subprocess.run(
            [*command, str(KV_TOKENS), str(path), str(settings.threads)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AssertionError(f"the measured process failed: {done.stderr[-2000:]}")
        rows.append(_row(plan, json.loads(done.stdout.splitlines()[-1]), len(contexts)))
    return rows


def _row(plan: str, found: dict[str, int], count: int) -> Row:
    held = found["resident"]
    peak = max(found["loading_peak"], found["loaded"])
    text = (
        f"proof {held / MIB:.0f} MiB; peak of loading {peak / MIB:.0f} MiB ({peak / held - 1:+.1%}), after it "
        f"{found['loaded'] / MIB:.0f} MiB\nactivations of {count} items side by side: "
        f"{max(0, found['answering_peak'] - found['loaded']) / MIB:.0f} MiB on top"
    )
    return Row(
        f"anonymous memory: {plan}",
        text,
        "peak within 10 % of the proof",
        abs(peak / held - 1) <= 0.1,
        f"above the level after imports; pools of {KV_TOKENS} tokens, filled",
    )


if __name__ == "__main__":
    model, plan, kv_tokens, path, threads = sys.argv[1:]
    texts = json.loads(Path(path).read_text(encoding="utf-8"))
    print(json.dumps(measured(model, plan, int(kv_tokens), texts, int(threads))))
