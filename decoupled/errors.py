"""The exceptions that a user is meant to read."""


class UserError(Exception):
    """Something the user can mend: the message says what, where, and what to do.

    Commands print it in one line, without a traceback, and exit with code 2
    (`decoupled.launch`). Everything else that is raised is a defect of ours and keeps
    its traceback.
    """


class Terminated(Exception):
    """SIGTERM came; the run has saved a checkpoint, and the same command goes on.

    Commands print the message in one line and exit with code 143 (`decoupled.launch`).
    """


# Of the driver whose worker died; a supervisor starts both again.
WORKER_LOST_CODE = 75


class WorkerLost(Exception):
    """A process that a mesh spans is gone; the run can go on from its checkpoint.

    Commands print the message in one line and exit with code 75 (`decoupled.launch`).
    """
