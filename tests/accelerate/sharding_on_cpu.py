"""FSDP2 of Accelerate on the CPU, where it leaves its own plugin aside and says nothing.

Accelerate 1.15 takes an FSDP plugin in a branch for GPUs and their like (`AcceleratorState`); under
gloo the script would be trained by DDP. What that branch sets is set here; all that follows from
it (wrapping, preparing, accumulating, clipping) is Accelerate's.
"""

import functools
import os
from typing import Any

from accelerate.state import AcceleratorState, DistributedType, PartialState
from accelerate.utils import other


def take_plugin_on_cpu() -> None:
    """Let Accelerate take an FSDP plugin under gloo too."""
    os.environ["ACCELERATE_USE_CPU"] = "true"  # as `accelerate launch --cpu` does
    # Else it imports DeepSpeed, which is there for other tests, in each rank.
    other.is_deepspeed_available = lambda: False
    begin = AcceleratorState.__init__

    @functools.wraps(begin)
    def begun(self: Any, *args: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        begin(self, *args, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            PartialState._shared_state["distributed_type"] = self.distributed_type

    AcceleratorState.__init__ = begun
