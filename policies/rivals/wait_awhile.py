"""Wait awhile: train at the fastest point in the cleanest hours until the deadline.

The interruptible strategy of "Let's Wait Awhile" (Wiesner et al., Middleware 2021): of all slots up
to the deadline take the cleanest until the work fits, and sleep in the others.
"""

from wattmesh.policies.rivals.rival_inputs import SLEEP, RivalInputs


def wait_awhile(inputs: RivalInputs) -> str:
    """Run now if now is one of the cleanest slots that are needed."""
    fastest = inputs.fastest
    needed_s = inputs.tokens_left / fastest.tokens_per_s
    cleaner_s = sum(
        slot.seconds for slot in inputs.ahead[1:] if slot.g_per_kwh < inputs.ahead[0].g_per_kwh
    )
    return fastest.id if cleaner_s < needed_s else SLEEP
