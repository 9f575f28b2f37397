"""A Cloud TPU service of a test's own."""

import pytest

from tests.tpu_scripts.cloud import Cloud


@pytest.fixture
def make_cloud(tmp_path):
    """Makes the service; after the test it ends what still runs on its hosts."""
    clouds = []

    def make(**state):
        clouds.append(Cloud(tmp_path, **state))
        return clouds[-1]

    yield make
    for cloud in clouds:
        cloud.close()
