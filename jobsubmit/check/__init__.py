"""What can be known about a job before anything is sent: offline, and without importing the user's code."""

from jobsubmit.check.data import check_data
from jobsubmit.check.job import check_code
from jobsubmit.check.secrets import RULES_DIGEST, check_secrets, clean_digests, without_secrets

__all__ = ["RULES_DIGEST", "check_code", "check_data", "check_secrets", "clean_digests", "without_secrets"]
