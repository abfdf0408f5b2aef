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
        ("[team]", "[teem]", "job nightly notifies 'teem', and channels are team"),
        ("kind: slack", "kind: sms", "kind"),
        ("url_env: SLACK", "url_env: 'S L'", "url_env"),
        ("url_env: SLACK", "url: ftp://x", "url begins with https://"),
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
