"""The tables of the verdict page as HTML. Every value passes through `escape`."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from evalsvc.dashboards.markup import NOT_DECIDED, STYLE, WORDS, fault_badge, pill
from evalsvc.dashboards.reads import Candidate, RunView
from evalsvc.dashboards.rows import FAMILY, POOLED, SUITE, VerdictRow
from evalsvc.dashboards.text import byte_size, counted, escape, p_value, points, small_number
from evalsvc.row import format_margin
from evalsvc.store.records import ArmRecord, ArmTotals

_HEAD = "".join(
    f'<th class="num" title="{title}">{name}</th>' if number else f'<th title="{title}">{name}</th>'
    for name, number, title in (
        ("suite", False, "suite, and the stage that scored it where both can"),
        ("verdict", False, "PASS: the drop is proven to lie within the margin"),
        ("lost b", True, "items right in the baseline only"),
        ("gained c", True, "items right in the candidate only"),
        ("items n", True, "paired items"),
        ("drop", True, "(b - c) / n, in points"),
        ("upper bound", True, "one-sided upper bound of the drop, in points"),
        ("margin", True, "drop that the policy accepts, in points"),
        ("p, Holm", True, "one-sided p of no drop, adjusted over the suites and the pooled row"),
        ("factors met", False, "differing factors that scored tokens met"),
    )
)
_COLUMNS = 10
LONG_CELL = 24  # characters; such a column is given room
WRAPPED_CHARACTERS = 4000


def overview(view: RunView) -> str:
    """Candidates x suites at a glance: one word and the drop in points in each cell."""
    suites = sorted({row.suite for c in view.candidates for row in c.rows if row.level == SUITE})
    names = ["candidate", "gate", "pooled", *suites]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = ""
    for candidate in view.candidates:
        found = {row.suite: row for row in candidate.rows if row.level in (POOLED, SUITE)}
        name = f'<span class="ev-name">{escape(candidate.arm.name)}</span> {fault_badge(candidate.arm.injected)}'
        cells = "".join(f"<td>{_glance(found.get(suite))}</td>" for suite in ("", *suites))
        body += f'<tr><td class="name">{name}</td><td>{pill(candidate.word)}</td>{cells}</tr>'
    return _table(head, f"<tbody>{body}</tbody>", "overview")


def _glance(row: VerdictRow | None) -> str:
    if row is None:
        return '<span class="ev-quiet">–</span>'
    symbol, ink, ground = WORDS.get(row.word or "", NOT_DECIDED)
    word = escape("blind" if row.blind else (row.word or "not decided"))
    shown = f"{symbol} blind" if row.blind else symbol  # the column before it has the words
    about = f'class="ev-pill" style="color:{ink};background:{ground}" title="{word}" role="img" aria-label="{word}"'
    drop = "" if row.drop is None else points(row.drop, signed=True)
    return f'<span class="ev-nowrap"><span {about}>{shown}</span> {drop}</span>'


def verdict_table(view: RunView, *, families: bool) -> str:
    """Candidates x suites, one block a candidate."""
    blocks = "".join(f"<tbody>{_block(view, candidate, families)}</tbody>" for candidate in view.candidates)
    return _table(_HEAD, blocks)


def repeat_line(view: RunView) -> str:
    """The noise of the instrument in one sentence."""
    repeat = view.repeat
    if repeat is None:
        text = "No A/A: the baseline was not run against itself, so the noise of the instrument is unknown."
    elif repeat.checked is None:
        text = f"A/A {escape(repeat.address)}: no gate has compared it yet."
    else:
        lost, gained, n = (int(repeat.checked[name]) for name in ("lost", "gained", "n"))
        discordance = (
            "no item can be counted"
            if not n
            else f"<b>{points(100 * (lost + gained) / n)} points</b> of {n} items flipped"
        )
        text = f"A/A (baseline against itself, {escape(repeat.address)}): {discordance} (b {lost}, c {gained})."
    return f'{STYLE}<div class="ev"><div class="ev-note">{text}</div></div>'


def arms_table(arms: Sequence[tuple[str, ArmRecord, ArmTotals]]) -> str:
    """What each stage of each arm, shown by that name, held, and how far its words are from the baseline's."""
    head = "".join(
        f'<th class="{"num" if number else ""}">{name}</th>'
        for name, number in (
            ("arm", False),
            ("stage", False),
            ("weights format", False),
            ("KV format", False),
            ("weights", True),
            ("resident", True),
            ("KV/token", True),
            ("KV resident", True),
            ("KL mean", True),
            ("KL max", True),
        )
    )
    body = "".join(f"<tbody>{_arm_rows(name, arm, totals)}</tbody>" for name, arm, totals in arms)
    return _table(head, body, "tight")


