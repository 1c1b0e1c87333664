"""The tree of errors, grouped by what the operator does next.

WattmeshError
|-- RetryLater             an outside part did not answer: wait, nothing is lost
|   |-- SourceUnavailable    a carbon or power source
|   `-- JournalUnavailable   the database is locked, full or gone
|-- FixInput               a person or a file gave us something wrong: mend it, try again
|   |-- SettingsInvalid      the settings file; carries every mistake at once
|   `-- InputInvalid         a layout, catalogue, trace or command line
|-- NotSwitched            the job is safe and trains on, in the layout it had
|   |-- OrderVoid            late, withdrawn, fenced off, or not for this job
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


class NotSwitched(WattmeshError):
    """The job is safe and trains on in the layout it had."""


class OrderVoid(NotSwitched):
    """An order that came late, was withdrawn, or belongs to an older epoch or attempt."""


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
