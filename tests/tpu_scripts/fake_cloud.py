"""A Cloud TPU service and its hosts on this machine, for the scripts of tpu_scripts.

`python fake_cloud.py gcloud ...` answers as gcloud does; `python fake_cloud.py python3
-m decoupled NAME ...` is a short imitation of training. A launch calls this some 20
times, hence few imports, and some of them late.

All is below the folder FAKE_CLOUD: state.json, calls.jsonl (what was called), gs/ (the
buckets), hosts/NAME (the home folder of a slice's first host) and hosts/NAME.N (of its
other hosts). state.json holds

  lives: one dict per creation, the last also for those after it:
    error: gcloud's message; nothing is created.
    states: of the queued resource (or node), one per question; the last stays.
    message: why the request failed.
    lost: [step, state]: once that checkpoint is saved, the slice gets this state and
      its hosts are gone.
    hosts: how many there are; all by default.
  runs: a list per start of a job, e.g. ["save 10", "exit 0"]: actions in turn; "hang",
    "evaluate" and "of 20", a line of progress, are others.
  delete_error, describe_error, read_error, write_error: what gcloud then says instead.
"""

import fcntl
import json
import os
import sys
import time

CLOUD = os.environ["FAKE_CLOUD"]
# The options of gcloud 528 for what the scripts call; any other is an error.
COMMON = {"--format", "--project", "--quiet"}
PLACED = COMMON | {"--zone"}
NEW = PLACED | {
    "--accelerator-type",
    "--internal-ips",
    "--labels",
    "--network",
    "--scopes",
    "--service-account",
    "--spot",
}
CONNECTED = PLACED | {"--worker", "--internal-ip"}
KNOWN = {
    "queued-resources create": NEW
    | {"--node-id", "--runtime-version", "--valid-until-duration"},
    "queued-resources delete": PLACED | {"--force", "--async"},
    "queued-resources describe": PLACED,
    "queued-resources list": PLACED | {"--filter"},
    "tpu-vm create": NEW | {"--version", "--preemptible"},
    "tpu-vm delete": PLACED | {"--async"},
    "tpu-vm describe": PLACED,
    "tpu-vm list": PLACED | {"--filter"},
    "tpu-vm scp": CONNECTED | {"--recurse"},
    "tpu-vm ssh": CONNECTED | {"--command"},
    "storage cat": COMMON,
    "storage cp": COMMON,
    "storage rsync": COMMON | {"--recursive", "--exclude"},
}


def main():
    """gcloud, or a host's python3."""
    program, *arguments = sys.argv[1:]
    if program == "python3":
        sys.exit(host_python(arguments))
    group = arguments[2:4] if arguments[:2] == ["compute", "tpus"] else arguments[:2]
    rest = arguments[4:] if arguments[0] == "compute" else arguments[2:]
    name = " ".join(group)
    options = dict(word.partition("=")[::2] for word in rest if word.startswith("--"))
    words = [word for word in rest if not word.startswith("--")]
    unknown = set(options) - KNOWN[name]
    if unknown:
        sys.exit(f"ERROR: (gcloud) unrecognized arguments: {' '.join(unknown)}")
    with locked_state() as state:
        record("gcloud", arguments)
        answer = COMMANDS[name](state, words, options)
    if callable(answer):
        # Without the lock: what runs on a host calls gcloud itself.
        answer()


