"""Saves with real Megatron-core on gloo ranks, and writes down what its own loader gives.

    python -m tests.universal.sources.megatron_job FOLDER RANKS CASE...

A case is JSON of `Case`. `FOLDER/<case>` is what Megatron saved; `FOLDER/<case>.<target>.<rank>.pt`
what `dist_checkpointing.load` gave a rank in that target layout, as (name, state, start, tensor).

Megatron's optimizers ask CUDA for devices and for the names of types; a mode of torch answers them
with the CPU's, here only. Gradients are drawn, for its attention needs a GPU.

Only the standard library is imported on top: Megatron's writer starts a Python that imports this.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LAYERS, VOCABULARY, PADDED = 2, 45, 48
SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Case:
    """What is saved.

    Attributes:
        optimizer: "none", "plain", or how the distributed one is sharded.
        stacked: equal layers as one tensor.
        parallel: data-parallel ranks share the writing.
        experts: 0 for a dense model.
        ep: expert parallelism of the save; targets have none.
        grouped: the experts of a rank in one tensor, as grouped kernels want them.
        targets: layouts (tp, pp) in which Megatron loads it again.
    """

    name: str
    tp: int = 1
    pp: int = 1
    bf16: bool = False
    optimizer: str = "plain"
    gated: bool = True
    tied: bool = False
    stacked: bool = True
    parallel: bool = False
    experts: int = 0
    ep: int = 1
    grouped: bool = False
    targets: tuple[tuple[int, int], ...] = ()

    @property
    def metadata(self) -> dict[str, Any]:
        """What Megatron's trainer gives as `content_metadata`."""
        told: dict[str, Any] = {
            "non_homogeneous_layers": not self.stacked,
            "singleton_local_shards": False,
            "chained_optim_avoid_prefix": True,
        }
        if self.optimizer not in ("none", "plain"):
            told["distrib_optim_sharding_type"] = self.optimizer
        return told


