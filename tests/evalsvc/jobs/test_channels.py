"""What channels send, what they refuse, and that no secret is in it."""

import base64
import hashlib
import hmac
import json
import smtplib
import socketserver
import sys
import threading
from datetime import UTC, datetime

import httpx2
import pytest

from evalsvc.errors import ConfigError
from evalsvc.jobs.channels import DeliveryError, send
from evalsvc.jobs.spec import Command, Email, Slack, Webhook

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
PAYLOAD = {
    "schema": "evalsvc.notice/1",
    "id": "msg_1",
    "event": "regressed",
    "job": "nightly",
    "subject": "arm:fp8",
    "text": "nightly: fp8 REGRESSED <!channel> & more\u2028",
}


@pytest.fixture
def sent():
    """Requests that were made, and a transport that answers with a status."""

    class Taken(list):
        def transport(self, status=204):
            def answer(request):
                self.append(request)
                return httpx2.Response(status)

            return httpx2.MockTransport(answer)

    return Taken()


@pytest.mark.parametrize("secret", ["a plain secret", "whsec_" + base64.b64encode(b"0123456789").decode()])
def test_a_webhook_is_signed_so_that_its_receiver_can_tell(sent, secret):
    channel = Webhook(kind="webhook", url="https://host/hook", secret_env="KEY")
    send(channel, PAYLOAD, NOW, {"KEY": secret}, sent.transport())
    (request,) = sent
    key = b"0123456789" if secret.startswith("whsec_") else secret.encode()
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.content
    right = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{right}"
    assert request.headers["webhook-id"] == "msg_1" and json.loads(request.content) == PAYLOAD
    assert request.headers["webhook-timestamp"] == str(int(NOW.timestamp()))
    assert secret not in str(request.headers) + request.content.decode()


def test_slack_gets_text_that_mentions_nobody(sent):
    send(Slack(kind="slack", url_env="URL"), PAYLOAD, NOW, {"URL": "https://hooks/T/x"}, sent.transport())
    assert json.loads(sent[0].content)["text"].startswith("nightly: fp8 REGRESSED &lt;!channel&gt; &amp; more")


@pytest.mark.parametrize(("status", "soon"), [(500, True), (429, True), (404, False), (302, False)])
def test_another_answer_than_success_is_a_failure(sent, status, soon):
    with pytest.raises(DeliveryError, match=str(status)) as failed:
        send(Slack(kind="slack", url="https://host/x"), PAYLOAD, NOW, {}, sent.transport(status))
    assert failed.value.soon is soon and len(sent) == 1, "redirects are not followed"


@pytest.mark.parametrize("url", ["https://host:99999/", "http://[/", "http://127.0.0.1:1/x"])
def test_an_address_that_leads_nowhere_is_a_failure(url):
    with pytest.raises(DeliveryError):
        send(Slack(kind="slack", url_env="URL"), PAYLOAD, NOW, {"URL": url})


def test_a_secret_that_is_not_set_is_named(sent):
    with pytest.raises(ConfigError, match="variable KEY is not set"):
        send(Webhook(kind="webhook", url="https://h", secret_env="KEY"), PAYLOAD, NOW, {}, sent.transport())


def test_a_command_reads_the_notice_and_its_failure_is_told(tmp_path):
    out = tmp_path / "out"
    code = "import sys,os; open(sys.argv[1],'w').write(sys.stdin.read()); print('bad', file=sys.stderr); sys.exit(3)"
    channel = Command(kind="command", argv=(sys.executable, "-c", code, str(out)))
    with pytest.raises(DeliveryError, match="left with 3: bad"):
        send(channel, PAYLOAD, NOW, {})
    assert json.loads(out.read_text()) == PAYLOAD
    with pytest.raises(DeliveryError, match="cannot be started"):
        send(Command(kind="command", argv=("/no/such",)), PAYLOAD, NOW, {})
    slow = Command(kind="command", argv=(sys.executable, "-c", "import time; time.sleep(9)"), timeout_s=0.2)
    with pytest.raises(DeliveryError, match=r"longer than 0\.2 s"):
        send(slow, PAYLOAD, NOW, {})


@pytest.fixture
def smtp_server():
    """A server that takes one message; `.said` is what it heard."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(b"220 hello\r\n")
            body = False
            for line in self.rfile:
                said.append(line)
                if body:
                    if line == b".\r\n":
                        body = False
                        self.wfile.write(b"250 taken\r\n")
                elif line.upper().startswith(b"DATA"):
                    body = True
                    self.wfile.write(b"354 go\r\n")
                elif line.startswith(b"QUIT"):
                    self.wfile.write(b"221 bye\r\n")
                    return
                else:
                    self.wfile.write(b"250 ok\r\n")

    said: list[bytes] = []
    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1], said
        server.shutdown()


def test_a_mail_has_an_id_to_know_it_by_and_no_header_of_a_strangers(smtp_server):
    port, said = smtp_server
    channel = Email(kind="email", host="127.0.0.1", port=port, security="none", sender="a@b", to=("c@d", "e@f"))
    send(channel, {**PAYLOAD, "subject": "arm:x\r\nBcc: evil@host"}, NOW, {})
    text = b"".join(said).decode()
    assert "Message-ID: <msg_1@b>" in text and "RCPT TO:<e@f>" in text.replace("rcpt", "RCPT")
    assert not any(line.startswith(b"Bcc") for line in said)


def test_a_mail_server_without_tls_is_not_told_the_password(smtp_server):
    port, said = smtp_server
    keys = {"user_env": "U", "password_env": "P"}
    channel = Email(kind="email", host="127.0.0.1", port=port, sender="a@b", to=("c@d",), **keys)
    with pytest.raises(DeliveryError, match="STARTTLS"):
        send(channel, PAYLOAD, NOW, {"U": "me", "P": "hunter22"})
    assert b"hunter22" not in b"".join(said)
    assert issubclass(smtplib.SMTPNotSupportedError, smtplib.SMTPException)
