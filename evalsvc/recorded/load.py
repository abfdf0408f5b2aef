"""From files and what was said of them to recorded arms, ready to be stored."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from evalsvc.errors import ConfigError
from evalsvc.experiment import Name
from evalsvc.questions import hash_of
from evalsvc.recorded import lmeval, outcomes, raw
from evalsvc.recorded.declared import UNKNOWN, declared_plan
from evalsvc.recorded.lmeval_files import find_samples
from evalsvc.recorded.lmeval_rows import is_sample
from evalsvc.recorded.rows import read_rows
from evalsvc.store.records import NewArm, NewSample
from evalsvc.suites.load import case_suite

_FIELDS = ("item_hash", "request_hash", "settings_hash")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What a person names.

    Attributes:
        name: Of the experiment; the suite of rows that name none.
        baseline: Name of the arm that the others are compared with.
        arms: Name to files or folders.
        table: A table with a column for each arm; then `arms` is empty.
        again: The baseline's evidence a second time: the A/A.
        plans: Arm to plan text; for every arm or for none.
        metric: See `lmeval.read_arms`.
        filter: See `lmeval.read_arms`.
        scored_by: How the answers of tables came about.
        cases: The cases that raw answers are scored by; None for answers that come with their correctness.
        format: How tool calls are written in raw answers; None for an endpoint's own list where a table has one, else
            as `auto`.
        allow_code: Whether commands of cases may run.
    """

    name: str
    baseline: str
    arms: Mapping[str, Sequence[Path]]
    table: Path | None = None
    again: Sequence[Path] = ()
    plans: Mapping[str, str]
    metric: str | None = None
    filter: str | None = None
    scored_by: str = UNKNOWN
    cases: Path | None = None
    format: str | None = None
    allow_code: bool = False


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run to store.

    Attributes:
        experiment_hash: Of everything that was read and said: the same import again has the same.
        arms: The baseline first.
        again: The A/A's arm.
        notes: What a person must know of how the files were read.
    """

    experiment_hash: str
    arms: tuple[NewArm, ...]
    again: NewArm | None
    notes: tuple[str, ...]


def load(sources: Sources) -> Recorded:
    """Reads everything, or refuses it.

    Raises:
        ConfigError: One sentence with the file and line, or with the option.
    """
    _check(sources)
    samples, notes = _read(sources)
    again = samples.pop("", None)
    plans = _plans(sources, samples)
    arms = tuple(_arm(sources, arm, plans.get(arm), tuple(found)) for arm, found in samples.items())
    base = arms[0]
    repeated = None
    if again is not None:
        repeated = replace(base, samples=tuple(again), details=_details(sources, sources.again))
        if _digest(again) == _digest(base.samples):
            if _files(sources.arms.get(base.name, ())) & _files(sources.again):
                raise ConfigError(
                    "--again names the baseline's own evidence, which shows no noise; a second run's does"
                )
            notes.append("--again: equal to the baseline's evidence, as of a server that repeats itself, or a copy")
    for other in (*arms[1:], *([repeated] if repeated else [])):
        name = other.name if other is not repeated else "--again"
        faults = [*_unequal(base.samples, other.samples), *_unmet(base, other)]
        notes += [f"{name}: {fault}; the gate will say INVALID" for fault in faults]
    known = [sources.name, [arm.fingerprint for arm in arms], None if again is None else _digest(again)]
    return Recorded(experiment_hash=hash_of(["recorded", *known]), arms=arms, again=repeated, notes=tuple(notes))


def _files(paths: Iterable[Path]) -> set[Path]:
    """What is read of files and folders."""
    named = ([file.path for file in find_samples([path], "")[0]] if path.is_dir() else [path] for path in paths)
    return {path.resolve() for some in named for path in some}


def _check(sources: Sources) -> None:
    for what, name in [("NAME", sources.name), *(("--arm", arm) for arm in sources.arms)]:
        _check_name(what, name)
    if (sources.table is None) == (not sources.arms):
        raise ConfigError("give either --arm NAME=PATH for each arm, or --table FILE with a column for each")
    if sources.arms and sources.baseline not in sources.arms:
        raise ConfigError(f"--baseline {sources.baseline} is no arm; arms: {', '.join(sources.arms)}")
    cases = [] if sources.cases is None else [sources.cases]
    for path in (p for paths in (*sources.arms.values(), sources.again, cases) for p in paths):
        if not path.exists():
            raise ConfigError(f"{path}: no such file or folder")


def _check_name(what: str, name: str) -> None:
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        rule = "begin with a letter or digit, go on with these and . _ + - (at most 60)"
        raise ConfigError(f"{what} {name[:80]!r}: {rule}") from None


def _read(sources: Sources) -> tuple[dict[str, list[NewSample]], list[str]]:
    """Samples by arm, the baseline first and the second run of it, where there is one, under an empty name."""
    if sources.cases is not None:
        return _read_raw(sources, sources.cases)
    if sources.format is not None or sources.allow_code:
        raise ConfigError("--format and --allow-code belong to raw answers, which --cases scores")
    if sources.table is not None:
        found = outcomes.read_table(sources.table, sources.name, sources.scored_by)
        for arm in found:
            _check_name(f"{sources.table}: column", arm)
        if sources.baseline not in found:
            raise ConfigError(f"--baseline {sources.baseline} is no column; arms there: {', '.join(found)}")
        if sources.again:
            found[""] = outcomes.read_arm(sources.again, sources.name, sources.scored_by)
        notes = _refuse_lmeval_options(sources)
    else:
        paths = {**sources.arms, **({"": sources.again} if sources.again else {})}
        first = {sources.baseline: paths.pop(sources.baseline)}
        paths = {**first, **paths}
        kinds = {path: _is_lmeval(path) for mine in paths.values() for path in mine}
        if len(set(kinds.values())) > 1:
            odd = next(path for path, kind in kinds.items() if not kind)
            raise ConfigError(f"{odd}: is a table, and other arms are lm-eval's samples; import one kind at a time")
        if next(iter(kinds.values())):
            if sources.scored_by != UNKNOWN:
                raise ConfigError(
                    "--scored-by belongs to tables; lm-eval's samples say themselves how they were scored"
                )
            return lmeval.read_arms(paths, sources.metric, sources.filter, sources.name)
        found = {arm: outcomes.read_arm(mine, sources.name, sources.scored_by) for arm, mine in paths.items()}
        notes = _refuse_lmeval_options(sources)
    return {sources.baseline: found.pop(sources.baseline), **found}, notes


def _read_raw(sources: Sources, cases: Path) -> tuple[dict[str, list[NewSample]], list[str]]:
    if sources.table is not None:
        raise ConfigError("--cases scores answers, and --table holds none; give --arm NAME=PATH for each arm")
    if sources.scored_by != UNKNOWN:
        raise ConfigError("--scored-by belongs to tables of correctness; raw answers are generated")
    _refuse_lmeval_options(sources)
    paths = {sources.baseline: sources.arms[sources.baseline], **sources.arms}
    paths |= {"": sources.again} if sources.again else {}
    form = sources.format or ("native" if raw.lists_calls([p for mine in paths.values() for p in mine]) else "auto")
    suite = case_suite(sources.name, cases, form=form, allow_code=sources.allow_code)
    found = {arm: raw.read_answers(mine, suite) for arm, mine in paths.items()}
    return found, list(raw.unanswered(found))


def _refuse_lmeval_options(sources: Sources) -> list[str]:
    for option, value in (("--metric", sources.metric), ("--filter", sources.filter)):
        if value is not None:
            raise ConfigError(f"{option} belongs to lm-eval's samples; a table has one value an item")
    return []


def _is_lmeval(path: Path) -> bool:
    if path.is_dir():
        return True
    _, row = next(read_rows(path), (0, None))
    if row is None:
        raise ConfigError(f"{path}: holds no rows")
    return is_sample(row)


def _plans(sources: Sources, arms: Mapping[str, object]) -> Mapping[str, str]:
    unknown = [arm for arm in sources.plans if arm not in arms]
    missing = [arm for arm in arms if arm not in sources.plans]
    if unknown:
        raise ConfigError(f"--plan names arm '{unknown[0]}'; arms: {', '.join(arms)}")
    if sources.plans and missing:
        raise ConfigError(f"--plan is missing for arm '{missing[0]}'; declare the plans of all arms, or of none")
    return sources.plans


def _arm(sources: Sources, name: str, plan: str | None, samples: tuple[NewSample, ...]) -> NewArm:
    text, stages = declared_plan(plan)
    return NewArm(
        name=name,
        fingerprint=hash_of(["recorded", name, text, _digest(samples)]),
        plan=text,
        stages=stages,
        details=_details(sources, [sources.table] if sources.table else sources.arms[name]),
        proof_status=None if plan is None else "declared",
        samples=samples,
        capabilities=_held(samples),
    )


def _held(samples: Sequence[NewSample]) -> dict[str, dict[str, Any]]:
    """What the files hold of the answers, {can, about} by name: more than that no page can show of them."""
    counts = {
        "prompts": sum(bool(sample.prompt) for sample in samples),
        "answers": sum(bool(sample.answer) for sample in samples),
        "right answers": sum(sample.right_answer is not None for sample in samples),
        "choices with log-likelihoods": sum(sample.scored_by == "loglikelihood" for sample in samples),
        "token counts": sum(sample.answer_tokens is not None for sample in samples),
        "times": sum(bool(sample.timings) for sample in samples),
    }
    total = len(samples)
    return {name: {"can": n > 0, "about": f"of {n:,} of {total:,} samples"} for name, n in counts.items()}


def _details(sources: Sources, paths: Sequence[Path]) -> dict[str, Any]:
    files = [str(path) for path in paths]
    return {"recorded": files, "note": f"recorded: imported from {', '.join(files)}, not run here"}


def _digest(samples: Sequence[NewSample]) -> str:
    """Hash of everything that samples say, in whatever order they stand."""
    sha = hashlib.sha256()
    for sample in sorted(samples, key=lambda sample: sample.key):
        scores = [(score.metric, score.filter, score.value) for score in sample.scores]
        said = [*sample.key, sample.status, sample.error_message, sample.prompt, sample.answer, scores]
        sha.update(json.dumps(said).encode("ascii"))
    return sha.hexdigest()


def _unmet(baseline: NewArm, other: NewArm) -> Iterator[str]:
    """Declared formats that differ and that no answer of the arm is known to have met."""
    met = {stage for sample in other.samples if sample.status == "scored" for stage in sample.stage_tokens}
    for stage, formats in other.stages.items():
        for key in formats:
            if stage not in met and formats[key] != baseline.stages[stage].get(key):
                yield f"no answer is known to have met {stage}.{key}, in which its plan differs"


def _unequal(baseline: Sequence[NewSample], other: Sequence[NewSample]) -> Iterator[str]:
    """In what two arms were not asked the same."""
    ours = {(s.suite, s.item_id, s.through, s.repeat): s for s in baseline}
    theirs = {(s.suite, s.item_id, s.through, s.repeat): s for s in other}
    for count, where in (
        (len(ours.keys() - theirs.keys()), "only in the baseline"),
        (len(theirs.keys() - ours.keys()), "not in the baseline"),
    ):
        if count:
            yield f"{count:,} answer{'s are' if count > 1 else ' is'} {where}"
    odd = Counter(
        field.removesuffix("_hash")
        for key in ours.keys() & theirs.keys()
        for field in _FIELDS
        if getattr(ours[key], field) != getattr(theirs[key], field)
    )
    for what, count in odd.items():
        yield f"{count:,} of {len(ours):,} items {'have' if count > 1 else 'has'} another {what} than in the baseline"
