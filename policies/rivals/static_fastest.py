"""Static, fastest: the point of the most tokens per second from first to last."""

from wattmesh.policies.rivals.look import RivalInputs


def static_fastest(look: RivalInputs) -> str:
    """Stay at the fastest point."""
    return look.fastest.id
