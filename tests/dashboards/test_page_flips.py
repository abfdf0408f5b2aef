"""The page of flips: their tables, filters, texts and flows."""

from evalsvc.store import queries
from evalsvc.store.session import open_store


def test_the_2x2_tables_add_up_to_n(run_app, database):
    table = run_app(database, "flips", candidate="int4-sym-decode").dataframe[0].value
    assert len(table) > 5
    assert (table[["both right", "lost b", "gained c", "both wrong"]].sum(axis=1) == table["n"]).all()


def test_flips_are_code_not_markup(run_app, database, markup_of):
    app = run_app(database, "flips", candidate="kv-damaged", suite="formats")
    shown = [code.value for code in app.code]
    assert any(value.startswith("<script>") for value in shown)
    assert "one⟨U+2028⟩two⟨U+202E⟩three␀four" in shown
    assert "<script>" not in markup_of(app)
    assert max(map(len, shown)) <= 4000
    assert any("first 4,000 of 200,000 characters" in caption.value for caption in app.caption)


def test_flips_are_filtered_by_direction_and_page(run_app, choose, database, markup_of):
    app = run_app(database, "flips", candidate="int4-asym")
    both = [caption.value for caption in app.caption if "shown by this choice" in caption.value]
    lost, gained = int(both[0].split()[0]), int(both[0].split()[2])
    assert lost and gained
    assert markup_of(app).index("▼ lost") < markup_of(app).find("▲ gained") or lost > 10
    app = choose(app, "Direction", "gained")
    assert any(f"{gained} shown by this choice" in caption.value for caption in app.caption)
    assert markup_of(app).count("▼ lost") == 0


def test_filters_of_an_old_link_are_named_and_those_of_an_own_choice_are_not(run_app, choose, database):
    app = run_app(database, "flips", candidate="kv-damaged", direction="up", family="gone", page="999")
    said = [warning.value.replace("\\", "").partition(". Another is shown")[0] for warning in app.warning]
    assert said == [
        'The address of this page names "up": no direction',
        'The address of this page names "gone": no choice of "Family" among these flips',
        'The address of this page names "999": no page of these flips',
    ]
    tasks = next(family for family in options_of(app, "Family") if "add" in family)
    app = choose(run_app(database, "flips", candidate="kv-damaged", suite="tasks", family=tasks), "Suite", "tools")
    assert not app.warning and tasks not in options_of(app, "Family")
    assert run_app(database, "flips", candidate="kv-damaged", suite="tools", family=tasks).warning


def options_of(app, label):
    return next(box.options for box in app.selectbox if box.label == label)


def test_three_arms_flow_side_by_side_and_two_do_not(run_app, words_of, database, hostile_database):
    app = run_app(database, "flips", candidate="kv-damaged")
    assert len(app.get("vega_lite_chart")) == 1
    flipped = set()
    with open_store(database, read_only=True) as store:
        base, *others = queries.arms(store, 1)
        for arm in others[:5]:
            flipped |= {(f["suite"], f["item"], f["through"]) for f in queries.flips(store, base, arm)}
    assert f"n {len(flipped):,} items that any arm flips" in words_of(app)
    assert not run_app(hostile_database, "flips").get("vega_lite_chart")
