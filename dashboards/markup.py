"""Pieces of HTML and their one style sheet. Every value passes through `escape`."""

import re
from typing import Any

from evalsvc.dashboards.charts import MARKS
from evalsvc.dashboards.reads import Candidate, RunView
from evalsvc.dashboards.reads_flips import UNKNOWN_STAGES, Flip, Shown
from evalsvc.dashboards.rows import POOLED
from evalsvc.dashboards.text import counted, escape

# word -> (symbol, text colour, background): never colour alone, and readable on light and dark pages.
WORDS = {
    "PASS": ("✓", "#00553d", "#d4efe5"),
    "REGRESSED": ("▼", "#8f3500", "#fde3d3"),
    "INCONCLUSIVE": ("?", "#6b4a00", "#fbeecb"),
    "INVALID": ("⊘", "#414b59", "#e6e9ee"),
}
_SHAPES = {"circle": "●", "triangle-down": "▼", "diamond": "◆", "cross": "✚", "triangle-right": "▶", "square": "■"}
NOTES = 8  # of a card, before they fold
NOT_DECIDED = ("·", "#414b59", "#eef0f3")

STYLE = """<style>
.ev { font-size: .875rem; line-height: 1.45; color: inherit; --ev-line: rgba(128,140,155,.32);
  --ev-ground: rgba(128,140,155,.10); --ev-fault: light-dark(#8a3fb3, #cf9bea); }
.ev-scroll { overflow-x: auto; border: 1px solid var(--ev-line); border-radius: 8px; }
.ev table { border-collapse: collapse; width: 100%; min-width: 860px; margin: 0; }
.ev th, .ev td { padding: .4rem .5rem; border: 0; border-bottom: 1px solid var(--ev-line); text-align: left;
  vertical-align: middle; }
.ev thead th { font-weight: 500;
  opacity: .74; font-size: .78rem; white-space: nowrap; border-bottom-color: var(--ev-line); }
.ev .num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ev tr.group td { background: var(--ev-ground); padding-top: .6rem; padding-bottom: .6rem;
  border-top: 1px solid var(--ev-line); }
.ev tbody:first-of-type tr.group:first-child td { border-top: 0; }
.ev-nowrap { white-space: nowrap; }
.ev td.name { min-width: 10.5rem; overflow-wrap: anywhere; }
.ev td.who { min-width: 11rem; max-width: 17rem; overflow-wrap: anywhere; }
.ev td.who .ev-fault { white-space: normal; }
.ev td.verdict { min-width: 190px; }
.ev .ev-stick { position: sticky; left: .6rem; max-width: calc(100vw - 4.5rem); }
.ev table.tight { font-size: .8rem; }
.ev table.tight th, .ev table.tight td { padding: .35rem .3rem; }
.ev table.tight .ev-mono { font-size: .72rem; min-width: 7.5rem; }
.ev table.wrapped { min-width: 0; }
.ev table.wrapped td { vertical-align: top; }
.ev table.wrapped td { min-width: 4.6rem; }
.ev table.wrapped td.long { min-width: 13.5rem; width: 50%; overflow-wrap: anywhere; white-space: pre-line; }
.ev table.overview { min-width: 0; }
.ev table.overview .ev-fault { margin-left: .4rem; }
.ev table.overview td.name { min-width: 11rem; }
.ev table.overview thead th { white-space: normal; overflow-wrap: break-word; max-width: 9rem; }
.ev table.overview .ev-fault { white-space: normal; }
@media (max-width: 640px) { .ev table.overview td.name { min-width: 6.5rem; }
  .ev table.overview th, .ev table.overview td { padding: .35rem .4rem; }
  .ev table.overview .ev-fault { margin-left: 0; } }
.ev td.met { opacity: .74; font-size: .76rem; line-height: 1.3; white-space: nowrap; }
.ev tr.pooled td.name, .ev tr.pooled td.num { font-weight: 600; }
.ev tr.family td { font-size: .82rem; padding-top: .25rem; padding-bottom: .25rem; }
.ev tr.family td:first-child { padding-left: 1.9rem; }
.ev tr.blind td { font-style: italic; }
.ev tbody:last-child tr:last-child td { border-bottom: 0; }
.ev-head { display: flex; flex-wrap: wrap; align-items: center; gap: .35rem .7rem; }
.ev-name { font-weight: 650; font-size: .95rem; }
.ev-head .ev-name, .ev-head .ev-fault, .ev > .ev-quiet { white-space: normal; overflow-wrap: anywhere; }
.ev span { unicode-bidi: isolate; }
.ev-plan, .ev-mono { font-family: ui-monospace, "Liberation Mono", Menlo, Consolas, monospace; font-size: .78rem;
  opacity: .74; overflow-wrap: anywhere; }
.ev-quiet { opacity: .74; font-size: .8rem; }
.ev-quiet .ev-mono, .ev-quiet .ev-quiet { opacity: 1; }
.ev-pill { display: inline-block; padding: .08rem .55rem; border-radius: 99px; font-weight: 600; font-size: .76rem;
  letter-spacing: .02em; white-space: nowrap; font-style: normal; }
.ev-fault { display: inline-block; margin: 1px 0; padding: .05rem .5rem; border-radius: 4px;
  border: 1px dashed var(--ev-fault);
  color: var(--ev-fault); font-weight: 600; font-size: .76rem; white-space: nowrap; }
.ev-facts { display: flex; flex-wrap: wrap; gap: .2rem 1.6rem;
  opacity: .74; font-size: .86rem; }
.ev-facts b { color: inherit; font-weight: 600; }
.ev h2 { font-size: 1.05rem; font-weight: 650; padding: 0; margin: .6rem 0 .15rem; }
.ev h1 { font-size: 1.5rem; font-weight: 650; padding: 0; margin: 0 0 .3rem; letter-spacing: -.01em; }
.ev-brand { font-size: 1.15rem; font-weight: 700; letter-spacing: -.01em; }
.ev-note { overflow-wrap: anywhere; border-left: 3px solid var(--ev-line); padding: .1rem 0 .1rem .8rem;
  opacity: .74; }
.ev-parted { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--ev-ground); border-radius: 8px;
  margin: 0;
  padding: .7rem .9rem; font-size: .84rem; color: inherit; max-height: 320px; overflow-y: auto; }
.ev-parted span { opacity: .78; }
.ev-parted mark { background: #fbe3a1; color: #1c2430; border-radius: 3px; padding: 0 2px; }
.ev-card { border: 1px solid var(--ev-line); border-left-width: 5px; border-radius: 8px; padding: .55rem .9rem;
  margin: .35rem 0; }
.ev-card .ev-say { margin: .2rem 0; }
.ev-card ul { margin: .15rem 0 .1rem 1.1rem; padding: 0; }
</style>"""


