"""What a person says of a recorded arm: its plan, and how its answers came about. Nothing of it was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from evalsvc.engine.precision import parse_plan

LOGLIKELIHOOD, GENERATION, UNKNOWN = "loglikelihood", "generation", "unknown"
_NO_FORMATS: dict[str, dict[str, str]] = {"prefill": {}, "decode": {}}
_LONGER_THAN_A_TOKEN = 32  # characters


def declared_plan(text: str | None) -> tuple[str, dict[str, dict[str, str]]]:
    """Canonical plan text, and the stages that it says; an empty text and stages without formats for None.

    Raises:
        ConfigError: Not a plan.
    """
    if text is None:
        return "", _NO_FORMATS
    formats = parse_plan(text).formats()
    stages = {
        stage: {"weights": formats[f"{stage}.weights"], "kv": formats[f"{stage}.kv"]} for stage in ("prefill", "decode")
    }
    halves = [f"w={stage['weights']},kv={stage['kv']}" for stage in stages.values()]
    return halves[0] if halves[0] == halves[1] else " > ".join(halves), stages


def coverage(
    scored_by: str, answers: Sequence[str] | None, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`stage_tokens` and `handed_over` of a recorded answer; nobody counted tokens, so 1 stands for "at least one".

    A log-likelihood is computed in one pass over prompt and choices: prefill. A generation's first token is prefill's,
    and only a second one is decode's: it counts where the text cannot be a single token, or where it is unknown and a
    person said that answers were generated.

    Args:
        scored_by: `loglikelihood`, `generation`, or `unknown`, which covers nothing.
        answers: Generated texts; None where nobody kept them.
        settings: How they were generated.
    """
    if scored_by == UNKNOWN:
        return {"stage_tokens": {}, "handed_over": False}
    if scored_by == LOGLIKELIHOOD:
        return {"stage_tokens": {"prefill": 1}, "handed_over": False}
    limit = (settings or {}).get("max_gen_toks")
    more = limit != 1 and (answers is None or any(map(_is_more_than_a_token, answers)))
    return {"stage_tokens": {"prefill": 1, "decode": 1} if more else {"prefill": 1}, "handed_over": more}


def _is_more_than_a_token(text: str) -> bool:
    return len(text.split()) > 1 or len(text.strip()) > _LONGER_THAN_A_TOKEN
