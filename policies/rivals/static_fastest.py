"""Static, fastest: the point of the most tokens per second from first to last."""

from wattmesh.policies.rivals.rival_inputs import RivalInputs


def static_fastest(inputs: RivalInputs) -> str:
    """Stay at the fastest point."""
    return inputs.fastest.id
