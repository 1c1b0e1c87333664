"""The loss of fixed tokens by a built trainer, forward only: torchtitan's own way to validate."""

from typing import Any

import torch

from wattmesh.reconfig.launch.group import mean_over_ranks
from wattmesh.reconfig.state.state import State


def fixed_batch_loss(state: State) -> float:
    """Return the mean loss of a local batch of tokens drawn once, the same on every rank.

    Collective. For language models: `config.model_spec.model` has a `vocab_size`.
    """
    trainer: Any = state.parts.trainer
    training = trainer.config.training
    words = int(trainer.model_config.vocab_size)
    drawn = torch.Generator().manual_seed(1)
    shape = (training.local_batch_size, training.seq_len + 1)
    tokens_BS = torch.randint(words, shape, generator=drawn).to(trainer.device)
    seen, training_now = trainer.ntokens_seen, [part.training for part in trainer.model_parts]
    for part in trainer.model_parts:
        part.eval()
    with torch.no_grad():
        loss, tokens = _forward(trainer, tokens_BS[:, :-1], tokens_BS[:, 1:])
    for part, was in zip(trainer.model_parts, training_now, strict=True):
        part.train(was)
    trainer.ntokens_seen = seen
    # Ranks of one sample hold the same sum, and stages before the last hold none.
    # On the CPU in one dtype: each of them goes over one backend, whatever a stage holds.
    return mean_over_ranks(loss) / mean_over_ranks(tokens)


def _forward(trainer: Any, inputs: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Return the sum of this rank's losses, and of how many tokens, in fp64 on the CPU."""
    if not trainer.parallel_dims.pp_enabled:
        given, labels, named = trainer.post_dataloading_process(_batch(trainer, inputs), labels)
        with trainer.train_context():
            loss, _ = trainer.loss_fn(trainer.model_parts[0](given, **named), labels)
        return _numbers(loss, labels.numel())
    size = trainer.config.parallelism.pipeline_parallel_microbatch_size
    given_mbs: list[tuple[Any, ...]] = []
    named_mbs, labels_mbs = [], []
    for some, theirs in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
        given, mine, named = trainer.post_dataloading_process(_batch(trainer, some), theirs)
        given_mbs.append((given,))
        named_mbs.append(named)
        labels_mbs.append(mine)
    last = trainer.pp_has_last_stage
    losses: list[Any] | None = [] if last else None
    with trainer.train_context():
        trainer.pp_schedule.eval(
            arg_mbs=given_mbs if trainer.pp_has_first_stage else None,
            kwarg_mbs=named_mbs,
            target_mbs=labels_mbs if last else None,
            losses=losses,
        )
    if losses is None:
        return _numbers(0.0, 0)
    return _numbers(torch.stack(losses).sum(), sum(each.numel() for each in labels_mbs))


def _numbers(loss: Any, tokens: int) -> list[torch.Tensor]:
    return [torch.tensor(float(each), dtype=torch.float64) for each in (loss, tokens)]


def _batch(trainer: Any, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a batch as loaders of torchtitan give it; masked attention needs positions."""
    first = getattr(trainer.model_config, "first_attention", None)
    if getattr(first, "inner_attention", None) is None or not _masked(first):
        return {"input": inputs}
    positions = torch.arange(inputs.shape[1], device=inputs.device).expand_as(inputs)
    return {"input": inputs, "positions": positions.contiguous()}


def _masked(attention: Any) -> bool:
    names = {kind.__qualname__ for kind in type(attention.inner_attention).__mro__}
    return bool(names & {"FlexAttention.Config", "VarlenAttention.Config"})
