"""The tasks that `finetune` knows, by name."""

from typing import NamedTuple


class TaskFiles(NamedTuple):
    """Where a classification task lies below --data_dir, and what it asks."""

    folder: str
    question: str


TASKS = {
    "catalogs": TaskFiles("catalogs", "which catalog a message comes from"),
}
