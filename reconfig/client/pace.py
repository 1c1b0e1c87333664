"""How fast a run trains, and how much of its time goes by in long pauses between two steps.

An evaluation of an hour is no slow step: counted into the speed of the last steps it would make the
run look a thousand times too slow for a while, and left out of everything it would have cost
nothing. So the speed is that of the steps, and pauses are a share of the launch's time.

Invariant: no second is in both. Pure: time is an argument.
"""

from collections import deque
from statistics import median

REPORTS = 32
"""Tokens per second are averaged over this many reports."""

PAUSE_S = 60.0
PAUSE_FACTOR = 5.0
"""A pause is longer than `PAUSE_S`, and than this many usual steps."""

FEWEST = 3
"""What is usual is not known from fewer steps."""

DAY_S = 86_400.0


class Pace:
    """The pace of one launch, by its reports."""

    def __init__(self, began_s: float) -> None:
        """Begin to count the launch's time at `began_s` (monotonic seconds)."""
        self._began_s = began_s
        self._generation = 0
        self._last: tuple[float, int] | None = None
        self._steps: deque[tuple[float, int]] = deque(maxlen=REPORTS - 1)
        self._newest_s = began_s
        self._paused_s = 0.0
        self._longest_s = 0.0

    def begin(self, generation: int) -> None:
        """Forget the speed of another generation; repeats, one after each boundary, do nothing."""
        if generation == self._generation:
            return
        self._generation, self._last = generation, None
        self._steps.clear()

    def note(self, now_s: float, tokens: int) -> None:
        """Take one report: `tokens` trained so far, over all ranks, at `now_s`."""
        before, self._last, self._newest_s = self._last, (now_s, tokens), now_s
        if before is None:
            return
        took_s = now_s - before[0]
        if len(self._steps) >= FEWEST:
            usual_s = median(seconds for seconds, _ in self._steps)
            if took_s > max(PAUSE_S, PAUSE_FACTOR * usual_s):
                self._paused_s += took_s - usual_s
                self._longest_s = max(self._longest_s, took_s - usual_s)
                took_s = usual_s
        self._steps.append((took_s, tokens - before[1]))

    @property
    def tokens_per_s(self) -> float:
        """Mean over the last reports of this layout, pauses left out; 0 until there are two."""
        seconds = sum(each for each, _ in self._steps)
        return sum(tokens for _, tokens in self._steps) / seconds if seconds > 0 else 0.0

    @property
    def pause_share(self) -> float:
        """Share of the launch's time to reckon with for pauses, in [0, 1).

        As many as there were, over a day at least, for one pause of a young launch is no habit;
        but those that came again count over the time that there was.
        """
        lived_s = self._newest_s - self._began_s
        if self._paused_s <= 0 or lived_s <= 0:
            return 0.0
        once = self._paused_s / max(lived_s, DAY_S)
        again = (self._paused_s - self._longest_s) / lived_s
        return max(once, again)
