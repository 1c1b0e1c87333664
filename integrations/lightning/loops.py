"""Classes put before those of a script's trainer and its loops: a switch is a resume.

`Trainer.fit` is left where model and optimizer are prepared, so that the session may load them, and
the loops again at a boundary where a switch waits. They are entered again as Lightning resumes from
a checkpoint of its own, whose tensors the session has loaded.

Invariant: a boundary is met where nothing of a step is left to do: after its validation, and after
the hooks of an epoch that ended with it.
"""

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import torch

from wattmesh.integrations.lightning import carried, metrics
from wattmesh.integrations.lightning.data import LoaderOrder
from wattmesh.integrations.lightning.processes import FitPrepared, part
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.launch.group import mean_over_ranks
from wattmesh.reconfig.state import streams

if TYPE_CHECKING:
    from pytorch_lightning import Trainer as BaseTrainer
    from pytorch_lightning.loops.fit_loop import _FitLoop as BaseFitLoop
    from pytorch_lightning.loops.optimization.automatic import (
        _AutomaticOptimization as BaseOptimization,
    )
    from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop as BaseEpochLoop
else:
    BaseTrainer = BaseFitLoop = BaseEpochLoop = BaseOptimization = object
    """What stands behind each: the class of the script's own object; see `put_before`."""

NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"


class LoopsLeft(BaseException):
    """Leaves Lightning's loops at a boundary: a switch waits, or the session is done."""


@dataclasses.dataclass(slots=True)
class FitProgress:
    """What the session knows of one trainer.

    Attributes:
        sample_tokens: tokens of a sample.
        boundary_every: optimizer steps between save steps.
        window: samples of a batch, over all ranks.
        order: its train loader; None until it is prepared.
        session: None until it trains.
        carried: from a checkpoint; empty in a new run.
        agreed: a step, and what all ranks save there.
        streams: the random streams with which training goes on; empty in a new run.
        step: the newest step that was reported.
        batches: of the present step, so far.
        loss: of these, summed on this rank.
        pending: whether the newest step's boundary is still to be met.
        trained: whether all is trained.
    """

    sample_tokens: int
    boundary_every: int
    window: int
    order: LoaderOrder | None = None
    session: Session | None = None
    carried: dict[str, Any] = dataclasses.field(default_factory=dict)
    agreed: tuple[int, dict[str, Any]] = (-1, {})
    streams: dict[str, bytes] = dataclasses.field(default_factory=dict)
    step: int = 0
    batches: int = 0
    loss: torch.Tensor | float = 0.0
    pending: bool = False
    trained: bool = False


