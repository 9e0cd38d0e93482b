"""For training code: time a gradient synchronisation that it does by hand.

    from jobsubmit.profiling import sync

    with sync():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

It is there in every process of a job, whether jobsubmit is installed on the node or not.
"""

from __future__ import annotations

from jobsubmit.agent.timing.manual_sync import sync

__all__ = ["sync"]
