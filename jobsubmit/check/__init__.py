"""What can be known about a job before anything is sent: offline, and without importing the user's code."""

from jobsubmit.check.data import check_data
from jobsubmit.check.job import check_code
from jobsubmit.check.secrets import check_secrets, holds_secret

__all__ = ["check_code", "check_data", "check_secrets", "holds_secret"]
