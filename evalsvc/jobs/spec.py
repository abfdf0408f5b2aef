"""A jobs file: which experiments run when, under which policy, and who is told."""

import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from evalsvc.complaints import ADDRESS_PATTERN, NAME_PATTERN
from evalsvc.filekinds import JOBS
from evalsvc.jobs.calendar import EPOCH
from evalsvc.limits import Misplaced
from evalsvc.yamlfile import read_model

Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]
Address = Annotated[str, Field(pattern=ADDRESS_PATTERN)]


def _is_variable(name: object) -> object:
    """Says nothing of what stands there: it may be the secret itself."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", name):
        raise ValueError("names an environment variable (letters, digits, _); the secret itself has no place here")
    return name


Variable = Annotated[str, BeforeValidator(_is_variable)]
Event = Literal["regressed", "invalid", "recovered", "missed", "incident", "failed"]
Seconds = Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]
ALL_EVENTS: tuple[Event, ...] = ("regressed", "invalid", "recovered", "missed", "incident", "failed")


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Told(_Frozen):
    events: Annotated[tuple[Event, ...], Field(min_length=1, strict=False)] = ALL_EVENTS


class Webhook(_Told):
    """A POST of JSON, signed as the Standard Webhooks specification says where there is a secret.

    Attributes:
        events: What is told.
        url: Where to, or
        url_env: the environment variable that holds it, for addresses that are secrets themselves.
        secret_env: Environment variable with the signing secret.
    """

    kind: Literal["webhook"]
    url: str | None = None
    url_env: Variable | None = None
    secret_env: Variable | None = None

    @model_validator(mode="after")
    def _one_address(self) -> "Webhook":
        return _with_one_address(self)


class Slack(_Told):
    """A POST of Slack's own form, which Mattermost and others take too; keys as `Webhook`."""

    kind: Literal["slack"]
    url: str | None = None
    url_env: Variable | None = None

    @model_validator(mode="after")
    def _one_address(self) -> "Slack":
        return _with_one_address(self)


class Email(_Told):
    """A message by SMTP.

    Attributes:
        events: What is told.
        host: SMTP server.
        port: Its port.
        security: `starttls`, `tls` from the first byte, or `none`.
        sender: Address that it comes from.
        to: Addresses that it goes to.
        user_env: Environment variable with the user; none does not log in.
        password_env: Environment variable with the password.
    """

    kind: Literal["email"]
    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    sender: Address
    to: Annotated[tuple[Address, ...], Field(min_length=1, strict=False)]
    user_env: Variable | None = None
    password_env: Variable | None = None

    @model_validator(mode="after")
    def _both(self) -> "Email":
        if (self.user_env is None) != (self.password_env is None):
            raise ValueError("user_env and password_env come together")
        return self


class Command(_Told):
    """A program that reads the notice as JSON on its standard input; no shell is between.

    Attributes:
        events: What is told.
        argv: The program and its arguments.
        timeout_s: Seconds after which it is ended.
    """

    kind: Literal["command"]
    argv: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    timeout_s: Seconds = 30.0


Channel = Annotated[Webhook | Slack | Email | Command, Field(discriminator="kind")]


class Job(_Frozen):
    """One job.

    Attributes:
        cron: Five fields, as Debian's cron reads them.
        time_zone: IANA name of the zone that they are in.
        experiment: Experiment file; paths start from the jobs file's folder.
        policy: Gate policy of its decisions.
        notify: Channels that are told.
        missed: What becomes of planned times that were not queued within `grace_s`: `skip` runs none of them, `once`
            the latest of all that are due, `all` each.
        grace_s: Seconds after its planned time within which an execution is on time.
        timeout_s: Seconds that one attempt may take.
        retries: Attempts after the first, where one ended without a result.
        backoff_s: Seconds before the first retry; doubled each time.
        allow_code: Run Python that task files of one's own name.
    """

    cron: str
    time_zone: str = "UTC"
    experiment: Annotated[str, Field(min_length=1)]
    policy: Annotated[str, Field(min_length=1)]
    notify: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    missed: Literal["skip", "once", "all"] = "once"
    grace_s: Seconds = 300.0
    timeout_s: Seconds = 4 * 3600.0
    retries: Annotated[int, Field(ge=0, le=100)] = 2
    backoff_s: Seconds = 60.0
    allow_code: bool = False

    @field_validator("cron")
    @classmethod
    def _readable(cls, text: str) -> str:
        if len(text.split()) != 5:
            count = len(text.split())
            fields = f"{count} field{'s' * (count != 1)}"
            raise ValueError(f"{text!r} has {fields}; cron has five: minute hour day month weekday")
        try:
            CronSim(text, EPOCH)
        except CronSimError as error:
            raise ValueError(f"{text!r}: {str(error).lower()}") from None
        return " ".join(text.split())

    @field_validator("time_zone")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # no such zone, no name of one, a folder of them
            raise ValueError(f"{name!r} is no IANA time zone, such as Europe/Berlin or UTC") from None
        return name


class JobsFile(_Frozen):
    """A jobs file.

    Attributes:
        file_kind: What such a file is called.
        unshown: Keys inside which no complaint shows a value: addresses and arguments hold secrets.
        jobs: Name to job.
        channels: Name to channel.
    """

    file_kind: ClassVar[str] = JOBS
    unshown: ClassVar[tuple[str, ...]] = ("channels",)
    jobs: Annotated[dict[Name, Job], Field(min_length=1)]
    channels: dict[Name, Channel] = {}

    def told(self, job: str, event: Event) -> list[str]:
        """Channels that hear of an event of a job."""
        return [name for name in dict.fromkeys(self.jobs[job].notify) if event in self.channels[name].events]

    @model_validator(mode="after")
    def _channels_exist(self) -> "JobsFile":
        for name, job in self.jobs.items():
            for index, channel in enumerate(job.notify):
                if channel not in self.channels:
                    known = f"which are {', '.join(self.channels)}" if self.channels else "of which there are none"
                    raise Misplaced(f"'{channel}' is none of the channels, {known}", *("jobs", name, "notify", index))
        return self


def absent_files(jobs: JobsFile, folder: Path) -> list[str]:
    """A sentence for each experiment and policy that is not there; whoever runs the job will fail over it."""
    return [
        f"job {name}: its {key} {folder / named} is not there"
        for name, job in jobs.jobs.items()
        for key, named in (("experiment", job.experiment), ("policy", job.policy))
        if not (folder / named).is_file()
    ]


def load_jobs(path: str | Path) -> JobsFile:
    """Reads a jobs file.

    Raises:
        ConfigError: One sentence with file, line and key.
    """
    return read_model(path, JobsFile)


def _with_one_address(channel):
    if (channel.url is None) == (channel.url_env is None):
        raise ValueError("give either url or url_env")
    if channel.url is not None and not channel.url.startswith(("https://", "http://")):
        raise ValueError("url begins with https:// or http://")
    if channel.url is not None and not _leads_somewhere(channel.url):
        raise ValueError("url has no host, a port that is none, or spaces in it")
    return channel


def _leads_somewhere(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        return False
