"""A jobs file is refused with file, line and key."""

import pytest

from evalsvc.errors import ConfigError
from evalsvc.jobs.spec import load_jobs

GOOD = """\
jobs:
  nightly:
    cron: "0 2 * * *"
    time_zone: Europe/Berlin
    experiment: e.yaml
    policy: p.yaml
    notify: [team]
channels:
  team: {kind: slack, url_env: SLACK}
"""


@pytest.fixture
def read(tmp_path):
    def call(text):
        path = tmp_path / "jobs.yaml"
        path.write_text(text)
        return load_jobs(path)

    return call


def test_a_job_without_zone_is_in_utc_and_misses_nothing(read):
    job = read(GOOD.replace("    time_zone: Europe/Berlin\n", "")).jobs["nightly"]
    assert (job.time_zone, job.missed, job.retries) == ("UTC", "once", 2)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"0 2 * * *"', '"0 25 * * *"', ":3: 'jobs.nightly.cron': '0 25 * * *': bad hour"),
        ('"0 2 * * *"', '"0 2 * *"', "has 4 fields; cron has five"),
        ('"0 2 * * *"', '"* * * * * *"', "has 6 fields"),
        ('"0 2 * * *"', '"0 0 30 2 *"', "bad day-of-month"),
        ("Europe/Berlin", "Europe/Berlinn", ":4: 'jobs.nightly.time_zone': 'Europe/Berlinn' is no IANA time zone"),
        ("Europe/Berlin", "../etc/passwd", "is no IANA time zone"),
        ("Europe/Berlin", "Europe", "is no IANA time zone"),
        ("Europe/Berlin", '""', "is no IANA time zone"),
        ("    policy: p.yaml\n", "", "policy"),
        ("experiment:", "experimnt:", "unknown key 'jobs.nightly.experimnt'; did you mean 'experiment'?"),
        ("[team]", "[teem]", ":7: 'jobs.nightly.notify.0': 'teem' is none of the channels, which are team"),
        ("kind: slack", "kind: sms", "kind"),
        ("url_env: SLACK", "url_env: 'S L'", "url_env"),
        ("url_env: SLACK", "url: ftp://x", "url begins with https://"),
        *(
            ("url_env: SLACK", f"url: '{url}'", "url has no host")
            for url in ("https://", "http://h:99999/x", "https://h /x")
        ),
        ("kind: slack", "kind: slak", "'channels.team': kind is not known; did you mean 'slack'?"),
        ("kind: slack, ", "", "key 'channels.team.kind' is missing"),
        ('"0 2 * * *"', '"@daily"', "'@daily' has 1 field; cron has five"),
        ("[team]", "team", "'jobs.nightly.notify': wants a list, not 'team'; write [team]"),
        ("url_env: SLACK", "url_env: A, url: http://x", "give either url or url_env"),
        ("url_env: SLACK", "url_env: A, token: hunter2", "token"),
        ("    notify:", "    timeout_s: .inf\n    notify:", "timeout_s"),
        ("    notify:", "    missed: sometimes\n    notify:", "missed"),
    ],
)
def test_a_mistake_is_one_sentence(read, old, new, says):
    assert old in GOOD
    with pytest.raises(ConfigError) as refused:
        read(GOOD.replace(old, new))
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "channel",
    [
        "{kind: slak, url: 'https://h/hunter2'}",
        "{kind: 'https://h/hunter2'}",
        "{'https://h/hunter2': slack}",
        "{kind: slack, 'https://h/hunter2': 1, 'https://h/hunter2': 2}",
        "{url: 'https://h/hunter2'}",
        "{kind: slack, url: ['https://h/hunter2']}",
        "{kind: slack, url: 'ftp://h/hunter2'}",
        "{kind: slack, url: 'https://h:99999/hunter2'}",
        "{kind: slack, url_env: 'https://h/hunter2'}",
        "{kind: webhook, url: 'https://h', secret_env: hunter2-}",
        "{kind: webhook, url: 'https://h', secret: hunter2}",
        "{kind: email, host: h, sender: hunter2, to: [a@b]}",
        "{kind: email, host: h, sender: a@b, to: [a@b], user_env: U, password_env: hunter2-}",
        "{kind: command, argv: ./tell.sh --token hunter2}",
        "{kind: command, argv: [./tell.sh], timeout_s: hunter2}",
        "hunter2",
    ],
)
def test_a_complaint_about_a_channel_shows_no_value(read, channel):
    """An address, an argument or what was written in place of a variable's name may be the secret itself."""
    with pytest.raises(ConfigError) as refused:
        read(GOOD.replace("{kind: slack, url_env: SLACK}", channel))
    assert "hunter2" not in str(refused.value) and "jobs.yaml:9: " in str(refused.value)


@pytest.mark.parametrize(
    ("channels", "says"),
    [
        ("'https://h/secret': {kind: slack, url_env: S}", ":9: 'channels.(not shown)': wants a name that begins with"),
        ("team: {kind: command, argv: [x, 12_34]}", ":9: 'channels.team.argv.1': a number is another to YAML; write"),
        ("<<: {team: {kind: command, argv: [12_34]}}", ":9: 'channels.team.argv.0': a number is another to YAML"),
        ("12: {kind: slack, url_env: S}", ":9: key 'channels.12' is no text; put it in quotes"),
    ],
)
def test_neither_is_what_stands_where_a_name_belongs_nor_a_number_of_yaml_shown(read, channels, says):
    with pytest.raises(ConfigError) as refused:
        read(GOOD.replace("team: {kind: slack, url_env: SLACK}", channels))
    assert f"jobs.yaml{says}" in str(refused.value)
    assert not any(value in str(refused.value) for value in ("secret", "12_34", "1234"))


def test_an_unknown_key_names_those_of_its_own_kind_of_channel(read):
    with pytest.raises(ConfigError, match=r"unknown key 'channels\.team\.frob'; known: events, kind, host, port"):
        read(GOOD.replace("{kind: slack, url_env: SLACK}", "{kind: email, host: h, sender: a@b, to: [a@b], frob: 1}"))


def test_no_job_is_no_jobs_file(read):
    with pytest.raises(ConfigError, match=r"jobs.yaml:1: 'jobs': holds 0 entries and needs at least 1$"):
        read("jobs: {}\n")
