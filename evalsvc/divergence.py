"""How far an arm's next-token distributions are from the baseline's along the baseline's own answers."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evalsvc.engine.requests import Divergence, GenerateRequest, RequestFailure, ScoreRequest, ScoreResult
from evalsvc.questions import Question
from evalsvc.store.records import StoredAnswer
from evalsvc.targets.base import Target
from evalsvc.verdict.divergence import summary

STAGES: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")


@dataclass(frozen=True)
class Path:
    """A prompt and what the baseline wrote after it, in token ids."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def paths_of(
    asked: Sequence[Question], held: Sequence[StoredAnswer], encode: Callable[[Any], Sequence[int]]
) -> list[Path]:
    """What the baseline wrote after the prompts asked, in their order; first repeats with one answer alone.

    Args:
        asked: Generated items.
        held: The baseline's answers.
        encode: From a prompt to its token ids, as the target renders it.
    """
    answers = {(a.suite, a.item_id, a.item_hash, a.repeat): a for a in held if a.status == "scored"}
    found = []
    for question in asked:
        answer = answers.get((question.suite.name, question.item.id, question.item.sha256, 0))
        if answer is None or question.repeat or not isinstance(question.request, GenerateRequest):
            continue
        if len(answer.turns) == 1 and answer.turns[0].token_ids:
            found.append(Path(tuple(encode(question.request.prompt)), answer.turns[0].token_ids))
    return found


def along_answers(
    target: Target, baseline: str, arms: Sequence[str], paths: Sequence[Path]
) -> dict[str, dict[str, dict[str, Any]]]:
    """KL(baseline || arm) at every token that the baseline wrote, through each stage.

    Args:
        target: Serves the baseline and the arms, and compares whole distributions (`ScoreRequest.compare_with`).
        baseline: Its name.
        arms: Names of the others.
        paths: Along which; one that the target cannot score in an arm is left out there.

    Returns:
        By arm, of those of which anything could be scored, and `answers_STAGE`: `verdict.divergence.summary` of its
        tokens, by their place in the answer.
    """
    found: dict[str, dict[str, list[tuple[int, Divergence]]]] = {name: defaultdict(list) for name in arms}
    for stage in STAGES if arms else ():
        requests = [
            ScoreRequest(
                id=str(number),
                context=path.prompt,
                continuations=[path.tokens],
                through=stage,
                compare_with=baseline,
                arms=(baseline, *arms),
            )
            for number, path in enumerate(paths)
        ]
        for answer in target.submit(requests):
            if isinstance(answer, RequestFailure) or not isinstance(answer, ScoreResult) or answer.arm == baseline:
                continue
            parts = answer.divergences or ()
            found[answer.arm][f"answers_{stage}"] += [placed for part in parts for placed in enumerate(part)]
    return {
        name: {
            key: summary([t.kl for _, t in tokens], [t.same_top1 for _, t in tokens], [place for place, _ in tokens])
            for key, tokens in held.items()
        }
        for name, held in found.items()
        if held
    }
