"""Page 4: one item, both answers, and where they part."""

import json
from math import exp

import pandas as pd
import streamlit as st

from evalsvc.alternatives import at
from evalsvc.dashboards import frames, markup, reads_flips
from evalsvc.dashboards.page_flips import flips_of
from evalsvc.dashboards.parting import Parting, fields_of, parting
from evalsvc.dashboards.reads import RunView
from evalsvc.dashboards.reads_flips import Flip, Shown
from evalsvc.dashboards.show import NOT_RECORDED, no_candidate, show_answer, show_table, show_text
from evalsvc.dashboards.text import markdown_free, outer_space
from evalsvc.errors import EvidenceError
from evalsvc.expected import case_of, compared
from evalsvc.store.records import ArmRecord
from evalsvc.store.session import Store

_DIGITS = 19  # as many as a 64-bit number may have are no key of a sample
BEFORE, AFTER = 160, 320  # characters shown around the place where two answers part


def show(store: Store, view: RunView) -> None:
    """The sample that the address names, else the candidate's first flip."""
    st.html(markup.header(view, "Sample"))
    if view.chosen is None:
        return no_candidate()
    flips = flips_of(store, view, view.chosen)
    named = st.query_params.get("sample") or (str(flips[0].candidate_id) if flips else "")
    if not named:
        st.info("No item flipped for this candidate. Choose another at the left; the Compare page has its numbers.")
        return
    number = int(named) if named.isdecimal() and len(named) < _DIGITS else None
    theirs = None if number is None else reads_flips.sample(store, view.chosen.arm, number)
    if theirs is None:
        st.warning(
            f"Arm {markdown_free(view.chosen.arm.address)} holds no sample {markdown_free(named)}. The link may be of "
            "another database or candidate: choose an item on the Flips page."
        )
        return
    ours = reads_flips.counterpart(store, view.baseline, theirs)
    _head(flips, theirs, ours)
    names = (view.named(view.baseline), view.named(view.chosen.arm))
    left, right = st.columns(2)
    with left:
        _answer(names[0], ours)
    with right:
        _answer(names[1], theirs)
    if theirs.scored_by != "loglikelihood":
        _expected(store, view.chosen.arm, ours, theirs, names)
    with st.expander("Prompt", expanded=True):
        show_text(theirs.prompt, NOT_RECORDED)
    if ours is not None:
        _compared(ours, theirs, *names)


def _head(flips: list[Flip], theirs: Shown, ours: Shown | None) -> None:
    place = next((i for i, flip in enumerate(flips) if flip.candidate_id == theirs.sample_id), None)
    if place is not None:
        with st.container(horizontal=True, vertical_alignment="center"):
            for label, index in (("Previous flip", place - 1), ("Next flip", place + 1)):
                there = 0 <= index < len(flips)
                number = flips[index].candidate_id if there else 0
                st.button(label, disabled=not there, on_click=_turn_to, args=(number,))
        st.caption(f"flip {place + 1:,} of {len(flips):,}, lost first; the address of this page is its permalink")
    direction = flips[place].direction if place is not None else "no flip"
    stages = reads_flips.coverage(theirs.stage_tokens, theirs.handed_over)
    st.html(markup.sample_head(theirs, direction, stages, compared=ours is not None))


def _turn_to(number: int) -> None:
    st.query_params["sample"] = str(number)


def _answer(name: str, shown: Shown | None) -> None:
    if shown is None:
        st.caption(f"{markdown_free(name)} has no sample of this item, stage and repeat.")
        return
    own = next((score for score in shown.scores if score[0] == shown.metric), None)
    st.html(markup.sample_answer_head(name, shown, None if own is None else own[2], own[3] if own else shown.error))
    if shown.status != "scored":
        st.caption("This sample has no score: it is an error or was skipped, and counts as unanswered.")
        show_text(shown.error_message or "")
    for number, turn in enumerate(shown.turns[:-1]):
        st.caption(f"turn {number + 1}")
        show_text(turn.answer or "")
    choices = _choices(shown.answer) if shown.scored_by == "loglikelihood" else None
    if choices is None:
        show_answer(shown.answer, shown.prompt, shown.finish)
        if space := outer_space(shown.answer):
            st.caption(f"The answer {space}.")
        for name, left in shown.filtered.items():
            space = outer_space(left)
            st.caption(f"What the filter {markdown_free(name)} left{f' ({space})' if space else ''}:")
            show_text(left)
    else:
        show_table(choices)
        st.caption("Probability of each choice among the choices, from its log-likelihood in nats; gold is right.")


