"""Page 3: the answers behind the numbers. Whatever a model wrote is shown as text, never as markup."""

from collections.abc import Sequence

import streamlit as st

from evalsvc.dashboards import charts_flows, frames, markup, reads_flips
from evalsvc.dashboards.caching import kept
from evalsvc.dashboards.links import go
from evalsvc.dashboards.reads import Candidate, RunView
from evalsvc.dashboards.reads_flips import Flip
from evalsvc.dashboards.selection import not_there, pick_text
from evalsvc.dashboards.show import no_candidate, show_answer, show_table
from evalsvc.store.session import Store

PER_PAGE = 10
FILTER_PIXELS = 160
MOST_ARMS = 6  # side by side
ALL = "all"
_DIRECTIONS = [ALL, "lost", "gained"]


def show(store: Store, view: RunView) -> None:
    """2x2 tables, filters, then the flips of the chosen candidate, lost first, ten a page."""
    st.html(markup.header(view, "Flips"))
    chosen = view.chosen
    if chosen is None:
        return no_candidate()
    st.html(markup.candidate_head(chosen))
    found = flips_of(store, view, chosen)
    if chosen.rows:
        with st.expander("Right and wrong in both arms, task by task, with the exact p"):
            show_table(frames.two_by_two(chosen.rows), frames.two_by_two_columns())
            st.caption("Items scored in both arms. p: one-sided, of no drop, before Holm, as the gate computed it.")
    else:
        st.info("No gate has decided this candidate: flips are shown, their 2x2 tables and p come with a decision.")
    _flows(store, view)
    selected = _filtered(found)
    lost = sum(flip.direction == "lost" for flip in selected)
    counted = {(row.suite, row.family, row.through) for row in chosen.rows if row.counted and not row.blind}
    beside = sum((flip.suite, flip.family, flip.through) not in counted for flip in selected)
    uncounted = f" ({beside} of them in rows that the verdict does not count)" if beside and chosen.rows else ""
    st.caption(f"{lost} lost, {len(selected) - lost} gained{uncounted}; {len(selected)} shown by this choice")
    if not selected:
        st.info("No item flipped in this choice. Choose `all` above, or another candidate at the left.")
        return
    shown = _page(selected)
    texts = reads_flips.texts(store, [i for flip in shown for i in (flip.baseline_id, flip.candidate_id)])
    for flip in shown:
        _show_flip(flip, texts, view.named(view.baseline), view.named(chosen.arm))


def _flows(store: Store, view: RunView) -> None:
    """The same items in every arm: drawn of three and more arms, of the first arms where they are many."""
    shown = view.candidates[: MOST_ARMS - 1]
    if len(shown) < 2:
        return
    with st.expander(f"Which items flip in which arm: {len(shown) + 1} arms side by side"):
        flips = {
            frames.cell(view.named(candidate.arm)): {
                (flip.suite, flip.family, flip.item, flip.through, flip.repeat): flip.direction == "lost"
                for flip in flips_of(store, view, candidate)
            }
            for candidate in shown
        }
        columns, paths = charts_flows.states(frames.cell(view.named(view.baseline)), flips)
        if not paths:
            st.caption("No item flips in any of these arms.")
            return
        st.altair_chart(charts_flows.flows(columns, paths))
        left_out = len(view.candidates) - len(shown)
        more = f" {left_out} more arms are not drawn." if left_out else ""
        st.caption(f"n {sum(paths.values()):,} items that any arm flips; a band's width is their number.{more}")


def flips_of(store: Store, view: RunView, chosen: Candidate) -> list[Flip]:
    """The flips of the chosen candidate, kept while nothing of them can change."""
    arms = (view.baseline, chosen.arm)
    return kept(store, arms, "flips", lambda: reads_flips.flips(store, view.baseline, chosen.arm))


def _filtered(found: Sequence[Flip]) -> list[Flip]:
    chosen, lost = list(found), not_there("direction", _DIRECTIONS, "direction")
    with st.container(horizontal=True):  # two side by side on a phone
        direction = pick_text("Direction", "direction", _DIRECTIONS, width=FILTER_PIXELS)
        chosen = [flip for flip in chosen if direction in (ALL, flip.direction)]
        for label, key, field in (
            ("Suite", "suite", "suite"),
            ("Family", "family", "family"),
            ("Error class", "error", "wrong_error"),
            ("Computed by", "stages", "stages"),
        ):
            values = [ALL, *sorted({getattr(flip, field) for flip in chosen})]
            lost += not_there(key, values, f'choice of "{label}" among these flips')
            wanted = pick_text(label, key, values, lambda value: value or "(none given)", width=FILTER_PIXELS)
            chosen = [flip for flip in chosen if wanted in (ALL, getattr(flip, field))]
    for sentence in lost:
        st.warning(sentence)
    return chosen


def _page(flips: Sequence[Flip]) -> Sequence[Flip]:
    pages = [str(n) for n in range(1, -(-len(flips) // PER_PAGE) + 1)]
    for sentence in not_there("page", pages, "page of these flips"):
        st.warning(sentence)
    if len(pages) == 1:
        st.query_params.pop("page", None)
        return flips
    page = int(pick_text("Page", "page", pages, lambda n: f"{n} of {len(pages)}"))
    return flips[(page - 1) * PER_PAGE : page * PER_PAGE]


def _show_flip(flip: Flip, texts: dict[int, tuple[str, str, str | None]], baseline: str, candidate: str) -> None:
    sides = (
        (baseline, flip.baseline_id, flip.baseline_value, flip.baseline_error),
        (candidate, flip.candidate_id, flip.candidate_value, flip.candidate_error),
    )
    right = max(flip.baseline_value, flip.candidate_value)
    with st.container(border=True):
        st.html(markup.flip_head(flip))
        for column, (name, number, value, error) in zip(st.columns(2), sides, strict=True):
            prompt, answer, finish = texts[number]
            with column:
                st.html(markup.answer_head(name, right=value == right, finish=finish, error=error))
                show_answer(answer, prompt, finish)
        go("sample", "Open this sample", sample=flip.candidate_id)
