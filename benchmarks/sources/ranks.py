"""Four ranks that save every case, and later load it again in two other layouts.

Per case: FOLDER/<case>/ is the checkpoint, FOLDER/<case>.pt what the ranks held, whole, by
"<name>|<state>", gathered from the modules and optimizers themselves; or FOLDER/<case>.said, why
the producer cannot make it.
"""

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from benchmarks.sources.cases import (
    DTYPES,
    LAYOUTS,
    OPTIMIZERS,
    SHARDED,
    Case,
    Net,
    Trained,
    cases,
    step,
)
from wattmesh.reconfig.checkpoint.dcp import UniversalReader

RANKS = 4
Held = dict[str, torch.Tensor]


def launch(act: Callable[[Path], None], folder: Path) -> int:
    """Fork the ranks and let each act; the number that failed."""
    pids = [_start(rank, act, folder) for rank in range(RANKS)]
    return sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)


def _start(rank: int, act: Callable[[Path], None], folder: Path) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
            # Accelerate asks for them, though the group is there already.
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
            where = f"file://{folder}/{act.__name__}.store"
            dist.init_process_group("gloo", init_method=where, rank=rank, world_size=RANKS)
            act(folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    return pid


def save_all(folder: Path) -> None:
    """Save every case."""
    meshes = {name: init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
              for name, shape in LAYOUTS.items()}  # fmt: skip
    for case in cases():
        if case.producer == "transformers":
            continue
        said, kept = "", {}
        try:
            kept = _saved(case, meshes[case.layout], folder / case.folder)
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        every: list[Any] = [None] * RANKS
        dist.all_gather_object(every, said)
        if dist.get_rank() == 0:
            if told := next((each for each in every if each), ""):
                (folder / f"{case.folder}.said").write_text(told)
            else:
                torch.save(kept, folder / f"{case.folder}.pt")
        dist.barrier()


def _saved(case: Case, mesh: DeviceMesh, path: Path) -> Held:
    if case.form in SPECIAL:
        return SPECIAL[case.form](case, mesh, path)
    trained = _trained(case, mesh)
    if case.producer == "accelerate":
        return _accelerate(trained, path)
    model = get_model_state_dict(trained.model)
    if case.producer == "torch Hugging Face":
        save(model, storage_writer=HuggingFaceStorageWriter(str(path), save_distributed=True))
        return {key: each for key, each in held(trained).items() if key.endswith("|param")}
    state = {"model": model, "optim": _form(case.form, trained)}
    save(state, storage_writer=_writer(case.producer, path))
    return held(trained)


def _writer(producer: str, path: Path) -> FileSystemWriter:
    if producer == "torch safetensors":
        return FileSystemWriter(path, serialization_format=SerializationFormat.SAFETENSORS)
    if producer == "torch zstd":
        return FileSystemWriter(path, _extensions=[ZStandard()])
    return FileSystemWriter(path)


def _form(form: str, trained: Trained) -> Any:
    (optimizer,) = trained.optimizers
    if form.startswith("numbered"):
        return optimizer.state_dict()
    options = StateDictOptions(flatten_optimizer_state_dict=form == "flat")
    return get_optimizer_state_dict(trained.model, optimizer, options=options)


def _sharded(case: Case, mesh: DeviceMesh, seed: int = 0) -> nn.Module:
    model = Net(DTYPES[case.dtype], seed)
    if case.layout not in SHARDED:
        return model
    if mesh.size(1) > 1:
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                where = Shard(1) if parameter.dim() > 1 and parameter.shape[1] % 2 == 0 else None
                placed = distribute_tensor(parameter.detach(), mesh["tp"], [where or Replicate()])
                module.register_parameter(name, nn.Parameter(placed))
    fully_shard(model, mesh=mesh["dp"])
    return model


def _trained(case: Case, mesh: DeviceMesh, seed: int = 0, without: str = "") -> Trained:
    model = _sharded(case, mesh, seed)
    named = case.form == "numbered, named"
    params = model.named_parameters() if named else model.parameters()
    return step(Trained(model, [OPTIMIZERS[case.optimizer](params)]), without)


def _whole(value: Any) -> torch.Tensor:
    full = value.full_tensor() if isinstance(value, DTensor) else value
    copy: torch.Tensor = full.detach().clone().contiguous()
    return copy


def held(trained: Trained) -> Held:
    """What the ranks hold, whole, without torch's state dicts."""
    found = {f"{name}|param": _whole(each) for name, each in trained.model.named_parameters()}
    found |= {f"{name}|param": _whole(each) for name, each in trained.model.named_buffers()}
    for optimizer in trained.optimizers:
        for parameter, slots in optimizer.state.items():
            name = trained.names[id(parameter)]
            found |= {f"{name}|{slot}": _whole(each) for slot, each in slots.items()
                      if isinstance(each, torch.Tensor)}  # fmt: skip
    return found


def _pair(trained: Trained, form: str = "flat") -> tuple[Any, Any]:
    return get_model_state_dict(trained.model), _form(form, trained)


def _without_gradient(case: Case, mesh: DeviceMesh, path: Path) -> Held:
    trained = _trained(case, mesh, without="layers.1.bias")
    model, optim = _pair(trained)
    save({"model": model, "optim": optim}, checkpoint_id=path)
    return held(trained)


def _average(case: Case, mesh: DeviceMesh, path: Path) -> Held:
    trained = _trained(case, mesh)
    model, optim = _pair(trained)
    with torch.no_grad():
        ema = {key: value.clone() * 0.75 for key, value in model.items()}
    save({"model": model, "optim": optim, "ema": ema}, checkpoint_id=path)
    declared = "declared" in case.form
    found = {(f"{key}|average.ema" if declared else f"ema.{key}|extra"): _whole(each)
             for key, each in ema.items()}  # fmt: skip
    return {**held(trained), **found}


def _two_models(case: Case, mesh: DeviceMesh, path: Path) -> Held:
    one, other = _trained(case, mesh), _trained(case, mesh, seed=1)
    state: dict[str, Any] = {}
    for name, trained in (("gen", one), ("disc", other)):
        state[name], state[f"{name}_optim"] = _pair(trained)
    save(state, checkpoint_id=path)
    beside = {}
    for key, each in held(other).items():
        name, _, slot = key.rpartition("|")
        whole = f"disc.{name}" if slot == "param" else f"disc_optim.state.{name}.{slot}"
        beside[f"{whole}|extra"] = each
    return {**held(one), **beside}


def _two_optimizers(case: Case, mesh: DeviceMesh, path: Path) -> Held:
    model = _sharded(case, mesh)
    params = list(model.parameters())
    optimizers = [OPTIMIZERS["adamw"](params[:3]), OPTIMIZERS["sgd-momentum"](params[3:])]
    trained = step(Trained(model, optimizers))
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    for number, optimizer in enumerate(optimizers):
        state[f"optimizer_{number}"] = get_optimizer_state_dict(model, optimizer, options=options)
    save(state, checkpoint_id=path)
    return held(trained)


def _buffers(case: Case, mesh: DeviceMesh, path: Path) -> Held:
    trained = _trained(case, mesh)
    values = torch.tensor([0.5, 1.0, 2.0, 8.0])
    kinds = ("complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
             "float8_e5m2fnuz", "float8_e8m0fnu")  # fmt: skip
    for kind in kinds:
        trained.model.register_buffer(kind, values.to(getattr(torch, kind)))
    model, optim = _pair(trained)
    save({"model": model, "optim": optim}, checkpoint_id=path)
    return held(trained)


def _folders(case: Case, mesh: DeviceMesh, path: Path) -> Held:
    """The calls of accelerate.utils.fsdp_utils with SHARDED_STATE_DICT."""
    trained = _trained(case, mesh)
    model, optim = _pair(trained, "nested")
    save({"model": model}, storage_writer=FileSystemWriter(path / "pytorch_model_fsdp_0"))
    save({"optimizer": optim}, storage_writer=FileSystemWriter(path / "optimizer_0"))
    return held(trained)


def _accelerate(trained: Trained, path: Path) -> Held:
    """Accelerate's own functions, as `Accelerator.save_state` calls them under FSDP2."""
    # Only here: it is no part of the tests' environment.
    accelerate: Any = importlib.import_module("accelerate")
    fsdp_utils: Any = importlib.import_module("accelerate.utils.fsdp_utils")
    from torch.distributed.fsdp import StateDictType  # noqa: PLC0415

    accelerate.PartialState(cpu=True)
    plugin = SimpleNamespace(
        state_dict_type=StateDictType.SHARDED_STATE_DICT,
        fsdp_version=2,
        state_dict_config=SimpleNamespace(offload_to_cpu=False, rank0_only=False),
    )
    rank = dist.get_rank()
    accelerator = SimpleNamespace(
        num_processes=RANKS, process_index=rank, is_main_process=rank == 0,
        wait_for_everyone=dist.barrier, unwrap_model=lambda model: model,
    )  # fmt: skip
    (optimizer,) = trained.optimizers
    fsdp_utils.save_fsdp_model(plugin, accelerator, trained.model, str(path))
    fsdp_utils.save_fsdp_optimizer(plugin, accelerator, optimizer, trained.model, str(path))
    return held(trained)


def _lightning(case: Case, mesh: DeviceMesh, path: Path) -> Held:
    """What ModelParallelStrategy.save_checkpoint does."""
    trained = _trained(case, mesh)
    model, optim = _pair(trained, "nested")
    save({"state_dict": model, "optimizer_0": optim}, checkpoint_id=path)
    if dist.get_rank() == 0:
        torch.save({"epoch": 1, "global_step": 2, "loops": {"fit_loop": {}}}, path / "meta.pt")
    dist.barrier()
    return held(trained)


SPECIAL: Mapping[str, Callable[[Case, DeviceMesh, Path], Held]] = {
    "a parameter without gradient": _without_gradient,
    "an average beside": _average,
    "an average beside, declared": _average,
    "two models": _two_models,
    "two optimizers": _two_optimizers,
    "complex and float8 buffers": _buffers,
    "torch's call of Accelerate": _folders,
    "torch's call of Lightning": _lightning,
}


def load_all(folder: Path) -> None:
    """Load every converted case in two layouts; FOLDER/<case>.loaded says what differs."""
    pair = init_device_mesh("cpu", (2, 2))
    flat = init_device_mesh("cpu", (4,))
    layouts: tuple[tuple[DeviceMesh, tuple[Any, ...]], ...] = (
        (flat, (Shard(0),)),
        (pair, (Shard(0), Shard(1))),
    )
    for case in cases():
        converted = folder / f"{case.folder}.uc"
        if not converted.is_dir():
            continue
        kept = torch.load(folder / f"{case.folder}.pt", weights_only=True)
        wrong: list[str] = []
        for mesh, placements in layouts:
            try:
                wrong += _loaded(converted, kept, mesh, placements)
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}"[:200])
        every: list[Any] = [None] * RANKS
        dist.all_gather_object(every, wrong)
        if dist.get_rank() == 0:
            text = "\n".join(each for part in every for each in part)
            (folder / f"{case.folder}.loaded").write_text(text)


