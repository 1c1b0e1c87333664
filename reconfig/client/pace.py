"""Measures how fast a run trains, and which share of its time goes to long pauses between steps.

An evaluation of an hour is not a slow step. Counted into the speed of the last steps, it would make
the run look a thousand times too slow for a while; ignored, its time would be missing. So the speed
counts steps only, and pauses are reported as a share of the launch's time.

Invariant: no second counts in both. Pure: time is an argument.
"""

from collections import deque
from statistics import median

REPORTS = 32
"""Tokens per second are averaged over the steps between this many reports."""

PAUSE_S = 60.0
PAUSE_FACTOR = 5.0
"""A pause is longer than `PAUSE_S` and than `PAUSE_FACTOR` times the median step."""

FEWEST = 3
"""With fewer steps the median is not known, and nothing counts as a pause."""

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
        """Reset the speed if the generation is new; called after each boundary."""
        if generation == self._generation:
            return
        self._generation, self._last = generation, None
        self._steps.clear()

    def note(self, now_s: float, tokens: int) -> None:
        """Add one report: `tokens` trained so far, over all ranks, at `now_s` (monotonic)."""
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
        """Mean over the last reports of this generation, without pauses; 0 until there are two."""
        seconds = sum(each for each, _ in self._steps)
        return sum(tokens for _, tokens in self._steps) / seconds if seconds > 0 else 0.0

    @property
    def pause_share(self) -> float:
        """Expected share of the launch's time that goes to pauses, in [0, 1).

        The larger of two shares: all pauses over at least a day, because one pause of a young
        launch may not repeat; and all but the longest pause over the launch's actual time.
        """
        lived_s = self._newest_s - self._began_s
        if self._paused_s <= 0 or lived_s <= 0:
            return 0.0
        once = self._paused_s / max(lived_s, DAY_S)
        again = (self._paused_s - self._longest_s) / lived_s
        return max(once, again)