def _choices(answer: str) -> pd.DataFrame | None:
    try:
        said = json.loads(answer)
        logprobs, gold = [float(value) for value in said["logprobs"]], said.get("gold")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not logprobs:
        return None
    highest = max(logprobs)
    total = sum(exp(value - highest) for value in logprobs)
    return pd.DataFrame(
        {
            "choice": frames.number_column(list(range(len(logprobs)))),
            "gold": frames.text_column(["✓" if index == gold else "" for index in range(len(logprobs))]),
            "log-likelihood, nats": frames.number_column(logprobs),
            "probability": frames.number_column([exp(value - highest) / total for value in logprobs]),
        }
    )


def _expected(store: Store, arm: ArmRecord, ours: Shown | None, theirs: Shown, names: tuple[str, str]) -> None:
    if theirs.right_answer is not None:
        st.html(markup.title("What is right", "As the task's document says it; its scorer may take other forms, too."))
        show_text(theirs.right_answer)
        return
    st.html(markup.title("What is right", "As its case file says it: argument by argument, constraint by constraint."))
    try:
        case = case_of(reads_flips.resolved(store, arm.run_id), theirs.suite, theirs.item, theirs.item_hash)
    except EvidenceError as error:
        st.caption(f"Not shown: {markdown_free(str(error), 400)}.")
        return
    shown = [(name, found) for name, found in zip(names, (ours, theirs), strict=True) if found is not None]
    rows = compared(case, theirs.filter, [found.answers for _, found in shown])
    if rows:
        show_table(frames.expected_frame(rows, [name for name, _ in shown]))
    else:
        st.caption("Nothing is verified of this prompt: its answers are only compared.")


def _compared(ours: Shown, theirs: Shown, baseline: str, candidate: str) -> None:
    found = parting(ours, theirs)
    several = max(len(ours.turns), len(theirs.turns)) > 1
    st.html(markup.title("Where the answers part", _where(found, several)))
    if found.characters is not None:
        start = max(0, found.characters - BEFORE)
        both = ("…" if start else "") + found.texts[0][start : found.characters]
        for column, name, text in zip(st.columns(2), (baseline, candidate), found.texts, strict=True):
            with column:
                st.caption(markdown_free(name))
                st.html(markup.parted(both, text[found.characters : found.characters + AFTER]))
    if found.token is not None:
        of_turn = f" of turn {found.turn + 1}" if several else ""
        title = f"Likeliest at token {found.token + 1}{of_turn}"
        st.html(markup.title(title, "Each arm's own, with probabilities to 0.0001."))
        _alternatives(found, (ours, theirs), (baseline, candidate))
    st.html(markup.title("Scores", "Every metric of this answer, under the scoring version that counts."))
    show_table(frames.score_frame(ours, theirs))
    fields = fields_of(ours.answer, theirs.answer)
    if fields:
        st.html(markup.title("Fields", "Both answers are JSON objects: their fields side by side, as text."))
        show_table(frames.field_frame(fields))


def _alternatives(found: Parting, both: tuple[Shown, Shown], names: tuple[str, str]) -> None:
    """The likeliest tokens of both arms at the first one that differs."""
    for column, name, shown, place, written in zip(st.columns(2), names, both, found.places, found.ids, strict=True):
        with column:
            likeliest = () if written is None else at(shown.alternatives, place)
            if likeliest:
                st.caption(markdown_free(name))
                show_table(frames.alternatives_frame(likeliest, written))
                if all(one.token != written for one in likeliest):
                    st.caption(f"Token id {written} was written, which is none of these.")
            elif written is None:
                st.caption(f"{markdown_free(name)}: the answer had ended.")
            else:
                st.caption(f"{markdown_free(name)}: other likely tokens were not stored.")


def _where(found: Parting, several: bool) -> str:
    if found.characters is None:
        return "Both arms gave the same text."
    token = "the tokens were not stored"
    if found.token is not None:
        ids = " against ".join("the end" if i is None else f"id {i}" for i in found.ids)
        token = f"token {found.token + 1}, {ids}"
    of_turn = f" of turn {found.turn + 1}" if several else ""
    return f"After {found.characters:,} equal characters{of_turn}: {token}."
