"""The sandbox, what it shows to scripts, what their environment holds, and which executor and GPUs they get."""

import asyncio
import logging
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from mle_star import ConfigError, ExecutionError, PipelineConfig, TaskDescription, run_pipeline
from mle_star import execution as ex
from mle_star.data.place import holds_homes
from mle_star.execution import LocalExecutor, inspect_interpreter
from mle_star.execution import sandbox as box
from mle_star.execution.environment import (
    cache_places,
    script_environment,
    threads_per_script,
    usable_cores,
    weights_at_hand,
)
from mle_star.execution.executors import find_opener, gpus_for_slot, opened_executor, script_slots, visible_gpus
from mle_star.execution.limits import Cgroup, Limits, find_cgroup_parent, machine_memory, own_groups
from mle_star.execution.process import Report, parse_report
from mle_star.execution.workspace import own_prefix
from mle_star.testing.executor import PLAIN_ENV, gone, living
from tests.conftest import Logs, Patch, as_kept, write_texts
from tests.execution.conftest import SCRIPT, Kind, driver, request_for, write_files


def test_what_starts_before_every_script_starts_quickly() -> None:
    """Each of these takes longer to import than all the rest together."""
    slow = {"ctypes", "contextlib", "functools", "json", "pathlib", "re", "signal", "site", "subprocess", "typing"}
    for module in ("supervisor", "confine"):
        start = f"import sys; sys.path.append({box.HERE!r}); import child.{module}; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", start], capture_output=True, check=True, text=True)
        assert not slow & set(done.stdout.split())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (":", None),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "does not work here: bwrap: No perm"),
        ("kill -9 $$", "does not work here"),
        ("exec /bin/sleep 60", "timed out after 2.0 seconds; user namespaces may be"),
        ("", "apt install bubblewrap"),
    ],
)
def test_a_working_bwrap_is_used(body: str, why: str | None, tmp_path: Path, monkeypatch: Patch) -> None:
    path, options, reason = box.find_bubblewrap()
    assert path and "--unshare-net" in options, reason
    monkeypatch.setattr(box, "PROBE_SECONDS", 2.0 if "sleep" in body else 60.0)
    seen = tmp_path / "seen"
    if body:
        (tmp_path / "bwrap").write_text(f'#!/bin/sh\n(export; pwd) >> {seen}\n[ "$1" = --help ] && exit 0\n{body}\n')
        (tmp_path / "bwrap").chmod(0o755)
    for name, value in (("PATH", str(tmp_path)), ("ANTHROPIC_API_KEY", "sk-canary"), ("MY_OWN_VARIABLE", "canary")):
        monkeypatch.setenv(name, value)
    path, _, reason = box.find_bubblewrap()
    assert not path and why in reason if why else path
    found = seen.read_text() if body else "PATH="
    assert "PATH=" in found and "canary" not in found and str(Path.cwd()) not in found.splitlines()


async def test_without_bubblewrap_namespaces_are_used_and_a_required_sandbox_that_is_missing_or_breaks_is_an_error(
    tmp_path: Path, monkeypatch: Patch, caplog: Logs
) -> None:
    config = PipelineConfig(require_sandbox=True)
    hidden: dict[Kind, str] = {"auto": "sandbox could not be set up", "namespaces": "mount .*: No such f"}
    for kind, words in hidden.items():  # of the harness, not of the script
        with pytest.raises(ExecutionError, match=words):
            await LocalExecutor(sandbox=kind).run(request_for(tmp_path, "", input_dir=str(tmp_path / "gone")))
    with pytest.raises(ConfigError, match=r"require_sandbox is set, but .* without namespaces: switched off"):
        await LocalExecutor(config, sandbox="none").run(request_for(tmp_path, "open('ran', 'w')"))
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    raw = await LocalExecutor(config).run(request_for(tmp_path, "print(1)"))
    assert raw.isolation.sandbox == "namespaces+seccomp", raw
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


