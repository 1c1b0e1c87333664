"""A class put before a script's own Trainer class: its loop is Trainer's, a switch is a resume.

`Trainer.train` is left where model and optimizer are prepared, so that the session may load them,
and again at a boundary where a switch waits. It is entered again as Trainer resumes from a
checkpoint of its own, whose tensors the session has loaded.

Invariant: what is carried of a trainer is the same on all ranks: sums over ranks, and else what the
first rank has.
"""

import dataclasses
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.accelerate_runtime import set_epoch
from wattmesh.integrations.pytorch.averages import move_average
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.state import streams

if TYPE_CHECKING:
    from transformers import Trainer as Base
else:
    Base = object
    """What stands behind it: the script's own class; see `put_before`."""

OF_A_RANK = ("is_local_process_zero", "is_world_process_zero")
"""Fields of TrainerState that say which rank this is; Trainer sets them anew."""


class PreparedOnly(BaseException):
    """Leaves `Trainer.train` where all is prepared and nothing is trained."""


class LoopLeft(BaseException):
    """Leaves Trainer's loop at a boundary: a switch waits, or the session is done."""


@dataclasses.dataclass(slots=True)
class TrainerProgress:
    """What the session knows of one trainer.

    Attributes:
        window: samples of a microbatch, over all ranks.
        sample_tokens: tokens of a sample.
        boundary_every: optimizer steps between save steps.
        ema_decay: of an average of the parameters; 0: none.
        session: None until it trains.
        prepared: what `_prepare_for_training` gave: model and loader.
        loader: of the train data, prepared.
        carried: from a checkpoint; empty in a new run.
        sums: what `_agree_on_sums` found; empty before the first step.
        streams: the random streams with which training goes on.
        step: the newest step that was reported.
        agreed: a step, and what all ranks save there.
        steps_of_epoch: optimizer steps of an epoch.
        begun: whether it trains.
        loss: of the present step, summed over this rank's microbatches.
        began_s: when training began, less the time that it did not train.
    """

    window: int
    sample_tokens: int
    boundary_every: int
    ema_decay: float = 0.0
    session: Session | None = None
    loader: Any = None
    prepared: Any = None
    carried: dict[str, Any] = dataclasses.field(default_factory=dict)
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    streams: dict[str, bytes] = dataclasses.field(default_factory=dict)
    step: int = 0
    agreed: tuple[int, dict[str, Any]] = (-1, {})
    steps_of_epoch: int = 0
    begun: bool = False
    loss: torch.Tensor | float = 0.0
    began_s: float = 0.0


