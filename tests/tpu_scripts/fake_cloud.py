"""A Cloud TPU service and its hosts on this machine, for the scripts of tpu_scripts.

The programs gcloud and, on hosts, python3 are the few lines of `CLIENT`: a launch calls
them some 20 times, and a Python would take longer to start than all else. They ask a
thread of the test, whose answer is what their shell then does. `python3 -m decoupled
NAME ...` is a short imitation of training.

Below the service's folder are gs/ (the buckets), hosts/NAME (the home folder of a
slice's first host) and hosts/NAME.N (of its other hosts). Its state holds

  lives: one dict per creation, the last also for those after it:
    error: gcloud's message; nothing is created.
    lost_answer: gcloud's message after the creation.
    states: of the queued resource (or node), one per question; the last stays.
    message: why the request failed.
    lost: [step, state]: once that checkpoint is saved, the slice gets this state and
      its hosts are gone.
    hosts: how many there are; all by default.
  runs: a list per start of a job, e.g. ["save 10", "exit 0"]: actions in turn; "hang",
    "evaluate", "of 20", a line of progress, "save 10 FOLDER", one below the run's, and
    "await 3", for as many logs of other hosts, are more.
  delete_error, describe_error, read_error, write_error: what gcloud then says instead.
  silent: how often hosts do not answer when they are asked what runs there.
"""

import copy
import glob
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import threading
import traceback

CLIENT = """
exec 3<>/dev/tcp/127.0.0.1/{port}
printf '%s\\0' "$#" "${{FAKE_WORKER:-0}}" "$PWD" {program} "$@" >&3
IFS= read -r -d '' answer <&3
exec 3>&-
eval "$answer"
"""
# The options of gcloud 528 for the commands of the scripts; any other is an error.
COMMON_OPTIONS = {"--format", "--project", "--quiet"}
ZONE_OPTIONS = COMMON_OPTIONS | {"--zone"}
CREATION_OPTIONS = ZONE_OPTIONS | {
    "--accelerator-type",
    "--internal-ips",
    "--labels",
    "--network",
    "--scopes",
    "--service-account",
    "--spot",
}
CONNECTION_OPTIONS = ZONE_OPTIONS | {"--worker", "--internal-ip"}
OPTIONS = {
    "queued-resources create": CREATION_OPTIONS
    | {"--node-id", "--runtime-version", "--valid-until-duration"},
    "queued-resources delete": ZONE_OPTIONS | {"--force", "--async"},
    "queued-resources describe": ZONE_OPTIONS,
    "queued-resources list": ZONE_OPTIONS | {"--filter"},
    "tpu-vm create": CREATION_OPTIONS | {"--version", "--preemptible"},
    "tpu-vm delete": ZONE_OPTIONS | {"--async"},
    "tpu-vm describe": ZONE_OPTIONS,
    "tpu-vm list": ZONE_OPTIONS | {"--filter"},
    "tpu-vm scp": CONNECTION_OPTIONS | {"--recurse"},
    "tpu-vm ssh": CONNECTION_OPTIONS | {"--command"},
    "storage cat": COMMON_OPTIONS,
    "storage cp": COMMON_OPTIONS,
    "storage ls": COMMON_OPTIONS,
    "storage rsync": COMMON_OPTIONS | {"--recursive", "--exclude"},
}


class GcloudError(Exception):
    """gcloud ends with this message and code 1."""


