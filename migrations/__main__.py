"""`python -m wattmesh.migrations URL`: upgrade one journal, then say where it stands."""

import signal
import sys

from sqlalchemy.exc import SQLAlchemyError

from wattmesh.migrations.upgrade import current, upgrade


def main() -> int:
    """Upgrade the database whose URL is the only argument."""
    # A daemon that starts us keeps its own signals for later; ours are to end us.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if len(sys.argv) != 2:
        print("usage: python -m wattmesh.migrations URL", file=sys.stderr)
        return 2
    try:
        upgrade(sys.argv[1])
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        print(f"wattmesh: the journal could not be upgraded: {cause}", file=sys.stderr)
        return 1
    print(current(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
