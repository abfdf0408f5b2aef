"""The embedded engine as a target: facts before the first item, answers, probe and proof."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evalsvc.engine.arm import ArmSpec
from evalsvc.engine.devices import described
from evalsvc.engine.engine import Engine
from evalsvc.engine.requests import Answer, Request, RequestFailure
from evalsvc.engine.version import source_version
from evalsvc.errors import EngineError
from evalsvc.kernels import dispatch
from evalsvc.targets import templates
from evalsvc.targets.base import ArmFacts
from evalsvc.verdict.divergence import summary

PROBE_TOKENS = 48  # of each passage


class EmbeddedTarget:
    """Serves the arms of one experiment on this machine."""

    def __init__(
        self,
        model: Path | str,
        arms: Mapping[str, ArmSpec],
        *,
        threads: int,
        batch: int,
        kv_tokens: int,
        cache: Path | None,
        integrity: str = "tags",
    ):
        """Sets torch's thread count for this process; reads the model's hashes, not yet its weights.

        Raises:
            EvalsvcError: A model, plan or fault that cannot be served.
        """
        torch.set_num_threads(threads)
        self.threads = threads
        options = {"kv_tokens": kv_tokens, "max_batch": batch, "cache": cache, "integrity": integrity}
        self.engine = Engine.load(model, plans=arms, **options)

    def facts(self, arm: str) -> ArmFacts:
        """What is known before item 1. Runs a calibration when its scales are not in the cache.

        Raises:
            EngineError: The cache cannot be written.
        """
        spec, hashes = self.engine.specs[arm], self.engine.hashes
        try:
            scales = self.engine.scales(arm)
        except OSError as error:
            where = f"cache {self.engine.cache}"
            message = f"{where}: cannot be written ({error.strerror}); name another with EVALSVC_CACHE"
            raise EngineError(message) from error
        stages = {}
        for name, plan in (("prefill", spec.plan.prefill), ("decode", spec.plan.decode)):
            fault = spec.inject.get(f"{name}_k_scale")
            stages[name] = {
                "weights": str(plan.weights),
                "kv": str(plan.kv),
                "checkpoint": hashes["checkpoint"],
                "scales": scales[name].sha256() if name in scales else None,
                "fault": None if fault is None else {"k_scale": fault},
            }
        details = {
            "tokenizer": hashes["tokenizer"],
            "engine": source_version(),
            "device": described(self.engine.device),
            "kernels": dispatch.described(self.engine.device.type),
            "threads": self.threads,
            "max_length": self.engine.max_length,  # rope's frequencies can hang on it
            "integrity": self.engine.integrity,
            "calibration": None if spec.calibration is None else _sha256(spec.calibration.read_bytes()),
        }
        known = json.dumps([str(spec.plan), stages, spec.inject, details], sort_keys=True)
        return ArmFacts(
            name=arm,
            fingerprint=_sha256(known.encode()),
            plan=str(spec.plan),
            stages=stages,
            injected=dict(spec.inject),
            details={**details, "torch": torch.__version__, "driver": _driver()},  # these two make no other arm
            capabilities=self.capabilities(),
        )

    def capabilities(self) -> dict[str, dict[str, Any]]:
        """What this engine can do with the model, by name {can, about}; what hangs on a chat template is tried."""
        served = {
            "generated answers": f"up to {self.engine.max_length:,} tokens with their prompt",
            "log-likelihoods": "through prefill or decode",
            "likeliest tokens": "at each generated or scored token",
            "sampling": "seeded, the same in every arm",
            "proof": "bytes, dtypes and kernels of both stages",
            "integrity of KV pages": self.engine.integrity,
        }
        found: dict[str, dict[str, Any]] = {name: {"can": True, "about": about} for name, about in served.items()}
        found["integrity of KV pages"]["can"] = self.engine.integrity != "off"
        return found | templates.tried(self.engine.text.write)

    def submit(self, requests: Sequence[Request]) -> Iterator[Answer | RequestFailure]:
        """Answers in the order in which they finish; arms of one prefill stage have each prompt computed once."""
        return self.engine.answer(requests)

    def proof(self, arm: str) -> dict[str, Any]:
        """What the engine measured of the arm."""
        return self.engine.proof(arm)

    def encode(self, prompt: Any) -> list[int]:
        """Token ids of a text or of messages, as they are served."""
        return self.engine.text.encode(prompt)

    def begins(self, prompt: Any, tools: Sequence[Mapping[str, Any]] = ()) -> int | None:
        """Beginning-of-sequence tokens at the start of a prompt; None for one that the engine refuses."""
        try:
            return self.engine.text.leading_bos(prompt, tools)
        except EngineError:
            return None

    @property
    def adds_bos(self) -> bool | None:
        """Whether the tokenizer begins a plain text with one; None where it knows no such token."""
        return self.engine.text.adds_bos

    def distributions(self, arm: str, passages: Sequence[str], *, together: bool = True) -> dict[str, list[Tensor]]:
        """Logits of fixed passages through each stage alone.

        Args:
            arm: Whose stages.
            passages: Texts; the first PROBE_TOKENS tokens of each.
            together: All in one batch, or one after the other (an A/A wants another composition).

        Returns:
            Per stage one tensor a passage. Shape: (tokens, vocabulary).
        """
        ids = [self.engine.text.encode(text)[:PROBE_TOKENS] for text in passages]
        groups = [ids] if together else [[one] for one in ids]
        return {
            stage: [row for group in groups for row in self.engine.batch_logits(group, arm, stage)]
            for stage in ("prefill", "decode")
        }


def kl_by_stage(baseline: Mapping[str, list[Tensor]], arm: Mapping[str, list[Tensor]]) -> dict[str, dict[str, Any]]:
    """KL(baseline || arm) of next-token distributions per stage, as `verdict.divergence.summary` gives it."""
    found = {}
    for stage, passages in baseline.items():
        both = list(zip(passages, arm[stage], strict=True))
        kls = torch.cat([_kl(ours, theirs) for ours, theirs in both])
        same = torch.cat([ours.argmax(-1) == theirs.argmax(-1) for ours, theirs in both])
        places = [place for ours, _ in both for place in range(len(ours))]
        found[stage] = summary(kls.tolist(), same.tolist(), places)
    return found


def _kl(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    p, q = (torch.log_softmax(logits.double(), dim=-1) for logits in (p_logits, q_logits))
    return (p.exp() * (p - q)).sum(dim=-1)


def _driver() -> str | None:
    """Version of NVIDIA's kernel driver; None where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module\D*([\d.]+)", text)
    return found and found[1]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
