"""The variables that a job file must not set, and that nothing around a job may leave to it: one list for both.

They are the launcher's and the platform's own words, or they steer the shell that runs the start script.
"""

from __future__ import annotations

import re

LAUNCHER = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NNODES",
    "NODE_RANK",
    "NPROC_PER_NODE",
    "NODE_ADDR",
    "RDZV_ID",
)
LAUNCHER_PREFIXES = ("PET_", "TORCHELASTIC_")  # torchrun reads each of its options from PET_… (torch.distributed.run)
PLATFORM_PREFIXES = ("MA_", "VC_", "JOBSUBMIT_", "jobsubmit_")
SHELL = ("BASHOPTS", "SHELLOPTS", "BASH_ENV", "CDPATH", "IFS", "PS4", "BASH_VERSINFO", "UID", "EUID", "PPID")
SHELL_PREFIXES = ("BASH_FUNC_",)
PREFIXES = (*LAUNCHER_PREFIXES, *PLATFORM_PREFIXES, *SHELL_PREFIXES)

RESERVED = re.compile("(%s).*|%s" % ("|".join(PREFIXES), "|".join((*LAUNCHER, *SHELL))), re.DOTALL)
