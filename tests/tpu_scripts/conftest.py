"""A Cloud TPU service of a test's own."""

import pytest

from tests.tpu_scripts.cloud import Cloud


@pytest.fixture
def make_cloud(tmp_path):
    """Makes the service; ends at the end what still runs on its hosts."""
    made = []

    def make(**state):
        made.append(Cloud(tmp_path, **state))
        return made[-1]

    yield make
    for cloud in made:
        cloud.close()
