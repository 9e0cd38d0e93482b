"""For training code: time a gradient synchronisation that the code does by hand.

    from jobsubmit.profiling import sync

    with sync():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

Every process of a job can import it, even if jobsubmit is not installed on the node.
"""

from __future__ import annotations

from jobsubmit.agent.timing.manual_sync import sync

__all__ = ["sync"]
