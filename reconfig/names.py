"""What a parameter is called whatever wraps the module that holds it."""


def canonical(name: str) -> str:
    """A parameter's name without what torch.compile and checkpoint wrappers put into it."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")
