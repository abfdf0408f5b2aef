"""Secrets of channels: read from the environment by name when they are used, and kept out of every text."""

import os
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, urlsplit

from evalsvc.errors import ConfigError
from evalsvc.jobs.spec import JobsFile

_HIDDEN = "***"
_SHORTEST = 4  # shorter ones would turn every text into stars; a secret of this length is none


def secret_names(jobs: JobsFile) -> set[str]:
    """Environment variables that channels name."""
    fields = ("url_env", "secret_env", "user_env", "password_env")
    found = {getattr(channel, field, None) for channel in jobs.channels.values() for field in fields}
    return {name for name in found if name is not None}


def read_secret(name: str, env: Mapping[str, str] | None = None) -> str:
    """A secret.

    Raises:
        ConfigError: The variable is not set, or empty.
    """
    value = (os.environ if env is None else env).get(name, "")
    if not value:
        raise ConfigError(f"the environment variable {name} is not set; set it where the worker runs")
    return value


def without_secrets(jobs: JobsFile, env: Mapping[str, str]) -> dict[str, str]:
    """An environment for programs that need none of them."""
    names = secret_names(jobs)
    return {name: value for name, value in env.items() if name not in names}


def redactor(jobs: JobsFile, env: Mapping[str, str]):
    """A function that blots out every secret, and all but the host of every address, in a text."""
    hidden = {env[name] for name in secret_names(jobs) if env.get(name)}
    addresses = {url for channel in jobs.channels.values() if (url := getattr(channel, "url", None))}
    for address in (*addresses, *(value for value in hidden if "://" in value)):
        hidden |= {address, *_parts(address)}
    return lambda text: _redact(text, hidden)


def _parts(address: str) -> set[str]:
    """All but the host of an address; of one that cannot be taken apart, what stands after its scheme."""
    try:
        parts = urlsplit(address)
        path = parts.path if len(parts.path) > 1 else ""
        return {parts.query, parts.password or "", parts.username or "", path}
    except ValueError:
        return {address.partition("://")[2]}


def _redact(text: str, hidden: Iterable[str]) -> str:
    forms = {form for secret in hidden for form in (secret, secret.strip(), quote(secret, safe=""), quote_plus(secret))}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= _SHORTEST:
            text = text.replace(form, _HIDDEN)
    return text