def pill(word: str | None, note: str = "") -> str:
    """A verdict as symbol, word and colour."""
    symbol, ink, ground = WORDS.get(word or "", NOT_DECIDED)
    text = escape(word or "not decided") + (f": {escape(note)}" if note else "")
    return f'<span class="ev-pill" style="color:{ink};background:{ground}">{symbol} {text}</span>'


def fault_badge(injected: dict[str, Any]) -> str:
    """The mark of an arm with a planted fault; empty for an honest arm."""
    if not injected:
        return ""
    named = ", ".join(f"{name} {value}" for name, value in injected.items())
    return f'<span class="ev-fault">⚑ injected fault: {escape(named)}</span>'


def title(text: str, explained: str) -> str:
    """A heading inside a view, with one line under it."""
    return f'{STYLE}<div class="ev"><h2>{escape(text)}</h2><div class="ev-quiet">{escape(explained)}</div></div>'


def header(view: RunView, title: str, baseline: str = "") -> str:
    """A page's title, which run it is about, and against what: the chosen baseline where none is named."""
    run = view.run
    since = f"{run.status}{' since' if run.status == 'running' else ', begun'} {minute(run.began)}"
    when = f"finished {minute(run.ended)}" if run.ended else since
    facts = (
        f"<span>{escape(run.experiment)}, run <b>{run.id}</b></span>"
        f"<span>baseline <b>{escape(baseline or view.baseline.address)}</b></span><span>{escape(when)}</span>"
    )
    return f'{STYLE}<div class="ev"><h1>{escape(title)}</h1><div class="ev-facts">{facts}</div></div>'


