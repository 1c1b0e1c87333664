"""What a parameter is called whatever wraps the module that holds it."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def canonical(name: str) -> str:
    """A parameter's name without what torch.compile and checkpoint wrappers put into it."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """A module's parameters by the names that a state dict gives them, each once."""
    wrapped = [
        f"{name}." if name else ""
        for name, each in module.named_modules()
        if isinstance(each, DistributedDataParallel)
    ]
    found = {}
    for told, parameter in module.named_parameters():
        name = told
        # The innermost first: what is cut there leaves the outer prefixes as they are.
        for prefix in reversed(wrapped):
            if name.startswith(f"{prefix}module."):
                name = prefix + name[len(prefix) + len("module.") :]
        found[canonical(name)] = parameter
    return found
