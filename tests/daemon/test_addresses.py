"""No address of the settings carries a password, and one that does is never shown whole."""

import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.shown_url import without_secrets
from wattmesh.controller.settings.read import parse
from wattmesh.errors import SettingsInvalid, SourceUnavailable
from wattmesh.telemetry.sources.prometheus import PrometheusSource

SECRET = "hunter2"
DATABASES = (
    f"postgresql+psycopg://u:{SECRET}@h/x",
    f"postgresql+psycopg://u%3A{SECRET}@h/x",
    f"postgresql+psycopg://u:p@{SECRET}@h/x",
    f"postgresql+psycopg://u@h/x?password={SECRET}",
    f"postgresql+psycopg://u@h/x?host=/run&PassWord={SECRET}",
    f"postgresql+psycopg://u@h/x?pass%77ord={SECRET}&connect_timeout=5",
    f"postgresql+psycopg://u@h/x?sslpassword={SECRET}",
    f"postgres://u:{SECRET}@h/x",
    f"mysql://h/x?password={SECRET}",
)


def mistakes(text: str) -> str:
    """Give what the check of settings says; "" where it finds no mistake."""
    try:
        parse(text, where=Path("/etc/wattmesh/wattmesh.toml"))
    except SettingsInvalid as error:
        return str(error)
    return ""


@pytest.mark.parametrize("url", DATABASES)
def test_a_database_s_password_is_refused_and_not_shown(url: str) -> None:
    """As libpq's option, percent-encoded, or with a typing mistake in the scheme."""
    said = mistakes(f'[journal]\nurl = "{url}"\n')
    assert "journal.url" in said
    assert SECRET not in said
    assert SECRET not in without_secrets(url)
    if url.startswith("postgresql"):
        assert SECRET not in Database(url).name


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://wattmesh@db-1:5432/wattmesh?sslmode=verify-full&passfile=/etc/pass",
        "postgresql+psycopg://wattmesh@/x?host=%2Frun%2Fpostgresql&application_name=a:b@c",
        "sqlite:////var/lib/watt@mesh/journal.db",
    ],
)
def test_an_address_without_one_is_shown_whole(url: str) -> None:
    """A file that holds one, a socket's folder, a sign in a path: no secret, and no mistake."""
    assert mistakes(f'[journal]\nurl = "{url}"\n') == ""
    assert without_secrets(url) == url


PLACES = {
    "power.prometheus.url": '[power.prometheus]\nexporter = "dcgm"\nurl = "{url}"\n',
    "agent.controller": '[agent]\ntoken_file = "/nowhere"\ncontroller = "{url}"\n',
    "carbon.exogenous[0].base_url": '[[carbon.exogenous]]\nprovider = "entsoe"\nzone = "DE"\n'
    'token_file = "/nowhere"\nbase_url = "{url}"\n[carbon.accounting]\nprovider = "neso"\n'
    'zone = "GB"\n',
}


@pytest.mark.parametrize("key", PLACES)
@pytest.mark.parametrize("host", ["h", "h:99999", "h h"])
def test_a_user_in_a_web_address_is_refused_and_not_shown(key: str, host: str) -> None:
    """Whatever else is wrong with the address."""
    said = mistakes(PLACES[key].format(url=f"https://bob:{SECRET}@{host}"))
    assert f"{key} " in said
    assert SECRET not in said


class _Guarded(BaseHTTPRequestHandler):
    """A Prometheus behind basic authentication."""

    def do_GET(self) -> None:
        """Answer who has the password, and refuse everybody else."""
        right = "Basic " + b64encode(f"bob:{SECRET}".encode()).decode()
        self.send_response(200 if self.headers.get("Authorization") == right else 401)
        self.end_headers()
        answer = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
        self.wfile.write(answer if self.headers.get("Authorization") == right else b"no")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def guarded() -> Iterator[str]:
    """Serve it; give its address."""
    with HTTPServer(("127.0.0.1", 0), _Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("password", [SECRET, "wrong"])
def test_the_password_of_a_prometheus_lies_in_netrc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    """Where the refusal says to put it; a wrong one is not let in."""
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login bob password {password}\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    with guarded() as url:
        source = PrometheusSource(url, "dcgm", every_s=0.0)
        try:
            said = ""
            for _ in range(100):
                with pytest.raises(SourceUnavailable) as raised:
                    source.read()
                said = str(raised.value)
                if "has not answered yet" not in said:
                    break
        finally:
            source.close()
    assert ("has no live series" in said) is (password == SECRET), said
    assert ("no JSON" in said) is (password != SECRET), said