PAGE_STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding: 3.4rem 2.5rem 4rem; max-width: 1500px; }
@media (max-width: 640px) { [data-testid="stMainBlockContainer"] { padding: 3.8rem 1rem 4rem; } }
[data-testid="stDecoration"] { display: none; }
[data-testid="stSelectbox"] input { text-overflow: ellipsis; }
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] p { color: inherit; }
[data-testid="stCaptionContainer"] { opacity: .78; }
</style>"""


def database_line(name: str) -> str:
    """Which database the page reads."""
    short = escape(name.rsplit("/", 1)[-1])
    line = f'<div class="ev-mono" title="{escape(name)}">{short}</div>'
    return f'{STYLE}<div class="ev"><div class="ev-quiet">database</div>{line}</div>'


def candidate_head(candidate: Candidate) -> str:
    """A candidate's name, mark, plan and verdict in one line."""
    arm = candidate.arm
    return (
        f'{STYLE}<div class="ev"><div class="ev-head"><span class="ev-name">{escape(arm.name)}</span>'
        f'{fault_badge(arm.injected)}{pill(candidate.word)}<span class="ev-plan">{escape(arm.plan)}</span></div></div>'
    )


def verdict_card(candidate: Candidate) -> str:
    """The gate's answer about one candidate: word, its own sentence, when, under what, and what is open."""
    arm, decision = candidate.arm, candidate.decision or {}
    ink = WORDS.get(candidate.word or "", NOT_DECIDED)[1]
    head = (
        f'<div class="ev-head">{pill(candidate.word)}<span class="ev-name">{escape(arm.name)}</span>'
        f'{fault_badge(arm.injected)}<span class="ev-plan">{escape(arm.plan)}</span></div>'
    )
    facts = [f"gate {minute(candidate.decided_at)}"] if candidate.decided_at else []
    if policy := decision.get("policy"):
        facts.append(f"policy {policy.get('name', '')}")
    if candidate.held.errors:
        facts.append(f"{counted(candidate.held.errors, 'error')} among {candidate.held.samples:,} samples")
    if candidate.problem:
        facts.append(candidate.problem)
    say = decision.get("sentence") or "no gate has decided this candidate yet"
    notes = [arm.details.get("note") or "", *(decision.get("notes") or ()), *_would_decide(candidate, say)]
    below = _notes([note for note in notes if note])
    quiet = f'<div class="ev-quiet">{escape(" · ".join(facts))}</div>' if facts else ""
    return (
        f'{STYLE}<div class="ev"><div class="ev-card" style="border-left-color:{ink}">{head}'
        f'<div class="ev-say">{escape(say)}</div>{quiet}{below}</div></div>'
    )


def _notes(notes: list[str]) -> str:
    """Notes as a list, of many the first ones; the others unfold, and what is said suite by suite is among them."""
    notes = sorted(notes, key=lambda note: note.startswith(("guard not proven", "open: ")))
    shown, further = ("".join(f"<li>{escape(note)}</li>" for note in some) for some in (notes[:NOTES], notes[NOTES:]))
    more = f"<summary>{counted(len(notes) - NOTES, 'more note')}</summary>"
    folded = f'<details class="ev-quiet">{more}<ul>{further}</ul></details>' if further else ""
    return (f'<ul class="ev-quiet">{shown}</ul>' if shown else "") + folded


def _would_decide(candidate: Candidate, sentence: str) -> list[str]:
    """What each open row would take, without what the sentence has said of the pooled one."""
    open_rows = [row for row in candidate.rows if row.word == "INCONCLUSIVE" and not row.blind]
    how = [f"about {row.more_items:,} more items would decide" if row.more_items else row.remark for row in open_rows]
    return [
        f"open: {row.label} is INCONCLUSIVE; {words or 'see Power'}"
        for row, words in zip(open_rows, how, strict=True)
        if row.level != POOLED or not words or words not in sentence
    ]


def flip_head(flip: Flip) -> str:
    """Which item flipped, and which way."""
    through = f'<span class="ev-quiet">through {escape(flip.through)}</span>' if flip.through else ""
    known = flip.stages != UNKNOWN_STAGES
    stages = f'<span class="ev-quiet">scored tokens from {escape(flip.stages)}</span>' if known else ""
    return (
        f'{STYLE}<div class="ev"><div class="ev-head">{direction_pill(flip.direction)}'
        f'<span class="ev-name">{escape(flip.suite)} · {escape(flip.family)}</span>'
        f'<span class="ev-mono">{escape(flip.item)}</span>{through}'
        f"{stages}</div></div>"
    )


