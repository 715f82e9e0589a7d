"""A job is classified in the folder of its test."""

import pytest

from tests.classified_jobs import SUBJECT, classified


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)
