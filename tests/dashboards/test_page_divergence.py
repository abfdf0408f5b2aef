"""The page of next-token distributions."""


def test_divergence_shows_quantiles_by_stage_and_place_and_says_which_were_not_stored(run_app, words_of, database):
    app = run_app(database, "divergence", candidate="int4-asym")
    whole, along = (found.value for found in app.dataframe)
    row = whole[(whole["arm"] == "int4-asym") & (whole["where"] == "fixed text, decode")].iloc[0]
    assert row["99 %"] == row["99.9 %"] == row["largest"] > row["median"] > 0
    assert (row["same top 1, %"], row["tokens n"]) == (50, 400)
    assert along["tokens"].tolist() == 2 * ["1-8", "9-16", "17-32", "33-64"]
    assert along["tokens n"].tolist() == 2 * [80, 80, 160, 80]
    assert len(app.get("vega_lite_chart")) == 3 and "An empty quantile was not stored" in words_of(app)
    assert "No places are stored" in words_of(run_app(database, "divergence", candidate="kv-damaged"))


def test_divergence_is_against_the_runs_own_baseline(run_app, words_of, markup_of, history_database):
    """Whatever the gate compared with; of that baseline itself nothing is missing."""
    app = run_app(history_database, "divergence", candidate="bf16")
    assert "baseline <b>15:bf16</b>" in markup_of(app)
    assert "This arm is the run's own baseline" in words_of(app) and "No places are stored" not in words_of(app)