def _without_cuda() -> None:
    import torch  # noqa: PLC0415
    from megatron.core.transformer.moe import grouped_gemm_util  # noqa: PLC0415
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415

    def is_cuda(device: Any) -> bool:
        return isinstance(device, str | torch.device) and str(device).startswith("cuda")

    class Answer(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = {
                key: "cpu" if is_cuda(value) else value for key, value in (kwargs or {}).items()
            }
            if func is torch.Tensor.cuda:
                return args[0]
            result = func(*("cpu" if is_cuda(each) else each for each in args), **named)
            if func is torch.Tensor.type and len(args) == 1:
                return result.replace("torch.", "torch.cuda.")
            return result

    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *_: None
    grouped_gemm_util.assert_grouped_gemm_is_available = lambda: None
    Answer().__enter__()  # type: ignore[no-untyped-call]


class _Trained:
    """A model and its optimizer in one layout."""

    def __init__(self, case: Case, tp: int, pp: int, seed: int, ep: int = 1) -> None:
        import torch  # noqa: PLC0415
        from megatron.core import parallel_state as groups  # noqa: PLC0415
        from megatron.core.distributed import (  # noqa: PLC0415
            DistributedDataParallel,
            DistributedDataParallelConfig,
        )
        from megatron.core.models.gpt import GPTModel  # noqa: PLC0415
        from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: PLC0415
            get_gpt_layer_local_spec,
        )
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: PLC0415
        from megatron.core.transformer.transformer_config import (  # noqa: PLC0415
            TransformerConfig,
        )

        groups.destroy_model_parallel()
        groups.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep)
        torch.manual_seed(seed)
        dtype = torch.bfloat16 if case.bf16 else torch.float32
        mixture: dict[str, Any] = {
            "num_moe_experts": case.experts,
            "moe_router_topk": 1,
            "moe_router_pre_softmax": True,
            "moe_grouped_gemm": case.grouped,
            "moe_use_legacy_grouped_gemm": case.grouped,
            "expert_model_parallel_size": ep,
        }
        config = TransformerConfig(
            num_layers=LAYERS, hidden_size=16, num_attention_heads=4, num_query_groups=2,
            ffn_hidden_size=32, gated_linear_unit=case.gated, add_bias_linear=not case.experts,
            normalization="RMSNorm", hidden_dropout=0.0, attention_dropout=0.0,
            use_cpu_initialization=True, tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp, pipeline_dtype=dtype, params_dtype=dtype,
            bf16=case.bf16, **(mixture if case.experts else {}),
        )  # fmt: skip
        spec = get_gpt_layer_local_spec(
            num_experts=case.experts or None,
            moe_grouped_gemm=case.grouped,
            moe_use_legacy_grouped_gemm=case.grouped,
            normalization="RMSNorm",
        )
        self.model = GPTModel(
            config, spec, PADDED, 8, pre_process=groups.is_pipeline_first_stage(),
            post_process=groups.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=case.tied,
        ).to(dtype)  # fmt: skip
        self.case = case
        self.optimizer: Any = None
        distributed = case.optimizer not in ("none", "plain")
        wrapped = DistributedDataParallel(
            config, DistributedDataParallelConfig(use_distributed_optimizer=distributed), self.model
        )
        wrapped.broadcast_params()
        if case.optimizer != "none":
            asked = OptimizerConfig(
                optimizer="adam", lr=0.01, bf16=case.bf16, params_dtype=dtype, clip_grad=0.0,
                use_distributed_optimizer=distributed,
            )  # fmt: skip
            self.optimizer = get_megatron_optimizer(asked, [wrapped])
        self._wrapped = wrapped

    def step(self) -> None:
        """One step of Megatron's optimizer, with gradients that are drawn."""
        import torch  # noqa: PLC0415

        self._wrapped.zero_grad_buffer()
        for parameter in self.model.parameters():
            parameter.main_grad.copy_(torch.randn(parameter.shape))
        self._wrapped.start_grad_sync()
        self._wrapped.finish_grad_sync()
        assert self.optimizer.step()[0]

    def state(self, *, loading: bool) -> dict[str, Any]:
        """Megatron's sharded state dict."""
        model = self.model.sharded_state_dict(metadata=self.case.metadata)
        found: dict[str, Any] = {"model": model}
        if self.optimizer is not None:
            found["optimizer"] = self.optimizer.sharded_state_dict(
                model, is_loading=loading, metadata=self.case.metadata
            )
        return found


def _save(case: Case, folder: Path, rank: int) -> None:
    import torch  # noqa: PLC0415
    from megatron.core import dist_checkpointing  # noqa: PLC0415
    from megatron.core import parallel_state as groups  # noqa: PLC0415
    from megatron.core.dist_checkpointing.mapping import ShardedObject  # noqa: PLC0415
    from megatron.core.dist_checkpointing.strategies.fully_parallel import (  # noqa: PLC0415
        FullyParallelSaveStrategyWrapper,
    )
    from megatron.core.dist_checkpointing.strategies.torch import (  # noqa: PLC0415
        TorchDistSaveShardedStrategy,
    )

    trained = _Trained(case, case.tp, case.pp, seed=1 + rank, ep=case.ep)
    for _ in range(2 if trained.optimizer is not None else 0):
        trained.step()
    stage, part = (groups.get_pipeline_model_parallel_rank(),
                   groups.get_tensor_model_parallel_rank())  # fmt: skip
    draws = [{"torch_rng_state": torch.get_rng_state()}]
    state = {
        **trained.state(loading=False),
        "args": argparse.Namespace(consumed_train_samples=SAMPLES, params_dtype=torch.float32),
        "iteration": 2,
        "opt_param_scheduler": {"num_steps": SAMPLES, "max_lr": 0.01},
        "rng_state": ShardedObject("rng_state", draws, (case.pp, case.tp), (stage, part),
                                   replica_id=groups.get_data_parallel_rank()),
    }  # fmt: skip
    strategy: Any = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
    if case.parallel:
        strategy = FullyParallelSaveStrategyWrapper(
            strategy, groups.get_data_parallel_group(with_context_parallel=True)
        )
    path = folder / case.name
    if rank == 0:
        path.mkdir()
    torch.distributed.barrier()
    dist_checkpointing.save(state, str(path), strategy, content_metadata=case.metadata)


