"""Runs scripts of tpu_scripts against the service of fake_cloud.py."""

import os
import pathlib
import shlex
import signal
import subprocess

from tests.tpu_scripts.fake_cloud import CLIENT, Service

SCRIPTS = pathlib.Path(__file__).parent.parent.parent / "tpu_scripts"
ZONE = "--zone=us-central1-a"
ACCOUNT = "--service_account=trainer@p.iam.gserviceaccount.com"
# What jobs need beside --model_dir.
DATA = ("--records_dir=gs://b/records", "--vocabulary=gs://b/sentencepiece.model")
TASK = ("--task=t", "--data_dir=gs://b/d")
PRETRAIN = " ".join(("pretrain", *DATA))
FINETUNE = " ".join(("finetune", *TASK))
NO_QUOTA = (
    "Quota limit 'TPUV3sPodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in "
    "zone us-central1-a."
)
NO_ROOM = 'There is no more capacity in the zone "us-central1-a"'
# It answers what host_install.sh asks a Python, which is faster.
PYTHON = """
case "$*" in
  -) if grep -q RECORD; then echo 2.15.0 abc; else echo "numpy>=1.26"; fi ;;
  *"decoupled tpu_health"*) exit "$(cat {folder}/health)" ;;
  *"decoupled doctor"|*" pip "*) ;;
  *) {client} ;;
esac"""


# A new environment's Python is the python3 above.
UV = """
echo "uv $*" >>decoupled_uv.log
[ "$1" = venv ] || exit 0
mkdir -p decoupled_env/bin
printf '#!/bin/sh\\nexec python3 "$@"\\n' >decoupled_env/bin/python
chmod +x decoupled_env/bin/python"""


def _default_signals():
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


class Cloud:
    """A service of its own in `folder`; fake_cloud.py says what `state` may hold."""

    def __init__(self, folder, **state):
        self.folder = folder
        (folder / "bin").mkdir()
        defaults = {"lives": [{}], "runs": [["save 10"]], "slices": {}}
        self._service = Service(folder, {**defaults, **state})
        self.state, self.change = self._service.state, self._service.change
        gcloud, python3 = (
            CLIENT.format(port=self._service.port, program=program)
            for program in ("gcloud", "python3")
        )
        self.program("gcloud", gcloud)
        self.program("python3", PYTHON.format(client=python3, folder=folder))
        self.program("ssh-add", "exit 0")
        self.program("uv", UV)
        self.program("curl", 'echo "$FAKE_WORKER"')
        # It fails where a folder is missing, as /dev/vfio without a chip.
        devices = f"{folder}/devices"
        self.program("find", f"cat {devices}; [ $1 = /dev ] || [ -s {devices} ]")
        self.devices(4)
        self.health(0)

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    def health(self, code):
        """Sets the exit code of tpu_health on the hosts."""
        (self.folder / "health").write_text(str(code))

    def devices(self, count):
        """Sets the number of chips of each host."""
        lines = (f"/dev/vfio/{number}\n" for number in range(count))
        (self.folder / "devices").write_text("".join(lines))

    def environment(self, **changes):
        """The variables of a script without waits, and with `changes`."""
        return {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "USER": "Ada",
            "DECOUPLED_TPU_POLL": "0.05",
            "DECOUPLED_TPU_BACKOFF": "0",
            "DECOUPLED_TPU_HEARTBEAT": "0.2",
            "DECOUPLED_TPU_GRACE": "60",
            **changes,
        }

    def run(self, script, *options, **environment):
        return subprocess.run(
            [SCRIPTS / script, *options],
            capture_output=True,
            text=True,
            env=self.environment(**environment),
            timeout=60,
        )

    def start(self, script, *options, output=subprocess.PIPE, **environment):
        """The running script, for tests that send it signals."""
        return subprocess.Popen(
            [SCRIPTS / script, *options],
            stdout=output,
            stderr=output,
            text=True,
            env=self.environment(**environment),
            # bash cannot trap what whoever started the tests ignores, as nohup does.
            preexec_fn=_default_signals,
        )

    def calls(self, *words, program="gcloud"):
        """The calls of a program so far that have all these words."""
        calls = self._service.calls()
        return [c[1:] for c in calls if c[0] == program and set(words) <= set(c)]

    def file(self, url):
        return self.folder / "gs" / url.removeprefix("gs://")

    def log(self, url):
        """What all starts of a job printed, in their order."""
        paths = sorted(self.file(f"{url}/tpu_job").glob("log-*.txt"))
        return "".join(path.read_text() for path in paths)

    def close(self):
        """Ends what still runs on the hosts, and the service."""
        for process in self.folder.glob("hosts/*/decoupled_job/process"):
            try:
                os.killpg(int(process.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._service.close()


def dry_run(script, *options):
    """The commands that a dry run shows, as argument lists, without comments."""
    # --dry-run stands before the flags of a job. This machine's gcloud is never asked.
    process = subprocess.run(
        [SCRIPTS / script, "--dry-run", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "CLOUDSDK_PYTHON": "/no/gcloud/in/a/dry/run"},
    )
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stdout.splitlines() if not line.startswith("#")]
    return [shlex.split(line) for line in lines]
