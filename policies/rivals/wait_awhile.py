"""Wait awhile: train at the fastest point in the cleanest hours until the deadline.

The interruptible strategy of "Let's Wait Awhile" (Wiesner et al., Middleware 2021): of all slots up
to the deadline take the cleanest until the work fits, and sleep in the others.
"""

from wattmesh.policies.rivals.look import SLEEP, RivalInputs


def wait_awhile(look: RivalInputs) -> str:
    """Run now if now is one of the cleanest slots that are needed."""
    fastest = look.fastest
    needed_s = look.tokens_left / fastest.tokens_per_s
    cleaner_s = sum(
        slot.seconds for slot in look.ahead[1:] if slot.g_per_kwh < look.ahead[0].g_per_kwh
    )
    return fastest.id if cleaner_s < needed_s else SLEEP