def test_what_is_missing_is_said_in_one_line_and_a_report_that_makes_no_sense_is_not_believed() -> None:
    found: list[dict[str, Any]] = [
        {"no_namespaces": f"gone: {box.INSTALL_HINT}", "seccomp": True}, {"kind": "namespaces", "seccomp": True},
        {"no_namespaces": "gone", "no_seccomp": "no library"}, {"kind": "bubblewrap", "no_seccomp": "no library"},
    ]  # fmt: skip
    as_kept("execution/missing.txt", "\n".join(box.Sandbox(**one).missing for one in found))
    twice, strange = b"exit\t0\nexit\t0\n", b"new\t1\nexit\t0\n"
    for text in (b"error\tx\nexit\t0\n", twice, b"exit\t\n", b"exit\tx\n", b"\xff\n", b"exit 0\n", strange):
        assert parse_report(text) is None, text
    assert parse_report(b"applied\tFSIZE\nexit\t3\n") == Report(exit=3, applied=frozenset(["FSIZE"]))


@pytest.mark.parametrize(
    ("sandbox", "home", "below"),
    [
        *(("auto", home, "/tmp") for home in ("{work}", "/tmp", "/")),
        *((kind, "/nowhere", "/var/tmp") for kind in ("auto", "namespaces", "none")),
    ],
)
async def test_wherever_home_is_a_script_has_a_folder(sandbox: Kind, home: str, below: str, monkeypatch: Patch) -> None:
    """Also below /var/tmp, which leads to the private /tmp else."""
    with tempfile.TemporaryDirectory(dir=below) as work:
        Path(work).chmod(0o755)
        monkeypatch.setenv("HOME", home.format(work=work))
        code = "import os, tempfile\nopen('here', 'w')\ntempfile.mkstemp()\nprint(os.getcwd(), *sorted(os.listdir()))"
        raw = await LocalExecutor(sandbox=sandbox).run(request_for(Path(work), code))
        assert (raw.exit_code, raw.stdout) == (0, f"{work} here solution.py\n"), raw.stderr
        assert raw.isolation.sandbox.startswith("bubblewrap") is (sandbox == "auto")


async def test_in_namespaces_made_here_a_script_finds_just_this(tmp_path: Path) -> None:
    own = {
        name: str(Path("/proc/self/ns", name).readlink())
        for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"]
    }
    code = f"""
import os, socket; os.setsid()
wanted = {{"ro", "rw", "nosuid", "nodev", "noexec", "size=16384k", "size=64k", "mode=755"}}
mounts = {{place: options for _, place, _, options, *_ in map(str.split, open("/proc/mounts"))}}
for place in ("/", "/usr", "/proc", "/dev", "/dev/shm", os.getcwd()):
    print(place, *sorted(wanted & set(mounts[place].split(","))))
print("nodev" in mounts["/dev/null"], "nosuid" in mounts["/dev/null"], *sorted(os.listdir("/dev")))
print(*(os.readlink(f"/dev/{{name}}") for name in ("fd", "stdin", "stdout", "stderr")), *os.listdir("/proc/self/fd"))
print(os.getuid(), os.getgid(), os.getgroups(), os.getpid(), open("/proc/1/stat").read().partition("(")[2][:16])
facts = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(*(facts[name].strip() for name in ("CapPrm", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")))
print([name for name, place in {own}.items() if os.readlink(f"/proc/self/ns/{{name}}") == place])
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
"""
    raw = await LocalExecutor(sandbox="namespaces").run(request_for(tmp_path, code))
    as_kept("execution/namespaces.txt", f"{raw.stdout}{raw.stderr}".replace(str(tmp_path), "…"))


async def test_the_network_is_open_where_it_is_allowed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 3)\nprint('in')"
        raw = await LocalExecutor(PipelineConfig(allow_network=True)).run(request_for(tmp_path, code))
    assert (raw.stdout, raw.isolation.network_blocked) == ("in\n", False)