class LightningUnderSession(BaseTrainer):
    """Trainer's methods that a session has a part in."""

    progress: FitProgress

    def _run_stage(self) -> Any:
        if self.progress.order is None:
            raise FitPrepared
        return super()._run_stage()

    def _run_sanity_check(self) -> None:
        if not self.progress.step:
            super()._run_sanity_check()

    def go_on_training(self, session: Session) -> bool:
        """Train as `fit` does, from where the run stands; whether all is trained."""
        progress = self.progress
        progress.session, progress.step = session, session.position.step
        call = part(self, "trainer.call")
        call._call_and_handle_interrupt(self, self._train_prepared)
        return progress.trained

    def _train_prepared(self) -> None:
        progress = self.progress
        if progress.step:
            progress.streams = streams.now()
        try:
            self._run_stage()
        except LoopsLeft:
            self._teardown()
            self._end_layout()
            return
        progress.trained = True
        self._leave_no_gradients()
        self._agree_on_state()
        self._end_fit()

    def _end_fit(self) -> None:
        """Do what `Trainer._run` of 2.6 does after its stage, and `_fit_impl` after that."""
        call, states = part(self, "trainer.call"), part(self, "trainer.states")
        self._teardown()
        call._call_callback_hooks(self, "on_fit_end")
        call._call_lightning_module_hook(self, "on_fit_end")
        call._call_teardown_hook(self)
        self.state.status = states.TrainerStatus.FINISHED
        self.state.stage = None
        self.training = False

    def _end_layout(self) -> None:
        """Call the hooks that end what `setup` began; loggers go on in the next layout."""
        call = part(self, "trainer.call")
        if getattr(self, "datamodule", None) is not None:
            call._call_lightning_datamodule_hook(self, "teardown", stage=self.state.fn)
        call._call_callback_hooks(self, "teardown", stage=self.state.fn)
        call._call_lightning_module_hook(self, "teardown", stage=self.state.fn)
        for logger in self.loggers:
            logger.save()

    def meet_boundary(self) -> None:
        """Do what is due after the newest step.

        Raises:
            LoopsLeft: a switch waits, or the session is done.
        """
        progress, session = self.progress, self.progress.session
        assert session is not None
        progress.pending = False
        if progress.step % progress.boundary_every == 0:
            # Lightning does so before the next backward only.
            self._leave_no_gradients()
            self._agree_on_state()
        session.boundary(may_switch=False)
        if session.switch_waits or session.done:
            metrics.warn_of_others(self.lightning_module)
            raise LoopsLeft

    def _leave_no_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _agree_on_state(self) -> None:
        self.progress.agreed = self.progress.step, carried.gathered(self)

    def state_dict(self) -> dict[str, Any]:
        """Give what Lightning would write of a trainer into a checkpoint; equal on all ranks."""
        step, agreed = self.progress.agreed
        if step == self.progress.step and agreed:
            return agreed
        return self.progress.carried or carried.alone(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from it; the probe is taken after, and a loss may depend on the step."""
        self.progress.carried = dict(state_dict)
        carried.restore(self, self.progress.carried)


class FitLoopUnderSession(BaseFitLoop):
    """The loop over epochs."""

    def setup_data(self) -> None:
        """Have the loader begin where the run stands, before its workers do."""
        order = _of(self).order
        if self._combined_loader is None and order is not None:
            within = carried.is_within_epoch(self.trainer)
            batch = self.epoch_loop.batch_progress.current.ready if within else 0
            epochs: Any = self.epoch_progress.current
            order.begin(epochs.processed, batch)
        super().setup_data()

    def on_run_start(self) -> None:
        """Undo what was drawn by beginning again."""
        super().on_run_start()
        if found := _of(self).streams:
            streams.set_to(found)

    def on_advance_start(self) -> None:
        """Meet the boundary of an epoch's last step, after the hooks that end an epoch."""
        if _of(self).pending:
            _under_session(self).meet_boundary()
        super().on_advance_start()


class EpochLoopUnderSession(BaseEpochLoop):
    """The loop over batches."""

    def reset(self) -> None:
        """Leave out a warning that the loader could not begin where it does."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NOT_RESUMABLE)
            super().reset()

    def advance(self, data_fetcher: Any) -> None:
        """Meet the boundary of the step before, if another batch follows in this epoch."""
        if _of(self).pending:
            _under_session(self).meet_boundary()
        # Nothing that was begun before is to be ended now; see `carried`.
        self.restarting = self.trainer.fit_loop._restarting = False
        super().advance(data_fetcher)

    def on_advance_end(self, data_fetcher: Any) -> None:
        """Report a step that has ended. Collective."""
        super().on_advance_end(data_fetcher)
        progress = _of(self)
        if self.global_step == progress.step:
            return
        session, batches = progress.session, progress.batches
        assert session is not None
        mean = torch.as_tensor(progress.loss, dtype=torch.float64) / batches
        samples = batches * progress.window
        session.report(
            tokens=samples * progress.sample_tokens, samples=samples, loss=mean_over_ranks(mean)
        )
        progress.step, progress.pending = self.global_step, True
        progress.batches, progress.loss = 0, 0.0


class OptimizationUnderSession(BaseOptimization):
    """One batch: forward and backward, and the optimizer's step where one ends."""

    def run(self, optimizer: Any, batch_idx: int, kwargs: Any) -> Any:
        """Add up the loss of a step's batches."""
        output = super().run(optimizer, batch_idx, kwargs)
        progress = _of(self)
        # Lightning has divided it; kept on its device, so that the host need not wait.
        loss = output["loss"].double() * self.trainer.accumulate_grad_batches
        progress.loss, progress.batches = progress.loss + loss, progress.batches + 1
        return output


def _under_session(loop: Any) -> LightningUnderSession:
    found: LightningUnderSession = loop.trainer
    return found


def _of(loop: Any) -> FitProgress:
    return _under_session(loop).progress


def put_before(trainer: Any, progress: FitProgress) -> None:
    """Have a trainer that a script made do its steps under a session."""
    loop = trainer.fit_loop
    for each, kind in (
        (trainer, LightningUnderSession),
        (loop, FitLoopUnderSession),
        (loop.epoch_loop, EpochLoopUnderSession),
        (loop.epoch_loop.automatic_optimization, OptimizationUnderSession),
    ):
        own = type(each)
        each.__class__ = type(f"{own.__name__}UnderSession", (kind, own), {})
    trainer.progress = progress
