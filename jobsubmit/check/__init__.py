"""What can be known about a job before anything is sent: offline, and without importing the user's code."""

from jobsubmit.check.boot_file import check_boot_file
from jobsubmit.check.data import check_data
from jobsubmit.check.finding import Finding, Level

__all__ = ["Finding", "Level", "check_boot_file", "check_data"]