def _load(case: Case, target: tuple[int, int], folder: Path, rank: int) -> None:
    import torch  # noqa: PLC0415
    from megatron.core import dist_checkpointing  # noqa: PLC0415

    trained = _Trained(case, *target, seed=100 + rank)
    if trained.optimizer is not None:
        trained.step()  # the distributed optimizer has no state to load into before
    state = trained.state(loading=True)
    wanted = {path: each for path, each in _leaves(state) if _parts(each, None)}
    loaded = dict(_leaves(dist_checkpointing.load(state, str(folder / case.name))))
    found = []
    for path, asked in wanted.items():
        for part in _parts(asked, loaded[path]):
            name, slot, start = _named(part)
            shape = (1,) * (len(start) - part.data.dim()) + tuple(part.data.shape)
            found.append((name, slot, start, part.data.clone().reshape(shape)))
    torch.save(found, folder / f"{case.name}.{target[0]}-{target[1]}.{rank}.pt")


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from _leaves(each, (*path, str(key)))
    else:
        yield path, value


def _parts(value: Any, loaded: Any) -> list[Any]:
    """The sharded tensors of a leaf, with what was loaded: two for the halves of a gated layer."""
    from megatron.core.dist_checkpointing.mapping import (  # noqa: PLC0415
        ShardedTensor,
        ShardedTensorFactory,
    )

    if isinstance(value, ShardedTensorFactory):
        built = (value if loaded is None else replace(value, data=loaded)).build()
        return list(built.values()) if isinstance(built, dict) else list(_listed(built))
    if isinstance(value, ShardedTensor):
        return [value if loaded is None else replace(value, data=loaded)]
    return []


def _listed(built: Any) -> Any:
    return built if isinstance(built, list | tuple) else [built]


def _named(part: Any) -> tuple[str, str, tuple[int, ...]]:
    """(name, state, start) of a sharded tensor, with its layer's number in the name."""
    name, state = part.key, "weight"
    if name.startswith("optimizer.state."):
        state, _, name = name.removeprefix("optimizer.state.").partition(".")
        state = "param" if state == "fp32_param" else state
    start = part.global_offset
    _, _, rest = name.partition(".layers.")
    if part.prepend_axis_num and rest and not rest[0].isdigit():
        name = name.replace(".layers.", f".layers.{start[0]}.", 1)
        start = start[1:]
    return name, state, tuple(start)


def _rank(rank: int, ranks: int, folder: Path, cases: list[Case]) -> None:
    """One rank; it returns, so that what Megatron's writer started is ended by Python."""
    import torch.distributed as dist  # noqa: PLC0415

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks
    )
    _without_cuda()
    for case in cases:
        _save(case, folder, rank)
        for target in case.targets:
            _load(case, target, folder, rank)
    dist.barrier()


def main() -> int:
    """Fork the ranks once Megatron is imported."""
    folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
    told = [json.loads(each) for each in sys.argv[3:]]
    cases = [Case(**{**each, "targets": tuple(map(tuple, each["targets"]))}) for each in told]
    import warnings  # noqa: PLC0415

    warnings.simplefilter("ignore")
    import torch  # noqa: PLC0415
    from megatron.core.dist_checkpointing.strategies import fully_parallel  # noqa: F401, PLC0415
    from megatron.core.models.gpt import gpt_layer_specs  # noqa: F401, PLC0415
    from megatron.core.optimizer import optimizer  # noqa: F401, PLC0415

    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=_rank, args=(rank, ranks, folder, cases)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    left: dict[Any, Any] = {process.sentinel: process for process in processes}
    while left:
        for sentinel in multiprocessing.connection.wait(list(left)):
            if left.pop(sentinel).exitcode:
                for each in left.values():
                    each.terminate()
    return max(abs(process.exitcode or 0) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
