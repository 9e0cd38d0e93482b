"""A second user of this machine; only root can be one."""

from __future__ import annotations

import os

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as a second user")
