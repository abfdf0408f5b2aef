"""Where the cache is."""

from pathlib import Path

import platformdirs

from evalsvc.paths import cache_dir


def test_the_cache_is_the_users_unless_named(monkeypatch):
    monkeypatch.delenv("EVALSVC_CACHE", raising=False)
    assert cache_dir() == platformdirs.user_cache_path("evalsvc")
    monkeypatch.setenv("EVALSVC_CACHE", "")
    assert cache_dir() == platformdirs.user_cache_path("evalsvc")


def test_a_named_cache_may_begin_with_a_tilde(monkeypatch):
    monkeypatch.setenv("EVALSVC_CACHE", "~/models here")
    assert cache_dir() == Path.home() / "models here"
