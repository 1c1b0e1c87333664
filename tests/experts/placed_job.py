"""The example's mixture of experts under `tiny`'s faults: its experts may be placed anew.

Three experts a token, so that the order in which their outputs are added can be seen in the loss.
"""

import os
from dataclasses import replace
from typing import Any

import torch

from examples.pretrain.config import TrainConfig, preset
from examples.pretrain.experts import MixtureOfExperts, TimedMixtureOfExperts
from examples.pretrain.train import build_state, probe, train_step
from tests.hook.tiny import Bomb, Options, Schedule, TinyJob
from wattmesh.integrations.pytorch.experts.recorder import record_routing
from wattmesh.integrations.pytorch.experts.router import EnergyRouter
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.launch.folder import read_json
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State

EXPERTS, LAYERS, EVERY = 8, 2, 1
STEPS_OF = (
    "save",
    "teardown",
    "rebuild_after_mesh",
    "load",
    "verify",
    "behind_written",
)
"""The steps of a placement at which a job may be killed, in their order."""


def config() -> TrainConfig:
    """What is trained; a job whose routing is recorded has routers of ours."""
    base = preset("tiny-diffusion-moe" if "RECORDED" in os.environ else "tiny-moe", dtype="fp64")
    model = replace(base.model, layers=LAYERS, experts=EXPERTS, experts_per_token=3)
    return replace(base, model=model)


class PlacedJob(TinyJob):
    """One rank."""

    def __init__(self, options: Options) -> None:
        """Read what the test wants: to be killed at each step in turn, or a build that is wrong."""
        super().__init__(options)
        self.killed = "KILLED" in os.environ
        self.wrong = os.environ.get("WRONG", "").split(",")
        self.builds = 0
        self.records = os.environ.get("RECORDED") == "yes"

    def build(self, layout: Layout, ranks: Ranks) -> State:
        """The example's state, as it is placed."""
        self.layout = layout
        self.hurt("rebuild")
        state = build_state(config(), layout, fresh=ranks.fresh, placement=ranks.placement)
        if ranks.placement:
            self._spoil(state)
        self.hurt("rebuild_after_mesh")
        state.extra["schedule"] = Schedule(self)
        state.parts.bomb = Bomb(lambda: self.hurt("teardown"))
        return state

    def _spoil(self, state: State) -> None:
        """Build wrongly, each time in another way."""
        how = self.wrong[self.builds] if self.builds < len(self.wrong) else ""
        self.builds += 1
        assert state.experts is not None
        if how == "ignored":
            state.experts = replace(state.experts, placement=())
        elif how == "routed by number":
            for each in (m for module in state.modules for m in module.modules()):
                if isinstance(each, MixtureOfExperts):
                    each.parallel = replace(each.parallel, placement_X=None)
        elif how == "one stack forgotten":
            kept = {k: v for k, v in state.experts.layer_of.items() if not k.endswith("down")}
            state.experts = replace(state.experts, layer_of=kept)

    def _mean_loss(self, state: State, step: int) -> float:
        return probe(state)

    def train(self, session: Session) -> float:
        """One step of the example."""
        if self.records:
            self.records = False
            record_routing(session, routers_of, tokens=64, every_s=0.0)
        state = session.state
        state.parts.trained = True
        metrics = train_step(state)
        schedule = state.extra["schedule"]
        assert isinstance(schedule, Schedule)
        schedule.steps += 1
        self.read = [int(each) for each in metrics.data]  # type: ignore[assignment]
        return metrics.loss

    def due(self, at: str) -> bool:
        """Whether this rank dies here: at each step once, of the placements after the first."""
        if not self.killed or self.rank != 0 or self.session is None:
            return super().due(at)
        done = len(list(self.out.glob("fault-*")))
        step = self.session.position.step if self._training() else self.position.step
        return done < len(STEPS_OF) and STEPS_OF[done] == at and step >= at_step(done + 1)

    def _note(self, session: Session, loss: float) -> None:
        """Write where experts lie, too."""
        super()._note(session, loss)
        if session.leads:
            self._write("placed", {"step": session.position.step, "as": _placed(session)})


def routers_of(state: State) -> list[EnergyRouter]:
    """The routers of a state, in the order of their layers."""
    modules = (each for module in state.modules for each in module.modules())
    return [each.energy_router for each in modules if isinstance(each, TimedMixtureOfExperts)]


def at_step(number: int) -> int:
    """The save step of the placement of that number."""
    return 2 * EVERY * (number + 1)


def _placed(session: Session) -> Any:
    experts = session.state.experts
    return experts.placement if experts else None


def header_of_newest(folder: Any) -> dict[str, Any]:
    """The header of a run's newest checkpoint."""
    newest = max(folder.glob("step-*/trainer.json"))
    found: dict[str, Any] = (read_json(newest) or {})["header"]
    return found


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    return PlacedJob(Options.from_environment()).run()
