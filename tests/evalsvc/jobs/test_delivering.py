"""Notices arrive at least once, and a failed delivery harms nothing but itself."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from evalsvc.errors import ConfigError
from evalsvc.jobs.channels import DeliveryError
from evalsvc.jobs.delivering import HOLD_S, deliver_one
from evalsvc.jobs.secrets import redactor, without_secrets
from evalsvc.jobs.spec import JobsFile
from evalsvc.store import outbox

JOB = {"cron": "0 0 * * *", "experiment": "e", "policy": "p"}
CHANNELS = {
    "team": {"kind": "slack", "url_env": "SLACK"},
    "hook": {"kind": "webhook", "url": "https://user:pass1@host/a/b?token=abcd", "secret_env": "KEY"},
}
ENV = {"SLACK": "https://hooks.host/services/T0/B0/secretpath", "KEY": "hunter22", "PATH": "/bin"}


@pytest.fixture
def jobs():
    return JobsFile.model_validate({"jobs": {"nightly": JOB | {"notify": list(CHANNELS)}}, "channels": CHANNELS})


@pytest.fixture
def told(store, clock):
    """One notice for the channel `team`."""
    payload = {"job": "nightly", "subject": "", "event": "failed", "text": "it failed"}
    with store.transaction() as session:
        outbox.tell(session, "msg_1", payload, ["team"], clock())


class Sender:
    """Fails as often as it is told, and remembers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.sent = list(failures), []

    def __call__(self, channel, payload, now, env) -> None:
        self.sent.append((payload["id"], env))
        if self.failures:
            raise self.failures.pop(0)


def test_a_delivery_is_tried_again_at_once_and_then_done(store, jobs, clock, told):
    sender = Sender(DeliveryError("reset"), DeliveryError("reset"))
    assert deliver_one(store, jobs, clock, ENV, sending=sender, pauses_s=0)
    (found,) = outbox.deliveries(store, "nightly")
    assert (found.status, found.message, len(sender.sent)) == ("delivered", None, 3)
    assert not deliver_one(store, jobs, clock, ENV, sending=sender), "nothing is left"


def test_a_failed_delivery_is_shown_tried_later_and_given_up_after_days(store, jobs, clock, told):
    said: list[str] = []
    sender = Sender(*[DeliveryError(f"no route to {ENV['SLACK']}", soon=False)] * 1000)
    waits, began = [], clock()
    while (found := outbox.deliveries(store, "nightly")[0]).status == "pending":
        waits.append((found.not_before - clock()).total_seconds())
        clock.at = max(clock(), found.not_before)
        assert deliver_one(store, jobs, clock, ENV, said.append, sending=sender, pauses_s=0)
    assert waits[:9] == [0, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert found.status == "given_up" and clock() - began > timedelta(days=2.9)
    assert "secretpath" not in str(found.message) + "".join(said) and "no route to ***" in str(found.message)


@pytest.mark.parametrize("failure", [ConfigError("the variable is not set"), DeliveryError("404", soon=False)])
def test_what_will_not_change_in_a_second_is_tried_once(store, jobs, clock, told, failure):
    sender = Sender(failure)
    deliver_one(store, jobs, clock, ENV, sending=sender, pauses_s=0)
    assert len(sender.sent) == 1 and outbox.deliveries(store, "nightly")[0].message == str(failure)


def test_a_kill_between_sending_and_noting_delivers_again_under_the_same_id(store, jobs, clock, told):
    class Killed(BaseException):
        pass

    sender = Sender(Killed())
    with pytest.raises(Killed):
        deliver_one(store, jobs, clock, ENV, sending=sender, pauses_s=0)
    assert not deliver_one(store, jobs, clock, ENV, sending=sender), "it may still be under way"
    clock.turn(HOLD_S)
    assert deliver_one(store, jobs, clock, ENV, sending=sender)
    assert [notice_id for notice_id, _ in sender.sent] == ["msg_1", "msg_1"]
    assert outbox.deliveries(store, "nightly")[0].status == "delivered"


def test_a_notice_found_twice_is_entered_once(store, clock, told):
    with store.transaction() as session:
        outbox.tell(session, "msg_1", {"job": "nightly", "subject": "", "event": "failed"}, ["team"], clock())
    assert len(outbox.deliveries(store, "nightly")) == 1


def test_a_channel_that_is_gone_is_said(store, clock, told):
    jobs = JobsFile.model_validate({"jobs": {"nightly": JOB}})
    deliver_one(store, jobs, clock, ENV)
    assert "no such channel" in str(outbox.deliveries(store, "nightly")[0].message)


def test_secrets_are_in_no_text_and_in_no_programs_environment(jobs):
    redact = redactor(jobs, ENV)
    text = f"{ENV['SLACK']} hunter22 hunter22%20 https://user:pass1@host/a/b?token=abcd /services/T0/B0/secretpath host"
    found = redact(text)
    assert not any(word in found for word in ("hunter22", "pass1", "abcd", "secretpath", "services"))
    assert found.endswith(" host")
    assert without_secrets(jobs, ENV) == {"PATH": "/bin"}


def test_an_address_that_cannot_be_taken_apart_ends_no_worker_and_is_hidden_whole(store, jobs, clock, told):
    env = ENV | {"SLACK": "http://[/hunter33"}
    assert "hunter33" not in redactor(jobs, env)("nothing at http://[/hunter33, nor at [/hunter33")
    assert deliver_one(store, jobs, clock, env, pauses_s=0)
    (found,) = outbox.deliveries(store, "nightly")
    assert found.status == "pending" and found.message and "hunter33" not in found.message


def test_the_databases_url_is_on_no_command_line(jobs, monkeypatch, tmp_path):
    """It may hold a password, and command lines are everybody's to read."""
    from evalsvc.cli import scheduling

    started = []
    monkeypatch.setattr(scheduling, "RunProcess", lambda arguments, env, redact: started.append((arguments, env)))
    monkeypatch.setattr(scheduling, "Worker", lambda store, jobs, name, clock, start, say, **limits: start)
    watched = SimpleNamespace(jobs=jobs, path=tmp_path / "jobs.yaml")
    start = scheduling.make_worker(None, watched, "postgresql://u:hunter2@h/d", lease_s=1, finish_s=0)
    start(jobs.jobs["nightly"], SimpleNamespace(key="k"))
    ((arguments, env),) = started
    assert "hunter2" not in " ".join(arguments) and env["EVALSVC_DB"] == "postgresql://u:hunter2@h/d"