def test_an_old_bubblewrap_is_asked_for_nothing_that_it_does_not_know() -> None:
    mounts = [("ro-bind", "/usr", "/usr"), ("tmpfs", "mode=755,size=4096", "/a"), ("proc", "", "/proc")]
    new = frozenset(["--perms", "--size", "--disable-userns"])
    kinds = [
        (box.Sandbox("bubblewrap", bubblewrap="bwrap", options=known), known == new)
        for known in (frozenset[str](), new)
    ]
    made = [" ".join(box.bubblewrap_command(kind, mounts, "/work", network=open_)) for kind, open_ in kinds]
    as_kept("execution/bubblewrap.txt", "\n".join(made))


def test_memory_is_that_of_the_job_and_shared_among_scripts_that_run_at_once(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    own = [groups / "user.slice" / "job.scope", groups / "user.slice", groups]
    own[0].mkdir(parents=True)
    (own[1] / "memory.max").write_text("max\n")
    (own[2] / "memory.max").write_text("1000\n")
    assert machine_memory(own) == 1000 < machine_memory([])
    given, tasks = PipelineConfig(script_memory_gb=2, script_disk_gb=3, script_files=4), max(1024, 64 * usable_cores())
    rest = (8 * 2**30, 4096, 3 * 10**9, 4, 100 * 2**20, 4 * 2**20, 2**20, 5.0, 0.5)
    assert Limits.of(given) == Limits(2 * 10**9, tasks, *rest)
    alone = Limits.of(PipelineConfig(max_concurrent_scripts=1)).memory_bytes
    assert 0.8 * machine_memory() < alone <= machine_memory()
    assert Limits.of(PipelineConfig(max_concurrent_scripts=2)).memory_bytes == pytest.approx(alone / 2, abs=2)


@pytest.mark.parametrize("sandbox", ["auto", "namespaces"])
async def test_secrets_are_hidden(sandbox: Kind, request: pytest.FixtureRequest) -> None:
    """Also in folders that modules and weights come from, and in the home directory. The rest of it is not shown."""
    in_home = Path(tempfile.mkdtemp(prefix=".mle-star-test-", dir=pwd.getpwuid(os.getuid()).pw_dir))
    request.addfinalizer(lambda: shutil.rmtree(in_home))
    project, env, cache, pem = in_home / "project", in_home / "env", in_home / "hf", str(in_home / "own.pem")
    work = project / "runs" / "first" / "work" / "main"
    hidden = (".env", "data/train.csv", "runs/second/journal.jsonl", "../hf/token", "../secret.txt")
    write_files(project, *hidden, "package/__init__.py", "module.py", "../hf/hub/model.bin", "../own.pem", text="x = 1")
    (project / "alias.py").symlink_to("module.py")
    (in_home / "door").symlink_to("project")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    (site,) = env.glob("lib/python*/site-packages")
    (site / "project.pth").write_text(str(project))
    code = f"""
from pathlib import Path
import module, package, alias, sys
for name in {hidden}:
    for place in ({str(project)!r}, {str(in_home / "door")!r}):
        try:
            print("seen:", name, (Path(place) / name).read_text())
        except OSError:
            pass
print(open({pem!r}).read(), sys.prefix, open({str(cache / "hub/model.bin")!r}).read(), open("own", "w").write("done"))
"""
    named = {"HF_HOME": str(cache), "SSL_CERT_FILE": pem}
    shown = {"hidden": (str(project / "runs"), str(project / "data")), "env": {**PLAIN_ENV, **named}}
    executor = LocalExecutor(PipelineConfig(python=str(env / "bin" / "python")), sandbox=sandbox)
    raw = await executor.run(request_for(work, code, **shown))
    assert (raw.stdout, raw.stderr) == (f"x = 1 {env} x = 1 4\n", "")


def test_a_folder_of_which_much_is_shown_is_shown_as_a_whole_with_the_rest_covered(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / ".cache").mkdir(parents=True)
    paths = [str(data / str(number)) for number in range(box.MANY + 1)]
    write_files(data, *paths, ".env")
    few, mounts = (
        box.mounts_of(request_for(tmp_path / "work", "", readable=tuple(shown)), tmp_path / "own")
        for shown in (paths[1:], paths)
    )
    assert ("ro-bind", str(data), str(data)) not in few and ("ro-bind", paths[1], paths[1]) in few
    assert ("ro-bind", str(data), str(data)) in mounts and ("ro-bind", paths[1], paths[1]) not in mounts
    assert ("ro-bind", "/dev/null", str(data / ".env")) in mounts
    assert mounts.index(("tmpfs", "mode=755,size=4096", str(data / ".cache"))) < mounts.index(
        ("remount-ro", "", str(data / ".cache"))
    )


PLACES = ["/", "/dev", "/dev/shm", "/proc", "/sys", "/sys/devices/system", "/tmp", "/var/tmp"]
PLACES += ["/etc/passwd", "/etc/group", "/etc/resolv.conf"]
"""What every machine has."""


def test_what_a_script_sees_is_put_together_in_this_order(tmp_path: Path) -> None:
    write_files(tmp_path, "data/deep/b", "data/labels/c", "work/input/a", "work/own", "own/tmp/x", "later/x")
    for link, target in (("data/link", "deep/b"), ("doorway", "data/deep"), ("data/deep/in", "../labels")):
        (tmp_path / link).symlink_to(target)
    names = ("data", "doorway", "data/deep", "work/own/x/..", "missing", "later")
    readable = tuple(str(tmp_path / name) for name in names)
    given: dict[str, Any] = {"readable": readable, "hidden": (str(tmp_path / "data" / "labels"),)}
    lines = list[str]()
    for more, how in (
        ({}, {"gpus": False}), ({"input_dir": str(tmp_path / "later")}, {"network": True, "shared_bytes": 7}),
        ({"readable": ("/var/tmp",), "hidden": ()}, {}), ({"working_dir": str(tmp_path / "own")}, {}),
    ):  # fmt: skip
        request = request_for(tmp_path / "work", "").model_copy(update={**given, **more})
        mounts = box.mounts_of(request, tmp_path / "own", **how)
        known = [one for one in mounts if one[2] in PLACES or one[2].startswith(str(tmp_path))]
        lines += ["---", *(" ".join(one) for one in known)]
    as_kept("execution/mounts.txt", "\n".join(lines).replace(str(tmp_path), "…"))


def test_nobody_s_home_is_shown_because_a_library_lies_there() -> None:
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert [holds_homes(Path(p)) for p in ("/", home, str(Path(home).parent), f"{home}/.venv")] == [True] * 3 + [False]
    assert [box.is_within(path, "/a") for path in ("/a/b", "/a", "/ab")] == [True, True, False]


@pytest.mark.parametrize("python", ["/no/such/python", "/etc/passwd", "/bin/ls", "no\0name"])
def test_an_interpreter_describes_itself_and_what_is_none_is_refused_in_one_line(python: str) -> None:
    info = inspect_interpreter()
    assert (info.path, info.version) == (sys.executable, ".".join(map(str, sys.version_info[:3])))
    assert info.packages["pydantic"] and sys.prefix in info.roots
    with pytest.raises(ConfigError, match="is not a usable Python interpreter") as refused:
        inspect_interpreter(python)
    assert "\n" not in str(refused.value)


def test_control_groups_are_made_where_they_can_be_and_those_of_the_dead_are_removed(tmp_path: Path) -> None:
    """In folders that look as the kernel's do: few machines let their users make groups."""
    root, process = tmp_path / "groups", tmp_path / "self"
    (root / "job" / "step").mkdir(parents=True)
    process.mkdir()
    (process / "cgroup").write_text("4:memory:/old\n0::/job/step\n")
    (process / "mounts").write_text(f"none {root} cgroup2 rw 0 0\n")
    groups = own_groups(process)
    assert groups == [root / "job" / "step", root / "job", root] and own_groups(tmp_path) == []
    assert find_cgroup_parent(groups) is None
    for place, controllers in zip(groups, ("cpu", "memory pids", "cpu memory pids"), strict=True):
        (place / "cgroup.subtree_control").write_text(controllers)
    stale, mine = root / "job" / "mle-star-4194305-0", root / "job" / f"mle-star-{os.getpid()}-0"
    for folder in (stale, mine):  # no process has the first number
        folder.mkdir()
    assert find_cgroup_parent(groups) == root / "job" and not stale.exists() and mine.exists()
    assert Cgroup.create(root / "job", Limits(memory_bytes=1)) is None  # no kernel fills this folder with its files
    assert sorted(path.name for path in (root / "job").iterdir()) == ["cgroup.subtree_control", mine.name, "step"]
    for name, text in (("memory.events", "low 0\noom_kill 2\n"), ("pids.max", "9")):
        (mine / name).write_text(text)
    group = Cgroup(mine)
    counts = [group.events(*one) for one in (("memory.events", "oom_kill"), ("memory.events", "max"), ("gone", "max"))]
    assert counts == [2, 0, 0]
    group.kill()
    assert (mine / "pids.max").read_text() == "0"


def test_temporary_folders_of_the_dead_are_removed_when_they_are_old() -> None:
    """Elsewhere than here, on a machine or in a container with the same folder, the same number is another process."""
    own = own_prefix("mle-star-").rpartition(f"{os.getpid()}-")[0]
    hour, week = 2 * 3600, 7 * 86400
    names = {
        f"{own}4194305": hour, f"{own}4194306": 0, f"{own}{os.getpid()}": week,
        "mle-star-abcdef01-4194305": hour, "mle-star-abcdef01-4194306": week, "mle-star-cli-4194305": hour,
    }  # fmt: skip
    folders = {Path(tempfile.gettempdir()) / f"{name}-test{os.getpid()}": age for name, age in names.items()}
    try:
        for folder, age in folders.items():
            folder.mkdir()
            os.utime(folder, (time.time() - age,) * 2)
        assert LocalExecutor().means is LocalExecutor().means, "the machine is tried out once"
        assert [folder.exists() for folder in folders] == [False, True, True, True, False, True]
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.req("REQ-EX-037")
@pytest.mark.parametrize("sandbox", ["auto", "none"])
async def test_when_the_harness_is_killed_its_script_dies_too(sandbox: str, tmp_path: Path) -> None:
    token, deadline = f"orphan-{os.getpid()}-{sandbox}", time.monotonic() + 120
    process = driver(sys.executable, SCRIPT, "sleep", sandbox, str(tmp_path), token)
    try:
        while not (begun := living(f"time.sleep(600) {token}")) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert begun, "the script never started"
    finally:
        process.kill()
        process.wait()
    assert await gone(token, within=240)


@pytest.mark.req("REQ-EX-003")
@pytest.mark.parametrize(
    ("body", "names", "memory"),
    [
        *((body, [], []) for body in (None, "exit 9", "kill -9 $$", ":", f"exec {shutil.which('sleep')} 600")),
        ("echo 'NVIDIA H200'", ["NVIDIA H200"], []),
        ("echo 'NVIDIA H200, 9 MiB'\necho 'NVIDIA T4, 1 MiB'", ["NVIDIA H200", "NVIDIA T4"], ["9 MiB", "1 MiB"]),
    ],
)
def test_the_driver_s_names_are_counted_and_without_one_or_with_one_in_trouble_there_is_no_gpu(
    body: str | None, names: list[str], memory: list[str], monkeypatch: Patch, tmp_path: Path
) -> None:
    found = {"cuda_available": bool(names), "gpu_count": len(names), "gpu_names": names}
    found |= {"gpu_memory": memory} if memory else {}
    if body is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for _ in range(4):  # a busy machine is late now and then
        started = time.monotonic()
        assert ex.detect_gpu_info() == found and ex.detect_gpu is ex.detect_gpu_info
        if (waited := time.monotonic() - started) < 7:
            break
    assert waited < 7 and ("sleep" not in str(body) or waited >= 5), "one that hangs is not waited for"


@pytest.mark.req("REQ-EX-004")
def test_the_environment_is_a_copy_with_three_settings(monkeypatch: Patch) -> None:
    given = {"MINE": "kept", "PYTHONHASHSEED": "7", "PYTHONUNBUFFERED": "", "CUDA_VISIBLE_DEVICES": "3"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    before, env = dict(os.environ), ex.build_execution_env(gpu_indices=[0, 1])
    assert (env["PYTHONUNBUFFERED"], env["PYTHONHASHSEED"], env["CUDA_VISIBLE_DEVICES"]) == ("1", "0", "0,1")
    assert env["MINE"] == "kept" and ex.build_execution_env()["CUDA_VISIBLE_DEVICES"] == "3"
    assert ex.build_execution_env([])["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "CUDA_VISIBLE_DEVICES" not in ex.build_execution_env()
    before.pop("CUDA_VISIBLE_DEVICES")
    assert dict(os.environ) == before
    secrets = ["ANTHROPIC_URL", "CLAUDE_CODE_X", "AWS_REGION", "HF_TOKEN", "DB_PASSWORD", "my_secret", "SSH_KEYFILE"]
    assert ex.scrub_credentials(dict.fromkeys(secrets, "x")) == {}
    assert ex.scrub_credentials({"PATH": "p"}) == {"PATH": "p"}


@pytest.mark.parametrize("allowed", [True, False])
def test_only_names_of_the_allow_list_reach_a_script(allowed: bool, monkeypatch: Patch) -> None:
    network = {"HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HF_ENDPOINT"}
    others = {"SSH_AUTH_SOCK", "DOCKER_HOST", "PYTHONPATH", "PYTHONSTARTUP", "HOME"}
    # the names of its makers are on the list
    credentials = {"NVIDIA_API_KEY", "CUDA_ACCESS_TOKEN", "HF_TOKEN", "HF_HUB_TOKEN"}
    for name in (*network, *others, *credentials, "HF_HOME", "LC_NUMERIC"):
        monkeypatch.setenv(name, "x")
    env = script_environment(PipelineConfig(seed=7, num_parallel_solutions=2, allow_network=allowed), ["1"])
    assert not (others | credentials) & set(env) and set(env) & network == (network if allowed else set())
    assert (env["LC_NUMERIC"], env["MLE_STAR_SEED"], env["PYTHONHASHSEED"]) == ("x", "7", "0")
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["HF_HOME"] == "x", "weights that are there may be used without a network, too"
    assert threads_per_script(PipelineConfig(max_concurrent_scripts=1)) == usable_cores()
    env = script_environment(PipelineConfig(max_concurrent_scripts=10_000))
    assert env["OMP_NUM_THREADS"] == env["OPENBLAS_NUM_THREADS"] == env["LOKY_MAX_CPU_COUNT"] == "1"


@pytest.mark.parametrize(
    ("gpus", "settings", "slots", "seen"),
    [
        ("0123", {"max_concurrent_scripts": 2}, 2, [["0", "2"], ["1", "3"]]),
        ("0", {"max_concurrent_scripts": 2}, 1, [None]),
        ("", {"max_concurrent_scripts": 2}, 2, [None, None]),
        ("", {"num_parallel_solutions": 99}, usable_cores(), [None] * usable_cores()),
        ("01", {"max_concurrent_scripts": 4, "script_gpus": 1.0}, 2, [["0"], ["1"]]),
        ("01", {"max_concurrent_scripts": 4, "script_gpus": 0.5}, 4, [["0"], ["0"], ["1"], ["1"]]),
        ("01", {"max_concurrent_scripts": 4, "script_gpus": 2.0}, 1, [["0", "1"]]),
        ("01", {"max_concurrent_scripts": 4, "script_gpus": 0.0}, 4, [[], [], [], []]),
    ],
)
def test_gpus_are_divided_as_set(gpus: str, settings: dict[str, Any], slots: int, seen: list[list[str] | None]) -> None:
    config = PipelineConfig(**settings)
    assert script_slots(list(gpus), config) == slots
    assert [gpus_for_slot(list(gpus), slot, config) for slot in range(slots)] == seen


@pytest.mark.parametrize(
    ("given", "seen"), [(None, "0123"), ("2,3", "23"), ("", ""), ("1,7,2", "1"), ("-1", ""), ("GPU-8, MIG-8/1/2", None)]
)
def test_gpus_are_called_as_we_were_told(given: str | None, seen: str | None, monkeypatch: Patch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    found = list(seen) if seen is not None else ["GPU-8", "MIG-8/1/2"]
    assert visible_gpus(4) == found and visible_gpus(0) == []
    assert script_environment(PipelineConfig(), found)["CUDA_VISIBLE_DEVICES"] == ",".join(found)


def test_weights_are_found_as_scripts_ask_for_them_at_once(monkeypatch: Patch, tmp_path: Path) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "TORCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    hub, torch = tmp_path / "hub", tmp_path / "torch"
    write_files(hub, "models--org--name/snapshots/abc/model.safetensors")
    (hub / "models--org--empty" / "snapshots").mkdir(parents=True)
    write_files(torch / "hub" / "checkpoints", *(found := [f"resnet{n}.pth" for n in range(9)]), "readme.txt")
    config = PipelineConfig(model_caches=(str(hub), str(torch)))
    wanted = [*(str(torch / "hub" / "checkpoints" / name) for name in found), "org/name"]
    assert weights_at_hand(config) == wanted
    write_files(torch / "later", "x.pth")
    with monkeypatch.context() as limited:
        limited.setattr("mle_star.execution.environment.MAX_SEEN", 9)
        assert weights_at_hand(config) == wanted
    env = script_environment(config)
    assert (env["HF_HUB_CACHE"], env["TORCH_HOME"], env["HF_HUB_OFFLINE"]) == (str(hub), str(torch), "1")
    assert cache_places(config, {"HF_HOME": "/set"})["HF_HOME"] == "/set"
    assert "HF_HUB_CACHE" not in cache_places(config, {"HF_HOME": "/set"})
    online = script_environment(PipelineConfig(allow_network=True))
    assert "HF_HUB_OFFLINE" not in online and "HF_HUB_CACHE" not in online
    assert weights_at_hand(PipelineConfig(), {}) == []


@pytest.mark.parametrize("name", ["slurm", "slurm://here:1", "", "local:1"])
async def test_an_absent_executor_is_refused_before_anything(name: str, task: TaskDescription, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="executor="):
        await run_pipeline(task, PipelineConfig(executor=name, model="offline"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


async def test_scripts_run_here_unless_settings_say_otherwise(tmp_path: Path, monkeypatch: Patch) -> None:
    async with opened_executor(PipelineConfig()) as executor:
        assert isinstance(executor, ex.LocalExecutor)
    async with opened_executor(PipelineConfig(executor="ray"), executor) as given:
        assert given is executor
    opens = "import contextlib\ndef opened(config, address):\n    return contextlib.nullcontext(address or 'bare')"
    metadata = "Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n"
    entry = {"METADATA": metadata, "entry_points.txt": "[mle_star.executors]\nelsewhere = elsewhere:opened\n"}
    write_texts(tmp_path, {"elsewhere.py": opens, **{f"elsewhere-1.0.dist-info/{name}": entry[name] for name in entry}})
    monkeypatch.syspath_prepend(str(tmp_path))
    for setting, seen in (("elsewhere", "bare"), ("elsewhere://there:9", "elsewhere://there:9")):
        async with opened_executor(PipelineConfig(executor=setting)) as executor:
            assert str(executor) == seen
    with pytest.raises(ConfigError, match="there are local, ray, ray://HOST:PORT, elsewhere"):
        find_opener(PipelineConfig(executor="nowhere"))
