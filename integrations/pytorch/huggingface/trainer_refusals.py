"""Why a training of Hugging Face's Trainer is not moved, each in one sentence, before it trains."""

from typing import Any

from transformers import Trainer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import has_length
from transformers.training_args import OptimizerNames

from wattmesh.integrations.pytorch.accelerate_runtime import refused_loader, refused_strategy
from wattmesh.reconfig.layout import Layout

LOOP = ("train", "_inner_training_loop", "_run_epoch")
"""Methods of Trainer that make its loop, which the session enters and leaves."""

PARTS = (*LOOP, "_prepare_for_training", "_maybe_log_save_evaluate", "_finalize_training")
"""Methods of transformers 5.24 without which it cannot."""


def refused_arguments(trainer: Any, layout: Layout, global_batch_size: int) -> str:
    """Say why a trainer that was just made cannot be moved; "" when nothing is known against it.

    Args:
        trainer: has prepared nothing yet.
        layout: to be trained.
        global_batch_size: samples of an optimizer step.
    """
    return (
        refused_strategy(trainer.accelerator, layout, "TrainingArguments(use_cpu=True)")
        or _refused_class(trainer)
        or _refused_switches(trainer.args)
        or _refused_model(trainer)
        or _refused_batch(trainer, layout, global_batch_size)
    )


def refused_preparation(trainer: Any, window: int) -> str:
    """Say why what a trainer has prepared cannot be moved; "" when it can.

    Args:
        trainer: has prepared model, optimizer, schedule and loader.
        window: samples of a microbatch, over all ranks.
    """
    loader = trainer.progress.loader
    seedable = 'TrainingArguments accelerator_config={"use_seedable_sampler": True}'
    if words := refused_loader(loader, seedable):
        return words
    if loader.total_batch_size != window:
        return (
            f"its train data loader gives {loader.total_batch_size} samples at a time over all "
            f"ranks, where {window} are wanted; it shall take its batch size from the trainer"
        )
    return ""


def _refused_class(trainer: Any) -> str:
    kind = type(trainer)
    lost = [name for name in PARTS if not hasattr(Trainer, name)]
    if lost:
        return f"this transformers has no Trainer.{lost[0]}; it is moved as 5.24 has it"
    own = [name for name in LOOP if getattr(kind, name) is not getattr(Trainer, name)]
    if own:
        return f"its class {kind.__name__} has its own {own[0]}, and the loop must be Trainer's"
    return ""


def _refused_switches(args: Any) -> str:
    loading = args.accelerator_config
    found = {
        "auto_find_batch_size would change the samples of a step": args.auto_find_batch_size,
        f"the order of train_sampling_strategy={args.train_sampling_strategy!r} follows the "
        "number of ranks; take 'random' or 'sequential'": (
            args.train_sampling_strategy not in ("random", "sequential")
        ),
        "average_tokens_across_devices=False weighs samples by the rank that they fall to; leave "
        "it on": not args.average_tokens_across_devices,
        "ignore_data_skip=True would begin the data again at a switch": args.ignore_data_skip,
        "resume_from_checkpoint is not heeded: the session resumes from its own checkpoints": (
            bool(args.resume_from_checkpoint)
        ),
        "load_best_model_at_end would put another model in place of the trained one before the "
        "run's last checkpoint; load it afterwards": args.load_best_model_at_end,
        "enable_jit_checkpoint and the session would both answer SIGTERM; the session saves": (
            args.enable_jit_checkpoint
        ),
        "split_batches and dispatch_batches of accelerator_config are not moved": (
            bool(loading.split_batches or loading.dispatch_batches)
        ),
        f"it would train on {args.n_gpu} GPUs in one process; let the process see one": (
            args.n_gpu > 1
        ),
    }
    return next((words for words, holds in found.items() if holds), "")


def _refused_model(trainer: Any) -> str:
    if hasattr(trainer.model, "peft_config"):
        return "adapters of PEFT were never tried; train the model itself"
    if getattr(trainer, "is_distributed_loading_by_transformers", False):
        return "its model was sharded where it was loaded (DistributedConfig), for one layout"
    if trainer.args.optim == OptimizerNames.ADAFACTOR:
        return (
            "its Adafactor keeps a row and a column for a matrix, which no checkpoint of a session "
            "holds, and transformers' own ends in its first step under FSDP2; take another "
            "optimizer"
        )
    return _refused_under_fsdp2(trainer) if trainer.accelerator.is_fsdp2 else ""


def _refused_under_fsdp2(trainer: Any) -> str:
    """Say what transformers itself does wrong under FSDP2, with or without us."""
    if _smooths_by_class_name(trainer):
        return (
            "label_smoothing_factor would compare each token with itself and not with the next, "
            "for Trainer shifts labels by the name of the model's class, which FSDP2 changes; "
            "smooth in a compute_loss_func"
        )
    return ""


def _smooths_by_class_name(trainer: Any) -> bool:
    """Tell whether the loss is Trainer's smoothed one of a causal language model."""
    return (
        trainer.label_smoother is not None
        and trainer.compute_loss_func is None
        and type(trainer).compute_loss is Trainer.compute_loss
        and type(trainer.model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    )


def _refused_batch(trainer: Any, layout: Layout, global_batch_size: int) -> str:
    args, data = trainer.args, trainer.train_dataset
    steps, ranks = args.gradient_accumulation_steps, layout.world_size
    if global_batch_size < 1 or global_batch_size % (steps * ranks):
        return (
            f"global_batch_size = {global_batch_size} is no multiple of "
            f"gradient_accumulation_steps = {steps} times the {ranks} ranks of {layout}"
        )
    if data is None or not has_length(data):
        return "its train_dataset has no length: it is read one after the other, from its beginning"
    window = global_batch_size // steps
    if len(data) % window and not args.dataloader_drop_last:
        return (
            f"its {len(data)} samples fill no whole microbatches of {window}, and Accelerate would "
            "fill up the last one otherwise in every layout; set dataloader_drop_last=True"
        )
    return ""
