"""A job without torch: it speaks the protocol, logs steps like the hook, and misbehaves when told.

What it does stands as JSON in ACT. Its fake GPUs or host counters draw watts that the test knows,
so the truth of every number is known. That real jobs behave like it is for other tests to show.
"""

import json
import math
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wattmesh.controller.process.life import end_with
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.profile_folder import ProfileFolder
from wattmesh.reconfig.step_log import StepLog, StepRow
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import Orders, Progress, Register, Transition
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE, FakeNvml

PARKED_W = 55.0
"""Of a fake GPU that a layout leaves out; so much it draws idle, too."""

TALK_EVERY_S = 0.1
"""It tells where it is, and asks for orders, no more often, as a hook does; but a layout's first
steps are told one by one."""

RUN = "6d1c9d0e-0000-4000-8000-000000000001"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What the job does.

    Attributes:
        step_s, watts: seconds of a step, and watts of a GPU in use, by layout.
        layout: in which it begins.
        never: "attach" | "report" | "boundary": what it leaves out.
        fails: by layout, what happens there after `after` steps: "crash", "memory", "hang", "end".
        tokens: of a step, in turn. loss: of every step.
        resets: whether GPU 0's counter starts at zero in every layout's eighth step.
        idle: whether the devices never notice that it trains.
        powercap: a tree of host counters to draw from, in place of GPUs.
        computes: whether it is listed on its GPUs, which draw as their clock says.
    """

    step_s: dict[str, float]
    watts: dict[str, float]
    layout: str = "dp2"
    never: str = ""
    fails: dict[str, str] = field(default_factory=dict)
    after: int = 2
    tokens: tuple[int, ...] = (100,)
    loss: float = 1.0
    resets: bool = False
    idle: bool = False
    powercap: str = ""
    computes: bool = False

    def to_text(self) -> str:
        """Write it for the environment."""
        return json.dumps(asdict(self))


LAYOUTS = {str(each): each for each in (Layout(dp_shard=2), Layout(), Layout(tp=2))}


class Actor:
    """One launch of the job."""

    def __init__(self, act: Act) -> None:
        """Prepare."""
        place = ProfileFolder.from_environment()
        assert place is not None
        self.act, self.place, self.every = act, place, place.every()
        link = DaemonLink.from_environment()
        assert link is not None
        self.link = link
        self.layout = LAYOUTS[act.layout]
        self.log = StepLog(place.steps)
        self.step = self.tokens = self.here = 0
        self.counted_s = time.monotonic()
        self.told_s = self.asked_s = 0.0
        folder = os.environ.get(FOLDER_VARIABLE)
        self.gpus = list(FakeNvml.open(Path(folder)).gpus) if folder else []

    def post(self, kind: str, message: Register | Progress | Transition) -> int:
        """Send one message; gives the status."""
        path = f"/v1/runs/{RUN}/{kind}"
        return self.link.call("POST", path, message.to_json(), 5).status

    def run(self) -> int:
        """Train until asked to stop."""
        if self.act.never == "attach":
            return self._wait_for_ever()
        if self.post("register", self._register()) != 200:
            return 3
        self._draw()
        while True:
            self._train()
            if self.step % self.every == 0 and self._boundary():
                return 0

    def _register(self) -> Register:
        return Register(
            run=RUN,
            name="act",
            incarnation="i",
            attempt=1,
            layout=self.layout,
            ranks=tuple(range(self.layout.world_size)),
            world_size=2,
            gpus=tuple(each.uuid for each in self.gpus),
        )

    def _train(self) -> None:
        act, name = self.act, self._degrees()
        began_s = time.monotonic()
        time.sleep(act.step_s[name])
        self.step, self.here = self.step + 1, self.here + 1
        self.tokens += act.tokens[self.step % len(act.tokens)]
        if act.resets and self.here == 8 and self.gpus:
            self.gpus[0].reset_counter()
        self._count_host(act.watts[name])
        if act.never != "report":
            self._report(began_s)
        if self.here == act.after:
            self._fail(act.fails.get(name, ""))

    def _report(self, began_s: float) -> None:
        now_s = time.monotonic()
        self.log.append(
            StepRow(
                step=self.step,
                tokens=self.tokens,
                loss=self.act.loss,
                layout=str(self.layout),
                gpus=self.layout.world_size,
                monotonic_s=now_s,
                elapsed_s=now_s - began_s,
            )
        )
        if self.here > self.act.after and now_s < self.told_s + TALK_EVERY_S:
            return
        self.told_s = now_s
        loss = self.act.loss
        self.post(
            "progress",
            Progress(
                run=RUN,
                incarnation="i",
                attempt=1,
                seq=self.step,
                step=self.step,
                samples=0,
                tokens=self.tokens,
                tokens_per_s=0.0,
                loss=loss if math.isfinite(loss) else None,
                layout=self.layout,
                ranks=tuple(range(self.layout.world_size)),
            ),
        )

    def _fail(self, how: str) -> None:
        if how == "crash":
            raise ValueError("shapes do not match")
        if how == "memory":
            print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB", flush=True)
            sys.exit(1)
        if how == "end":
            sys.exit(0)
        if how == "hang":
            self._wait_for_ever()

    def _wait_for_ever(self) -> int:
        while True:
            time.sleep(60)

    def _boundary(self) -> bool:
        """Follow an order; True when the job is to end."""
        if (self.place.run / "stop").exists():
            return True
        now_s = time.monotonic()
        if now_s < self.asked_s + TALK_EVERY_S:
            return False
        self.asked_s = now_s
        order = Orders.from_json(self.link.call("GET", f"/v1/runs/{RUN}/order", None, 5).body).order
        if order is None or not order.not_before_step <= self.step <= order.valid_until_step:
            return False
        if self.act.never == "boundary":
            return False
        self.layout, self.here = order.layout, 0
        self._draw()
        refused = self.act.fails.get(self._degrees()) == "refuse"
        if refused:
            self.layout = LAYOUTS[self.act.layout]
        self.post(
            "transitions",
            Transition(
                run=RUN,
                incarnation="i",
                attempt=1,
                switch_id=order.switch_id,
                epoch=order.epoch,
                state=SwitchState.ROLLED_BACK if refused else SwitchState.CONFIRMED,
                step=self.step,
                elapsed_s=0.01,
                detail="the probe moved" if refused else "",
            ),
        )
        return False

    def _draw(self) -> None:
        """Let the fake GPUs draw what the layout takes; those it leaves out draw little."""
        for rank, gpu in enumerate(self.gpus):
            if self.act.computes:
                gpu.processes([os.getpid()])
                gpu.load(float(rank < self.layout.world_size))
                continue
            used = rank < self.layout.world_size
            gpu.draw(self._watts() if used and not self.act.idle else PARKED_W)

    def _watts(self) -> float:
        return self.act.watts[self._degrees()]

    def _degrees(self) -> str:
        """Name its layout as `Act` does: by its degrees alone."""
        return str(self.layout).partition(",")[0]

    def _count_host(self, power_w: float) -> None:
        """Advance the host's counter to now."""
        if self.act.powercap:
            now_s = time.monotonic()
            energy_j, self.counted_s = power_w * (now_s - self.counted_s), now_s
            path = Path(self.act.powercap) / "intel-rapl:0" / "energy_uj"
            if not path.exists():
                return
            wraps_uj = int(path.with_name("max_energy_range_uj").read_text())
            value = (int(path.read_text()) + round(1e6 * energy_j)) % wraps_uj
            new = path.with_suffix(".new")
            new.write_text(str(value))
            new.rename(path)


def main() -> int:
    """Act as the environment says."""
    end_with(os.getppid(), signal.SIGTERM)
    asked: dict[str, Any] = json.loads(os.environ["ACT"])
    return Actor(Act(**{**asked, "tokens": tuple(asked["tokens"])})).run()


if __name__ == "__main__":
    sys.exit(main())