def _table(head: str, body: str, kind: str = "") -> str:
    table = f'<table class="{kind}"><thead><tr>{head}</tr></thead>{body}</table>'
    scroll = 'class="ev-scroll" tabindex="0" role="region" aria-label="table"'
    return f'{STYLE}<div class="ev"><div {scroll}>{table}</div></div>'


def _block(view: RunView, candidate: Candidate, families: bool) -> str:
    arm = candidate.arm
    progress = ""
    if arm.status != "finished":
        progress = f'<span class="ev-quiet">{arm.status}: {candidate.held.samples:,} of {arm.expected:,} samples</span>'
    if candidate.held.errors:
        progress += f'<span class="ev-quiet">{counted(candidate.held.errors, "error")}</span>'
    name = f'<span class="ev-name">{escape(arm.name)}</span>{pill(candidate.word)}{fault_badge(arm.injected)}'
    top = f'<div class="ev-head">{name}<span class="ev-plan">{escape(arm.plan)}</span>{progress}</div>'
    head = f'<tr class="group"><td colspan="{_COLUMNS}"><div class="ev-stick">{top}</div></td></tr>'
    if candidate.decision is None:
        command = f"evalsvc gate --baseline {view.baseline.address} --candidate {arm.address} --policy POLICY"
        return head + (
            f'<tr><td colspan="{_COLUMNS}" class="ev-quiet">No gate has decided this candidate yet: '
            f'<span class="ev-mono">{escape(command)}</span></td></tr>'
        )
    if candidate.problem:
        return head + f'<tr><td colspan="{_COLUMNS}" class="ev-quiet">{escape(candidate.problem)}</td></tr>'
    declared = any(arm.stages.values())  # else nobody said which formats the arm holds
    rows = [row for row in candidate.rows if families or not row.described_only]
    return head + "".join(_line(row, declared=declared) for row in rows)


def _line(row: VerdictRow, *, declared: bool) -> str:
    kinds = [row.level, *(["blind"] if row.blind else [])]
    left_out = '<span class="ev-quiet">left out of the decision</span>'
    if row.blind:
        verdict = f"{pill('INVALID', 'blind')} {left_out}"
    elif row.level == FAMILY:
        verdict = f'<span class="ev-quiet">{escape(row.remark or "described")}</span>'
    else:
        verdict = f'{pill(row.word)} <span class="ev-quiet">{escape(row.remark)}</span>'
    met = "".join(f"<div>{escape(line)}</div>" for line in met_lines(row.factors_met)) or "none"
    met = met if declared else "not declared"
    numbers = (
        str(row.lost),
        str(row.gained),
        str(row.n) if row.n == row.items else f"{row.n} of {row.items}",
        points(row.drop, signed=True, digits=2),
        points(row.upper, signed=True, digits=2),
        "–" if row.margin is None else format_margin(row.margin / 100),
        p_value(row.p if row.p_adjusted is None else row.p_adjusted),
    )
    cells = "".join(f'<td class="num">{number}</td>' for number in numbers)
    name = f'<td class="name">{escape(row.label)}</td><td class="verdict">{verdict}</td>'
    return f'<tr class="{" ".join(kinds)}">{name}{cells}<td class="met">{met}</td></tr>'


