"""All that a comparison of processes finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.processes.asking import check_asking
from jobsubmit.check.processes.deciding import check_deciding, check_judging, check_scheduling
from jobsubmit.check.processes.dividing import check_dividing, check_parts_of_nodes
from jobsubmit.check.processes.exchanging import check_exchanging
from jobsubmit.check.processes.gpus import check_gpus_taken, check_spread_models
from jobsubmit.check.processes.joining import check_groups, check_joining, check_joining_twice
from jobsubmit.check.processes.loading import check_epochs_set, check_loading, check_sampler_of_all
from jobsubmit.check.processes.meeting import check_leaving_alone, check_meeting
from jobsubmit.check.processes.numbers import check_divisors, check_failing
from jobsubmit.check.processes.optimizers import check_optimizers_first
from jobsubmit.check.processes.places import check_places
from jobsubmit.check.processes.scaling import check_scales
from jobsubmit.check.processes.starting import check_nested, check_pickling
from jobsubmit.check.processes.states import check_states
from jobsubmit.check.processes.unset import check_unset
from jobsubmit.check.processes.wrapping import check_bypassing, check_keys, check_places_of_models
from jobsubmit.check.processes.writing import check_downloads_beyond, check_reading_beyond, check_writing
from jobsubmit.common.finding import Finding

OF_PROCESSES: tuple[Callable[[Code], Iterator[Finding]], ...] = (
    *(check_meeting, check_leaving_alone, check_joining, check_joining_twice, check_groups, check_asking),
    *(check_unset, check_places, check_gpus_taken, check_spread_models, check_nested, check_pickling),
    *(check_dividing, check_parts_of_nodes, check_loading, check_sampler_of_all, check_epochs_set),
    *(
        check_writing,
        check_downloads_beyond,
        check_reading_beyond,
        check_optimizers_first,
        check_divisors,
        check_failing,
    ),
    *(
        check_scales,
        check_bypassing,
        check_places_of_models,
        check_keys,
        check_states,
        check_exchanging,
        check_deciding,
        check_judging,
        check_scheduling,
    ),
)
