"""The journal's address from the settings, with the password from a file of its own."""

from sqlalchemy import make_url

from wattmesh.controller.settings.model import Settings
from wattmesh.controller.settings.secrets import read_secret


def journal_url(settings: Settings) -> str:
    """Give the database's full URL, with the password from its file."""
    secret = settings.journal.password_file
    if secret is None:
        return settings.journal.url
    password = read_secret("journal.password_file", secret)
    url = make_url(settings.journal.url).set(password=password)
    return url.render_as_string(hide_password=False)