class TrainerUnderSession(Base):
    """Trainer's methods that a session has a part in; `put_before` makes a class of it."""

    progress: TrainerProgress

    def get_train_dataloader(self) -> Any:
        """Make the loader once for each build."""
        if self.progress.loader is None:
            self.progress.loader = super().get_train_dataloader()
        return self.progress.loader

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume: Any) -> Any:
        del resume
        if self.progress.prepared is None:
            found = super()._prepare_for_training(  # type: ignore[no-untyped-call]
                max_steps, train_dataloader, None
            )
            self.progress.prepared = found
            raise PreparedOnly
        return self.progress.prepared

    def _load_rng_state(self, checkpoint: Any) -> None:
        """Undo what making the loader has drawn; Trainer asks for it where it resumes."""
        del checkpoint
        streams.set_to(self.progress.streams)

    def _run_epoch(self, **named: Any) -> None:  # type: ignore[override]
        progress = self.progress
        progress.steps_of_epoch = named["num_update_steps_per_epoch"]
        if not progress.begun:
            self._go_on()
        # Trainer does not reach the sampler beneath the batches that it skips.
        set_epoch(named["train_dataloader"], named["epoch"])
        super()._run_epoch(**named)  # type: ignore[no-untyped-call]
        if self.control.should_training_stop:
            return
        if self.state.global_step % progress.steps_of_epoch:
            raise InputInvalid(
                f"Trainer: a callback ended an epoch at step {self.state.global_step}, and no "
                "other layout would know where the data go on; let it stop training instead."
            )
        self._meet_boundary()

    def _go_on(self) -> None:
        """Take up the sums where they were; Trainer has just set them to nothing."""
        progress, sums = self.progress, self.progress.carried.get("sums", {})
        progress.begun, progress.carried = True, {}
        progress.step = self.state.global_step
        progress.began_s = time.time() - sums.get("seconds", 0.0)
        self._initial_global_step = self._initial_num_input_tokens_seen = 0
        if sums:
            self._tr_loss += sums["loss"]
            self._total_loss_scalar = sums["logged_loss"]
            self._globalstep_last_logged = sums["logged_at"]

    def training_step(self, *args: Any, **named: Any) -> torch.Tensor:
        """Add up the loss of a step's microbatches."""
        loss: torch.Tensor = super().training_step(*args, **named)
        # Kept on its device: a number of each microbatch would have the host wait for it.
        self.progress.loss = self.progress.loss + loss.double()
        return loss

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *args: Any, **named: Any) -> None:
        progress, session = self.progress, self.progress.session
        assert session is not None
        ended = self.state.global_step > progress.step
        loss = self._agree_on_sums() if ended else 0.0
        if ended and progress.ema_decay:
            state = session.state
            move_average(state.modules, state.averages["ema"], progress.ema_decay)
        super()._maybe_log_save_evaluate(tr_loss, *args, **named)
        if not ended:
            return
        progress.step = self.state.global_step
        samples = self.current_gradient_accumulation_steps * progress.window
        session.report(tokens=samples * progress.sample_tokens, samples=samples, loss=loss)
        # Where an epoch or all of it ends, Trainer has something left to do first.
        if progress.step % progress.steps_of_epoch and not self.control.should_training_stop:
            self._meet_boundary()

    def _finalize_training(self, trial: Any, samples: Any, start_time: float) -> Any:
        del start_time
        output = super()._finalize_training(  # type: ignore[no-untyped-call]
            trial, samples, self.progress.began_s
        )
        self._agree_on_state()
        return output

    def _agree_on_sums(self) -> float:
        """Make this step's sums equal on all ranks; returns the mean of its loss. Collective."""
        progress = self.progress
        seconds = time.time() - progress.began_s
        mine = [float(self._tr_loss), float(progress.loss), float(self.current_flos), seconds]
        every = torch.tensor(mine, dtype=torch.float64, device=self.args.device)
        dist.all_reduce(every)
        total, loss, flos, seconds = every.tolist()
        ranks = dist.get_world_size()
        self._tr_loss.fill_(total / ranks)
        self.state.total_flos += flos
        self.current_flos, progress.loss = 0, 0.0
        progress.began_s = time.time() - seconds / ranks
        progress.sums = {"seconds": seconds / ranks}
        return float(loss / ranks)

    def _agree_on_state(self) -> None:
        """Have the first rank's state saved: what logs and callbacks hold differs. Collective."""
        mine = self._state() if dist.get_rank() == 0 else None
        self.progress.agreed = self.state.global_step, group.gather(mine)[0]

    def _meet_boundary(self) -> None:
        session = self.progress.session
        assert session is not None
        if self.state.global_step % self.progress.boundary_every == 0:
            self._agree_on_state()
        session.boundary(may_switch=False)
        if session.switch_waits or session.done:
            raise LoopLeft

    def take_batch(self, samples: int) -> None:
        """Have each device take so many samples at a time."""
        self.args.per_device_train_batch_size = self._train_batch_size = samples

    def loss_of(self, batch: Any) -> Any:
        """Return the loss of a batch in evaluation, which leaves nothing behind."""
        model = self.model_wrapped
        was_training = model.training
        model.eval()
        with torch.no_grad():
            loss: Any = self.compute_loss(model, self._prepare_inputs(batch))
        model.train(was_training)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Give what Trainer would write of itself into a checkpoint; equal on all ranks."""
        step, agreed = self.progress.agreed
        if step == self.state.global_step:
            return agreed
        return self.progress.carried or self._state()

    def _state(self) -> dict[str, Any]:
        sums = dict(self.progress.sums)
        if sums:
            sums |= {
                "loss": float(self._tr_loss),
                "logged_loss": float(self._total_loss_scalar),
                "logged_at": int(self._globalstep_last_logged),
            }
        callbacks = [*self.callback_handler.callbacks, self.control]
        exported: list[Any] = [each for each in callbacks if isinstance(each, ExportableState)]
        state = dataclasses.replace(self.state, stateful_callbacks=exported)
        fields = {k: v for k, v in dataclasses.asdict(state).items() if k not in OF_A_RANK}
        return {"state": json.dumps(fields, sort_keys=True), "sums": sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it for `go_on_training`, and the step for the probe: a loss may depend on it."""
        self.progress.carried = dict(state_dict)
        fields = json.loads(state_dict["state"])
        self.state.global_step, self.state.epoch = fields["global_step"], fields["epoch"]

    def go_on_training(self, session: Session) -> Any:
        """Train to the end as `Trainer.train` does, from where the run stands.

        Raises:
            LoopLeft: a switch waits, or the session is done.
        """
        progress = self.progress
        progress.session, progress.streams = session, streams.now()
        if not session.position.step:
            return self._inner_training_loop(args=self.args)
        fields = json.loads(progress.carried["state"])
        fields["train_batch_size"] = self._train_batch_size
        self.args.eval_on_start = False
        with TemporaryDirectory() as folder:
            Path(folder, TRAINER_STATE_NAME).write_text(json.dumps(fields), "utf-8")
            return self._inner_training_loop(args=self.args, resume_from_checkpoint=folder)


def put_before(trainer: Any, progress: TrainerProgress) -> None:
    """Have a trainer that a script made do its steps under a session."""
    kind = type(trainer)
    trainer.__class__ = type(f"{kind.__name__}UnderSession", (TrainerUnderSession, kind), {})
    trainer.progress = progress
