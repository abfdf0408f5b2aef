"""Sends one notice through one channel. Every failure is a `DeliveryError`; secrets are read here and nowhere kept."""

import base64
import binascii
import hashlib
import hmac
import json
import smtplib
import subprocess
from collections.abc import Mapping
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from evalsvc.errors import EvalsvcError
from evalsvc.jobs.secrets import read_secret
from evalsvc.jobs.spec import Channel, Command, Email, Slack, Webhook

HTTP_TIMEOUT_S = 10.0
SMTP_TIMEOUT_S = 20.0
_LONGEST_TEXT = 3000


class DeliveryError(EvalsvcError):
    """A channel did not take a notice.

    Attributes:
        soon: Whether the very same a moment later may succeed.
    """

    def __init__(self, message: str, *, soon: bool = True) -> None:
        super().__init__(message)
        self.soon = soon


def send(
    channel: Channel, payload: Mapping[str, Any], now: datetime, env: Mapping[str, str], transport: Any = None
) -> None:
    """Sends a notice.

    Args:
        channel: How.
        payload: The notice.
        now: The clock's reading, which a signature covers.
        env: Where secrets are.
        transport: Of the HTTP client, for tests.

    Raises:
        DeliveryError: It did not arrive.
        ConfigError: A secret is not set.
    """
    match channel:
        case Webhook():
            body = json.dumps(dict(payload), ensure_ascii=True, allow_nan=False).encode()
            secret = None if channel.secret_env is None else read_secret(channel.secret_env, env)
            headers = {"content-type": "application/json", **signed(secret, str(payload["id"]), now, body)}
            _post(_address(channel, env), body, headers, transport)
        case Slack():
            body = json.dumps({"text": _slack_text(payload)}).encode()
            _post(_address(channel, env), body, {"content-type": "application/json"}, transport)
        case Email():
            _mail(channel, payload, now, env)
        case Command():
            _call(channel, payload, env)


def signed(secret: str | None, notice_id: str, now: datetime, body: bytes) -> dict[str, str]:
    """Headers of the Standard Webhooks specification: HMAC-SHA256 over `id.timestamp.body`.

    A secret that begins with `whsec_` is base64 after it, any other is taken as it is.
    """
    at = str(int(now.timestamp()))
    headers = {"webhook-id": notice_id, "webhook-timestamp": at}
    if secret is None:
        return headers
    digest = hmac.new(_key(secret), b".".join((notice_id.encode(), at.encode(), body)), hashlib.sha256).digest()
    return {**headers, "webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}


def _key(secret: str) -> bytes:
    prefix = "whsec_"
    if not secret.startswith(prefix):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        raise DeliveryError("the signing secret begins with whsec_ and is not base64 after it", soon=False) from None


def _address(channel: Webhook | Slack, env: Mapping[str, str]) -> str:
    return channel.url if channel.url is not None else read_secret(channel.url_env or "", env)


def _post(url: str, body: bytes, headers: Mapping[str, str], transport: Any) -> None:
    import httpx2

    try:
        with httpx2.Client(timeout=HTTP_TIMEOUT_S, follow_redirects=False, transport=transport) as client:
            answer = client.post(url, content=body, headers=dict(headers))
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, OSError) as error:
        raise DeliveryError(f"{type(error).__name__}: {error}") from None
    if not 200 <= answer.status_code < 300:
        soon = answer.status_code == 429 or answer.status_code >= 500
        raise DeliveryError(f"answered with status {answer.status_code}", soon=soon)


def _slack_text(payload: Mapping[str, Any]) -> str:
    text = str(payload["text"])[:_LONGEST_TEXT]
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _mail(channel: Email, payload: Mapping[str, Any], now: datetime, env: Mapping[str, str]) -> None:
    message = EmailMessage()
    message["Subject"] = _line(f"evalsvc: {payload['job']}: {payload['event']} {payload['subject'].partition(':')[2]}")
    message["From"], message["To"] = channel.sender, ", ".join(channel.to)
    message["Date"] = format_datetime(now)
    message["Message-ID"] = f"<{payload['id']}@{channel.sender.partition('@')[2]}>"
    message.set_content(f"{payload['text']}\n\n{json.dumps(dict(payload), indent=2)}\n")
    login = None
    if channel.user_env is not None and channel.password_env is not None:
        login = read_secret(channel.user_env, env), read_secret(channel.password_env, env)
    kind = smtplib.SMTP_SSL if channel.security == "tls" else smtplib.SMTP
    try:
        with kind(channel.host, channel.port, timeout=SMTP_TIMEOUT_S) as server:
            if channel.security == "starttls":
                import ssl

                server.starttls(context=ssl.create_default_context())
            if login is not None:
                server.login(*login)
            server.send_message(message)
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise DeliveryError(f"{type(error).__name__}: {error}") from None


def _line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:200]


def _call(channel: Command, payload: Mapping[str, Any], env: Mapping[str, str]) -> None:
    try:
        found = subprocess.run(
            channel.argv,
            input=json.dumps(dict(payload)).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=channel.timeout_s,
            env=dict(env),
        )
    except subprocess.TimeoutExpired:
        raise DeliveryError(f"{channel.argv[0]} took longer than {channel.timeout_s:g} s") from None
    except OSError as error:
        raise DeliveryError(f"{channel.argv[0]} cannot be started ({error.strerror})", soon=False) from None
    if found.returncode:
        said = found.stderr.decode("utf-8", "replace").strip().splitlines()
        raise DeliveryError(f"{channel.argv[0]} left with {found.returncode}" + (f": {said[-1][:300]}" if said else ""))
