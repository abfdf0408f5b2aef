"""Who may look at the pages, and that half a configuration lets nobody in."""

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from evalsvc.dashboards import visitors
from evalsvc.dashboards.launch import APP
from evalsvc.dashboards.visitors import why_not

AUTH = {"client_id": "c", "client_secret": "s", "cookie_secret": "k", "redirect_uri": "u", "server_metadata_url": "m"}
LISTED = ["ada@example.org", "@Reviewers.example.org"]


@pytest.fixture
def visit(monkeypatch, database, markup_of):
    monkeypatch.setattr("sys.argv", ["app.py", "--db", str(database)])
    monkeypatch.setattr(visitors, "find_spec", lambda name: object())

    def call(secrets, user=None):
        app = AppTest.from_file(str(APP), default_timeout=60)
        app.secrets |= secrets
        if user is not None:
            app.user = user
        app.run()
        assert not app.exception
        assert not (app.error and "<h1>" in markup_of(app))
        return app

    return call


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"email": "ada@example.org"}, ""),
        ({"email": "ADA@Example.org", "email_verified": True}, ""),
        ({"email": "bob@reviewers.example.org"}, ""),
        ({"email": "bob@example.org"}, "bob@example.org is not among"),
        ({"email": "bob@evil.reviewers.example.org"}, "is not among"),
        ({"email": "x@evil.org@reviewers.example.org"}, "named no e-mail"),
        ({"email": "ada@example.org", "email_verified": False}, "has not verified"),
        ({}, "named no e-mail"),
        ({"email": ["ada@example.org"]}, "named no e-mail"),
    ],
)
def test_only_listed_and_verified_addresses_may_look(claims, reason):
    found = why_not(claims, LISTED)
    assert found.startswith(reason) if not reason else reason in found
    assert bool(found) == bool(reason)


def test_a_visitor_logs_in_before_anything_is_read(visit, markup_of):
    app = visit({"auth": AUTH, "evalsvc": {"visitors": LISTED}})
    assert [button.label for button in app.button] == ["Log in"]
    assert "<h1>" not in markup_of(app) and not app.selectbox


def test_a_listed_visitor_sees_the_pages_and_another_one_nothing(visit, markup_of):
    secrets = {"auth": AUTH, "evalsvc": {"visitors": LISTED}}
    app = visit(secrets, {"is_logged_in": True, "email": "ada@example.org"})
    assert "<h1>Verdict</h1>" in markup_of(app)
    assert any(button.label.startswith("Log out") for button in app.button)
    app = visit(secrets, {"is_logged_in": True, "email": "*eve*@example.org"})
    assert "<h1>" not in markup_of(app) and not app.selectbox
    assert "\\*eve\\*\\@\u2060example\\.org is not among the visitors" in app.error[0].value


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ({"auth": AUTH}, "no list `visitors`"),
        ({"auth": AUTH, "evalsvc": {"visitors": "@example.org"}}, "no list `visitors`"),
        ({"auth": AUTH, "evalsvc": {"visitors": []}}, "no list `visitors`"),
        ({"evalsvc": {"visitors": LISTED}}, "no `[auth]`"),
    ],
)
def test_half_a_configuration_lets_nobody_in(visit, secrets, said):
    app = visit(secrets)
    assert said in app.error[0].value and not app.selectbox


def test_a_login_without_its_package_says_which(visit, monkeypatch):
    monkeypatch.setattr(visitors, "find_spec", lambda name: None)
    app = visit({"auth": AUTH, "evalsvc": {"visitors": LISTED}})
    assert "pip install 'evalsvc[login]'" in app.error[0].value


def test_a_secrets_file_that_cannot_be_read_lets_nobody_in(monkeypatch, tmp_path):
    path = tmp_path / "secrets.toml"
    path.write_text("[auth\n")
    monkeypatch.setattr(st.secrets, "load_if_toml_exists", lambda: False)
    monkeypatch.setattr(visitors.config, "get_option", lambda name: [str(path)])
    assert "cannot be read" in visitors._configured()[1]
    path.unlink()
    assert visitors._configured() == (None, "")