def _loaded(path: Path, kept: Held, mesh: DeviceMesh, placements: tuple[Any, ...]) -> list[str]:
    """Keys that differ from what was held once they are loaded in a layout."""
    wanted: dict[str, torch.Tensor] = {}
    state: dict[str, Any] = {}
    for key, whole in kept.items():
        name, _, slot = key.rpartition("|")
        if slot == "extra" or slot.startswith("average."):
            continue
        fqn = f"model.{name}" if slot == "param" else f"optim.state.{name}.{slot}"
        mine = [each if each.dim < whole.dim() else Replicate() for each in placements]
        local = whole
        for axis, where in enumerate(mine):
            if isinstance(where, Shard):
                parts = torch.chunk(local, mesh.size(axis), where.dim)
                at = mesh.get_local_rank(axis)
                empty = local.narrow(where.dim, 0, 0)
                local = parts[at] if at < len(parts) else empty
        wanted[fqn] = local.contiguous()
        zeros = torch.empty_like(wanted[fqn])
        zeros.view(-1).view(torch.uint8).zero_()
        state[fqn] = DTensor.from_local(
            zeros, mesh, mine, run_check=False, shape=whole.shape, stride=whole.stride()
        )
    load(state, storage_reader=UniversalReader(path))
    return [fqn for fqn, local in wanted.items() if not _same(state[fqn].to_local(), local)]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = (each.contiguous().view(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(*bits)