def met_lines(factors: Sequence[str]) -> list[str]:
    """Factors as one line a stage: `prefill.weights` and `prefill.kv` become `prefill: weights, kv`."""
    stages: dict[str, list[str]] = {}
    for factor in factors:
        stage, _, kind = factor.partition(".")
        stages.setdefault(stage, []).append(kind)
    return [f"{stage}: {', '.join(kinds)}" if any(kinds) else stage for stage, kinds in stages.items()]


def wrapped(frame: pd.DataFrame) -> str:
    """A table whose long texts wrap instead of being cut; numbers to four digits, unknown values empty."""
    numbers = {name: frame[name].dtype == "Float64" for name in frame.columns}
    head = "".join(f'<th class="{"num" if number else ""}">{escape(name)}</th>' for name, number in numbers.items())
    body = ""
    for row in frame.itertuples(index=False):
        cells = zip(row, numbers.values(), strict=True)
        body += "<tr>" + "".join(_wrapped_cell(value, number=number) for value, number in cells) + "</tr>"
    return _table(head, f"<tbody>{body}</tbody>", "wrapped")


def _wrapped_cell(value: Any, *, number: bool) -> str:
    if pd.isna(value):
        return "<td></td>"
    if number:
        return f'<td class="num">{value:,.0f}</td>' if value == int(value) else f'<td class="num">{value:.4g}</td>'
    kind = ' class="long"' if len(value) > LONG_CELL else ""
    return f"<td{kind}>{_breakable(value) if kind else escape(value)}</td>"


def _arm_rows(shown: str, arm: ArmRecord, totals: ArmTotals) -> str:
    names: Sequence[str] = [name for name in ("prefill", "decode") if name in arm.stages] or list(arm.stages)
    unproven = "nothing measured" if arm.status == "finished" else "not measured yet"
    facts = [f"proof {arm.proof_status}" if arm.proof_status else unproven]
    if totals.answer_tokens is not None:
        facts.append(f"{totals.answer_tokens:,} tokens answered")
    computing = arm.seconds()  # not the samples' own times, which overlap in a batch
    own = [seconds for seconds, others in computing.values() if not others]
    facts += [f"{sum(own):,.0f} s"] if own else []
    facts += [f"{stage} {s:,.0f} s with {', '.join(others)}" for stage, (s, others) in computing.items() if others]
    about = f'<div class="ev-quiet">{escape(" · ".join(facts))}</div>{fault_badge(arm.injected)}'
    first = f'<td class="who" rowspan="{len(names)}"><div class="ev-name">{escape(shown)}</div>{about}</td>'
    lines = []
    for stage in names:
        lines.append(f"<tr>{first}{_stage_cells(arm, stage)}</tr>")
        first = ""
    return "".join(lines)


def _breakable(text: str) -> str:
    """A text as HTML that a narrow column may break after a colon, as formats have them."""
    return escape(text, WRAPPED_CHARACTERS).replace(":", ":<wbr>")


def _stage_cells(arm: ArmRecord, stage: str) -> str:
    formats = arm.stages[stage]
    proof = (arm.proof or {}).get(stage) or {}
    weights, kv = proof.get("weights") or {}, proof.get("kv") or {}
    probe = (arm.probe or {}).get(stage) or {}
    numbers = (
        byte_size(weights.get("format_bytes")),
        byte_size(weights.get("resident_bytes")),
        byte_size(kv.get("bytes_per_token")),
        byte_size(kv.get("resident_bytes")),
        small_number(probe.get("kl_mean")),
        small_number(probe.get("kl_max")),
    )
    cells = "".join(f'<td class="num">{number}</td>' for number in numbers)
    names = "".join(f'<td class="ev-mono">{_breakable(formats.get(kind, "–"))}</td>' for kind in ("weights", "kv"))
    return f"<td>{escape(stage)}</td>{names}{cells}"