def direction_pill(direction: str) -> str:
    """`lost`, `gained`, or that both arms agree, as symbol, word and colour."""
    word = {"lost": "REGRESSED", "gained": "PASS"}.get(direction, "INVALID")
    ink, ground = WORDS[word][1:]
    mark = {"lost": "▼ lost", "gained": "▲ gained"}.get(direction, direction)
    return f'<span class="ev-pill" style="color:{ink};background:{ground}">{escape(mark)}</span>'


def answer_head(name: str, *, right: bool, finish: str | None, error: str | None) -> str:
    """Whose answer it is, whether it counted as right, and how it ended."""
    word = "✓ right" if right else "✗ wrong"
    facts = [word, f"finish {finish}" if finish else "", str(error or "")]
    return (
        f'{STYLE}<div class="ev"><div class="ev-head"><b>{escape(name)}</b>'
        f'<span class="ev-quiet">{escape(" · ".join(fact for fact in facts if fact))}</span></div></div>'
    )


def quiet(text: str) -> str:
    """A sentence under a chart, names in it as text."""
    return f'{STYLE}<div class="ev"><div class="ev-quiet">{escape(text, 1000)}</div></div>'


def sample_head(shown: Shown, direction: str, stages: str, *, compared: bool) -> str:
    """Which item, which way it went, and what its score could see."""
    parts = [f"scored by {shown.scored_by}"]
    parts += [f"tokens from {stages}"] if stages != UNKNOWN_STAGES else []
    parts += [f"through {shown.through}"] if shown.through else []
    parts += [f"repeat {shown.repeat}"] if shown.repeat else []
    parts += [f"chance {100 * shown.chance:.0f} %"] if shown.chance else []
    parts += [] if compared else ["the baseline has no such sample"]
    return (
        f'{STYLE}<div class="ev"><div class="ev-head">{direction_pill(direction)}'
        f'<span class="ev-name">{escape(shown.suite)} · {escape(shown.family)}</span>'
        f'<span class="ev-mono">{escape(shown.item)}</span></div>'
        f'<div class="ev-quiet">{escape(" · ".join(parts))}</div></div>'
    )


def sample_answer_head(name: str, shown: Shown, value: float | None, error: str | None) -> str:
    """Whose answer, its score, how it ended, and how long it is."""
    facts = [f"{shown.metric} {value:g}"] if value is not None else [shown.status]
    facts += [str(error)] if error else []
    facts += [f"finish {shown.finish}"] if shown.finish else []
    facts += [f"{shown.answer_tokens:,} tokens"] if shown.answer_tokens is not None else []
    return (
        f'{STYLE}<div class="ev"><div class="ev-head"><b>{escape(name)}</b>'
        f'<span class="ev-quiet">{escape(" · ".join(facts))}</span></div></div>'
    )


def parted(both: str, rest: str) -> str:
    """An answer around the place where it parts from another: what both say, then its own first word marked."""
    own = re.match(r"\s*\S{0,40}", rest)
    first = rest[: own.end()] if own else ""
    shown = f"<mark>{escape(first)}</mark>{escape(rest[len(first) :])}" if rest else "<mark>(ends here)</mark>"
    return f'{STYLE}<div class="ev"><pre class="ev-parted" tabindex="0"><span>{escape(both)}</span>{shown}</pre></div>'


def minute(iso: str) -> str:
    """A stored time (ISO 8601, UTC) without its seconds."""
    return f"{iso[:10]} {iso[11:16]} UTC"


def marks_legend() -> str:
    """What the marks of the forest plot mean, once for all plots of the page."""
    entries = "".join(
        f'<span><b style="color:{colour}">{_SHAPES[shape]}</b> {word}</span>' for word, (colour, shape) in MARKS.items()
    )
    margin = (
        "<span><b>|</b> margin of the row</span><span><b>▒</b> beyond the margin</span>"
        "<span><b>—</b> one-sided lower to upper bound</span>"
    )
    return f'{STYLE}<div class="ev"><div class="ev-facts">{entries}{margin}</div></div>'