class Service:
    """Answers `CLIENT` until it is closed."""

    def __init__(self, folder, state):
        self._folder, self._state, self._calls = str(folder), state, []
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def state(self):
        with self._lock:
            return copy.deepcopy(self._state)

    def change(self, **values):
        """Replaces parts of the state."""
        with self._lock:
            self._state.update(values)

    def calls(self):
        """[program, argument, ...] of every call so far."""
        with self._lock:
            return list(self._calls)

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                request = _read_request(connection)
                if not request:
                    # A test has ended whoever called.
                    continue
                worker, folder, program, *words = request
                with self._lock:
                    self._calls.append([program, *words])
                    try:
                        answer = self._answer(program, words, worker, folder)
                    except GcloudError as error:
                        answer = _printf(f"ERROR: (gcloud) {error}\n", 2) + "exit 1\n"
                    except Exception:
                        answer = _printf(traceback.format_exc(), 2) + "exit 70\n"
                connection.sendall(answer.encode())

    def _answer(self, program, words, worker, folder):
        if program == "python3":
            # Hosts after the first have nothing to do.
            return self._train(words[2:]) if worker == "0" else ""
        start = 2 if words[:2] == ["compute", "tpus"] else 0
        name, arguments = " ".join(words[start : start + 2]), words[start + 2 :]
        options = dict(w.partition("=")[::2] for w in arguments if w.startswith("--"))
        if unknown := set(options) - OPTIONS[name]:
            raise GcloudError(f"unrecognized arguments: {' '.join(unknown)}")
        group, verb = name.split()
        names = [word for word in arguments if not word.startswith("--")]
        if group == "storage":
            return self._store(verb, *names, folder=folder)
        return getattr(self, f"_{verb}")(group == "queued-resources", names, options)

    def _home(self, name, worker=0):
        return f"{self._folder}/hosts/{name}" + (f".{worker}" if worker else "")

    def _homes(self, name):
        return [self._home(name), *glob.glob(self._home(name) + ".*")]

    def _remove_homes(self, name):
        for home in self._homes(name):
            shutil.rmtree(home, ignore_errors=True)

    def _create(self, is_queued, words, options):
        life = next_of(self._state, "lives")
        if "error" in life:
            raise GcloudError(life["error"])
        labels = dict(pair.split("=") for pair in options["--labels"].split(","))
        default = ["ACTIVE"] if is_queued else ["READY"]
        states = list(life.get("states", default))
        slice_ = {**life, "queued": is_queued, "labels": labels, "states": states}
        slice_["type"] = options["--accelerator-type"]
        slice_["image"] = options["--runtime-version" if is_queued else "--version"]
        slice_.setdefault("hosts", count_hosts(slice_["type"]))
        self._state["slices"][words[0]] = slice_
        for worker in range(slice_["hosts"]):
            os.makedirs(self._home(words[0], worker))
        if "lost_answer" in life:
            raise GcloudError(life["lost_answer"])
        return ""

    def _describe(self, is_queued, words, options):
        if self._state.get("describe_error"):
            raise GcloudError(self._state["describe_error"])
        name = words[0]
        slice_ = self._state["slices"].get(name)
        if slice_ is not None and slice_["states"][0] == "DELETED":
            slice_ = None
        if slice_ is None or (is_queued and not slice_["queued"]):
            raise GcloudError(f"NOT_FOUND: Resource '{name}' was not found")
        if "runtimeVersion" in options["--format"]:
            return _printf("{type}|{image}|{hosts}\n".format(**slice_))
        self._lose(name, slice_)
        state = slice_["states"][0]
        if is_queued == slice_["queued"] and len(slice_["states"]) > 1:
            slice_["states"].pop(0)
        if is_queued:
            fields = [state, slice_["labels"]["project"], slice_.get("message", "")]
        else:
            node_state = "READY" if state == "ACTIVE" else state
            fields = [node_state, slice_["labels"]["project"], "HEALTHY"]
        return _printf("|".join(fields) + "\n")

    def _lose(self, name, slice_):
        """Takes a slice away if it is lost by now."""
        if "lost" not in slice_:
            return
        step, end = slice_["lost"]
        paths = glob.glob(f"{self._folder}/gs/*/*/checkpoint")
        if max(map(step_of, paths), default=0) >= step:
            slice_["states"] = [end]
            self._kill_hosts(name)
            self._remove_homes(name)

    def _kill_hosts(self, name):
        """Ends what runs on a slice's hosts, without a warning."""
        for home in self._homes(name):
            path = f"{home}/decoupled_job/process"
            if os.path.exists(path):
                with open(path) as handle:
                    process = int(handle.read())
                try:
                    os.killpg(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def _delete(self, is_queued, words, options):
        if self._state.get("delete_error"):
            raise GcloudError(self._state["delete_error"])
        if words[0] not in self._state["slices"]:
            raise GcloudError(f"NOT_FOUND: Resource '{words[0]}' was not found")
        del self._state["slices"][words[0]]
        if "--async" not in options:
            # A host that deletes its own slice has nobody left to tell.
            self._kill_hosts(words[0])
        self._remove_homes(words[0])
        return ""

    def _list(self, is_queued, words, options):
        slices = self._state["slices"].items()
        return _printf("".join(f"{name} {x['states'][0]}\n" for name, x in slices))

    def _ready_hosts(self, name, options):
        """Worker -> home folder, of the hosts of --worker."""
        slice_ = self._state["slices"].get(name)
        if slice_ is None or slice_["states"][0] not in ("ACTIVE", "READY"):
            raise GcloudError(f"TPU {name} is not in a usable state")
        first, _, last = options["--worker"].partition("-")
        if first == "all":
            first, last = 0, slice_["hosts"] - 1
        workers = range(int(first), int(last or first) + 1)
        return {worker: self._home(name, worker) for worker in workers}

    def _ssh(self, is_queued, words, options):
        """The hosts run the command; the largest exit code is that of all."""
        if options["--command"].endswith(" running") and self._state.get("silent"):
            self._state["silent"] -= 1
            return "exit 255\n"
        command = f"bash -c {shlex.quote(options['--command'])}\n"
        lines = [
            f"cd {shlex.quote(home)}\nHOME=$PWD FAKE_WORKER={worker} {command}"
            "last=$?; ((last > code)) && code=$last\n"
            for worker, home in self._ready_hosts(words[0], options).items()
        ]
        return "code=0\n" + "".join(lines) + "exit $code\n"

    def _scp(self, is_queued, words, options):
        name, _, folder = words[-1].partition(":")
        for home in self._ready_hosts(name, options).values():
            for source in words[:-1]:
                _copy(source, os.path.join(home, folder, os.path.basename(source)))
        return ""

    def _store(self, verb, *urls, folder):
        if verb in ("cat", "ls"):
            if self._state.get("read_error"):
                raise GcloudError(self._state["read_error"])
            paths = sorted(glob.glob(self._local(urls[0])))
            if not paths:
                message = f"The following URLs matched no objects or files:\n{urls[0]}"
                raise GcloudError(message)
            text = "".join(pathlib.Path(path).read_text() for path in paths)
            return _printf(text)
        if self._state.get("write_error") and urls[1].startswith("gs://"):
            raise GcloudError(self._state["write_error"])
        _copy(*(os.path.join(folder, self._local(url)) for url in urls))
        return ""

    def _local(self, url):
        return url.replace("gs://", f"{self._folder}/gs/", 1)

    def _train(self, flags):
        """Imitates a training program: resumes from its checkpoint, then acts."""
        options = dict(flag.partition("=")[::2] for flag in flags)
        folder = self._local(options["--model_dir"])
        checkpoint = f"{folder}/checkpoint"
        answer = _printf(f"starts at step {step_of(checkpoint)}\n")
        for action in next_of(self._state, "runs"):
            verb, _, number = action.partition(" ")
            if verb == "of":
                # A line of progress, with the number of all steps.
                answer += _printf(f"step {step_of(checkpoint)}/{number}\n")
            elif verb == "evaluate":
                with open(f"{folder}/eval.json", "w") as handle:
                    json.dump({"global_step": step_of(checkpoint)}, handle, indent=2)
            elif verb == "save":
                step, _, below = number.partition(" ")
                path = pathlib.Path(folder, below, "checkpoint")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
            elif verb == "await":
                logs = f"ls {shlex.quote(folder)}/tpu_job | grep -c host-"
                answer += f"until (($({logs}) >= {number})); do sleep 0.05; done\n"
            elif verb == "hang":
                answer += "exec sleep 60\n"
            elif verb == "exit":
                answer += _printf(f"ends with {number}\n") + f"exit {number}\n"
        return answer


def _read_request(connection):
    """The client's worker, folder, program and arguments."""
    request = b""
    # The first field counts the arguments; three others are before them.
    while request.count(b"\0") < 4 + int(request.partition(b"\0")[0] or 0):
        data = connection.recv(65536)
        if not data:
            break
        request += data
    return request.decode().split("\0")[1:-1]


def _printf(text, descriptor=1):
    return f"printf %s {shlex.quote(text)} >&{descriptor}\n"


def _copy(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def count_hosts(kind):
    """Of an accelerator type."""
    generation, _, size = kind.rpartition("-")
    if generation in ("v5litepod", "v6e"):
        return max(1, int(size) // 4) if int(size) != 8 else 1
    return int(size) // 8


def next_of(state, key):
    """The next entry of a list in the state; its last one again and again."""
    entries = state[key]
    return entries.pop(0) if len(entries) > 1 else entries[0]


def step_of(checkpoint):
    if not os.path.exists(checkpoint):
        return 0
    with open(checkpoint) as handle:
        return int(handle.read().rsplit("-", 1)[1].rstrip('"\n'))
