"""Names of parameters, independent of wrappers around their modules."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def canonical(name: str) -> str:
    """Remove the parts of a name that torch.compile and checkpoint wrappers add."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return a module's parameters by their names in a state dict, each once."""
    wrapped = [
        f"{name}." if name else ""
        for name, each in module.named_modules()
        if isinstance(each, DistributedDataParallel)
    ]
    found = {}
    for told, parameter in module.named_parameters():
        name = told
        # The innermost first, because cutting it leaves the outer prefixes unchanged.
        for prefix in reversed(wrapped):
            if name.startswith(f"{prefix}module."):
                name = prefix + name[len(prefix) + len("module.") :]
        found[canonical(name)] = parameter
    return found