class locked_state:
    """state.json, read and, after success, written back while no other process does."""

    def __enter__(self):
        self.lock = open(f"{CLOUD}/lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        with open(f"{CLOUD}/state.json") as handle:
            self.state = json.load(handle)
        return self.state

    def __exit__(self, kind, value, traceback):
        if kind is None:
            # The test reads without a lock.
            with open(f"{CLOUD}/state.new", "w") as handle:
                json.dump(self.state, handle)
            os.replace(f"{CLOUD}/state.new", f"{CLOUD}/state.json")
        self.lock.close()


def record(program, arguments):
    with open(f"{CLOUD}/calls.jsonl", "a") as handle:
        handle.write(json.dumps([program, *arguments]) + "\n")


def home_of(name, worker=0):
    return f"{CLOUD}/hosts/{name}" + (f".{worker}" if worker else "")


def homes(name):
    import glob

    return [home_of(name), *glob.glob(home_of(name) + ".*")]


def remove_homes(name):
    import shutil

    for home in homes(name):
        shutil.rmtree(home, ignore_errors=True)


def count_hosts(kind):
    """Of an accelerator type."""
    generation, _, size = kind.rpartition("-")
    if generation in ("v5litepod", "v6e"):
        return max(1, int(size) // 4) if int(size) != 8 else 1
    return int(size) // 8


def error(text):
    """Ends as gcloud does, with its message; the state stays as it was before."""
    print(f"ERROR: (gcloud) {text}", file=sys.stderr)
    sys.exit(1)


def next_of(state, key):
    """The next entry of a list in the state; its last one again and again."""
    entries = state[key]
    return entries.pop(0) if len(entries) > 1 else entries[0]


def create(queued):
    def run(state, words, options):
        life = next_of(state, "lives")
        if "error" in life:
            print(f"ERROR: (gcloud) {life['error']}", file=sys.stderr)
            return lambda: sys.exit(1)
        labels = dict(pair.split("=") for pair in options["--labels"].split(","))
        default = ["ACTIVE"] if queued else ["READY"]
        states = list(life.get("states", default))
        slice_ = {**life, "queued": queued, "labels": labels, "states": states}
        slice_["type"] = options["--accelerator-type"]
        slice_["image"] = options["--runtime-version" if queued else "--version"]
        slice_.setdefault("hosts", count_hosts(slice_["type"]))
        state["slices"][words[0]] = slice_
        for worker in range(slice_["hosts"]):
            os.makedirs(home_of(words[0], worker))
        return None

    return run


def describe(queued):
    def run(state, words, options):
        if state.get("describe_error"):
            error(state["describe_error"])
        name = words[0]
        slice_ = state["slices"].get(name)
        if slice_ is None or (queued and not slice_["queued"]):
            error(f"NOT_FOUND: Resource '{name}' was not found")
        if "runtimeVersion" in options["--format"]:
            print(*(slice_[key] for key in ("type", "image", "hosts")), sep="|")
            return
        lose(name, slice_)
        current = slice_["states"][0]
        if queued == slice_["queued"] and len(slice_["states"]) > 1:
            slice_["states"].pop(0)
        if queued:
            fields = [current, slice_["labels"]["project"], slice_.get("message", "")]
        else:
            node_state = "READY" if current == "ACTIVE" else current
            fields = [node_state, slice_["labels"]["project"], "HEALTHY"]
        print("|".join(fields))

    return run


def lose(name, slice_):
    """Takes a slice away whose time has come."""
    if "lost" not in slice_:
        return
    import glob

    step, end = slice_["lost"]
    saved = [step_of(path) for path in glob.glob(f"{CLOUD}/gs/*/*/checkpoint")]
    if max(saved, default=0) >= step:
        slice_["states"] = [end]
        kill_hosts(name)
        remove_homes(name)


def kill_hosts(name):
    """Ends what runs on a slice's hosts, without a warning."""
    import signal

    for home in homes(name):
        path = f"{home}/decoupled_job/process"
        if os.path.exists(path):
            with open(path) as handle:
                process = int(handle.read())
            try:
                os.killpg(process, signal.SIGKILL)
            except ProcessLookupError:
                pass


def delete(state, words, options):
    if state.get("delete_error"):
        error(state["delete_error"])
    if words[0] not in state["slices"]:
        error(f"NOT_FOUND: Resource '{words[0]}' was not found")
    del state["slices"][words[0]]
    if "--async" not in options:
        # A host that deletes its own slice has nobody left to tell.
        kill_hosts(words[0])
    remove_homes(words[0])


def list_slices(state, words, options):
    for name, slice_ in state["slices"].items():
        print(name, slice_["states"][0])


def ready_hosts(state, name, options):
    """Worker -> home folder, of the hosts of --worker."""
    slice_ = state["slices"].get(name)
    if slice_ is None or slice_["states"][0] not in ("ACTIVE", "READY"):
        error(f"TPU {name} is not in a usable state")
    first, _, last = options["--worker"].partition("-")
    if first == "all":
        first, last = 0, slice_["hosts"] - 1
    workers = range(int(first), int(last or first) + 1)
    return {worker: home_of(name, worker) for worker in workers}


def ssh(state, words, options):
    result = ready_hosts(state, words[0], options)

    def run():
        import subprocess

        codes = []
        for worker, home in result.items():
            environment = {**os.environ, "HOME": home, "FAKE_WORKER": str(worker)}
            command = ["bash", "-c", options["--command"]]
            codes.append(subprocess.run(command, cwd=home, env=environment).returncode)
        sys.exit(max(codes))

    return run


def scp(state, words, options):
    name, _, folder = words[-1].partition(":")
    for home in ready_hosts(state, name, options).values():
        for source in words[:-1]:
            copy(source, os.path.join(home, folder, os.path.basename(source)))


def copy(source, target):
    import shutil

    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def local_path(url):
    return url.replace("gs://", f"{CLOUD}/gs/", 1)


def cat(state, words, options):
    if state.get("read_error"):
        error(state["read_error"])
    path = local_path(words[0])
    if not os.path.exists(path):
        error(f"The following URLs matched no objects or files:\n{words[0]}")
    with open(path) as handle:
        sys.stdout.write(handle.read())


def cp(state, words, options):
    if state.get("write_error") and words[1].startswith("gs://"):
        error(state["write_error"])
    copy(*map(local_path, words))


COMMANDS = {
    "queued-resources create": create(queued=True),
    "queued-resources delete": delete,
    "queued-resources describe": describe(queued=True),
    "queued-resources list": list_slices,
    "tpu-vm create": create(queued=False),
    "tpu-vm delete": delete,
    "tpu-vm describe": describe(queued=False),
    "tpu-vm list": list_slices,
    "tpu-vm scp": scp,
    "tpu-vm ssh": ssh,
    "storage cat": cat,
    "storage cp": cp,
    "storage rsync": cp,
}


def host_python(arguments):
    """Python on a TPU VM; the exit code. Hosts after the first have nothing to do."""
    with locked_state() as state:
        record("python3", arguments)
        if os.environ.get("FAKE_WORKER", "0") != "0":
            return 0
        actions = next_of(state, "runs")
    return train(arguments[2:], actions)


def train(flags, actions):
    """Imitates a training program: resumes from its checkpoint, then acts."""
    options = dict(flag.partition("=")[::2] for flag in flags)
    folder = local_path(options["--model_dir"])
    checkpoint = f"{folder}/checkpoint"
    print(f"starts at step {step_of(checkpoint)}", flush=True)
    for action in actions:
        verb, _, number = action.partition(" ")
        if verb == "of":
            # The step that the last of all steps is.
            print(f"step {step_of(checkpoint)}/{number}", flush=True)
        elif verb == "evaluate":
            with open(f"{folder}/eval.json", "w") as handle:
                json.dump({"global_step": step_of(checkpoint)}, handle, indent=2)
        elif verb == "save":
            os.makedirs(folder, exist_ok=True)
            with open(checkpoint, "w") as handle:
                handle.write(f'model_checkpoint_path: "model.ckpt-{number}"\n')
        elif verb == "hang":
            time.sleep(60)
        elif verb == "exit":
            print(f"ends with {number}", flush=True)
            return int(number)
    return 0


def step_of(checkpoint):
    if not os.path.exists(checkpoint):
        return 0
    with open(checkpoint) as handle:
        return int(handle.read().rsplit("-", 1)[1].rstrip('"\n'))


if __name__ == "__main__":
    main()
