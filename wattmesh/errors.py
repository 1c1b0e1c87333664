"""The tree of errors, grouped by what the operator does next.

WattmeshError
|-- RetryLater             an outside part did not answer: wait, nothing is lost
|   |-- SourceUnavailable    a carbon or power source
|   |   |-- Transient          it failed, hung or answered nonsense: ask again at the next poll
|   |   |-- RateLimited        it was asked too often: wait as long as it says
|   |   `-- NoData             it has no value for that time (yet)
|   `-- JournalUnavailable   the database is locked, full or gone
|-- FixInput               a person or a file gave us something wrong: mend it, try again
|   |-- SettingsInvalid      the settings file; carries every mistake at once
|   |-- InputInvalid         a layout, catalogue, trace or command line
|   `-- SourceRefused        a carbon provider answers, and not what we may use
|       |-- AuthFailed         key or password are wrong
|       |-- NotEntitled        the plan of this key does not cover what was asked
|       |-- UnknownZone        the provider has no such zone
|       |-- ZoneMismatch       it answered for another zone than the one asked for
|       `-- SandboxData        it answered with invented values
|-- NotSwitched            the job is safe and trains on, in the layout it had
|   `-- SwitchFailed         tried, and rolled back
|-- Diverged               ranks no longer train one run: the launcher starts the job again from
|                          the last verified checkpoint; look at the rank that the message names
|-- Refused                the caller may not do this (owner, token)
|   `-- Fenced               a newer attempt or epoch exists: stop, do not publish
`-- CallHuman              stop and look before anything else acts
    `-- CheckpointDamaged    bytes differ from the digests taken when they were written

A message says what happened with the numbers, and what to do next.
"""

from collections.abc import Sequence


class WattmeshError(Exception):
    """Root of every error that wattmesh raises on purpose."""


class RetryLater(WattmeshError):
    """An outside part did not answer; waiting is enough."""


class SourceUnavailable(RetryLater):
    """A carbon or power source failed to answer in time or answered nonsense."""


class Transient(SourceUnavailable):
    """A provider failed, hung or answered nonsense; the next poll asks again."""


class RateLimited(SourceUnavailable):
    """A provider was asked too often. `retry_after_s`: as it says; None: it does not."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        """Keep how long to wait."""
        self.retry_after_s = retry_after_s
        super().__init__(message)


class NoData(SourceUnavailable):
    """A provider has no value for the time asked for, or not yet."""


class JournalUnavailable(RetryLater):
    """The database is locked, full or gone; nothing acknowledged is lost."""


class FixInput(WattmeshError):
    """A person or a file gave us something wrong."""


class SettingsInvalid(FixInput):
    """The settings file has mistakes; all of them are listed, each with its key path."""

    def __init__(self, where: str, mistakes: Sequence[tuple[str, str]]) -> None:
        """Keep `mistakes` as (key path, what is allowed) pairs for the screen."""
        self.where = where
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        width = max((len(key) for key, _ in self.mistakes), default=0)
        lines = [f"settings {where} has {count} mistake{'s' if count != 1 else ''}"]
        lines += [f"  {key:<{width}}    {text}" for key, text in self.mistakes]
        super().__init__("\n".join(lines))


class InputInvalid(FixInput):
    """A layout, catalogue, trace or command line that cannot be used as it is."""


class SourceRefused(FixInput):
    """A carbon provider answers, and will answer the same until a person mends something."""


class AuthFailed(SourceRefused):
    """Key, user or password are wrong."""


class NotEntitled(SourceRefused):
    """The plan behind this key does not cover the zone or the endpoint."""


class UnknownZone(SourceRefused):
    """The provider has no such zone."""


class ZoneMismatch(SourceRefused):
    """The provider answered for another zone than the one asked for."""


class SandboxData(SourceRefused):
    """The provider answered with invented values, as it does for sandbox keys."""


class NotSwitched(WattmeshError):
    """The job is safe and trains on in the layout it had."""


class SwitchFailed(NotSwitched):
    """A switch was tried, did not verify, and was rolled back."""


class Diverged(WattmeshError):
    """What was trained since the last checkpoint is not one run; it is given up, not saved."""


class Refused(WattmeshError):
    """The caller may not do this."""


class Fenced(Refused):
    """A newer attempt or epoch exists; whoever holds the older one must stop."""


class CallHuman(WattmeshError):
    """Something only a person should decide about; nothing acts until then."""


class CheckpointDamaged(CallHuman):
    """Bytes on disk differ from the digests taken when they were written."""
