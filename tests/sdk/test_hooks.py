"""Agents that act: hooks, tools, guard and sandbox, with the real CLI running real commands of a scripted mind."""

import asyncio
import logging
import os
import shutil
import sys
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star import AgentType, ConfigError, PipelineConfig, TaskDescription, agent_config
from mle_star.data.place import MARK
from mle_star.engineer.server import BrainReply, MessagesServer, ToolCall
from mle_star.run.budget import Budget
from mle_star.sdk.definitions import list_data_files
from mle_star.sdk.hooks import HURRY, Guard
from mle_star.testing import ScriptedBrain
from tests.conftest import Logs, Patch, as_kept, write_texts
from tests.sdk.conftest import Bench, OpenBench, logged

ACTOR = agent_config(AgentType.coder, None, "full")


def use(name: str, **arguments: Any) -> BrainReply:
    return BrainReply(tool=ToolCall(name, arguments))


async def act(bench: Bench, *calls: BrainReply) -> list[str]:
    """Let the coder use tools one after the other; what each of them said."""
    bench.brain.reply_with("coder", *calls, "done")
    await bench.ask(ACTOR, label="path-0")
    return list(bench.brain.requests[-1].tool_results)


@pytest.mark.req("REQ-OR-011", "REQ-OR-031", "REQ-OR-033", "REQ-OR-035")
async def test_tool_use_is_supervised(open_bench: OpenBench, tmp_path: Path, caplog: Logs, monkeypatch: Patch) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", "hunter2")
    caplog.set_level(logging.INFO, logger="mle_star.sdk")
    outside, seconds = tmp_path / "outside.txt", str(uuid.uuid4().int % 10**12)

    def sleepers() -> list[psutil.Process]:
        return [one for one in psutil.process_iter(["cmdline"]) if seconds in (one.info["cmdline"] or ())]

    async with open_bench(tool_profile="full", client_reuse="clear", blocked_commands=("forbidden-word",)) as bench:
        results = await act(
            bench,
            use("Bash", command="echo hello > made.txt; cat made.txt; echo key=$ANTHROPIC_API_KEY. $MY_SECRET_TOKEN."),
            use("Bash", command="sudo rm -fr /"),
            use("Bash", command=f"echo x > {outside}"),
            use("Bash", command="echo forbidden-word"),
            use("Write", file_path=str(outside), content="x"),
            use("Bash", command="exit 3"),
            use("Bash", command=f"python3 -c \"open('{outside}', 'w')\" ; ls /missing-folder"),
        )
        failures = bench.agents.state.consecutive_failures["coder"]
        background = f"nohup setsid sleep {seconds} >/dev/null 2>&1 & echo started $!"
        (started, _) = await act(bench, use("Bash", command=background), use("Read", file_path="made.txt"))
        assert "started" in started and bench.agents.state.consecutive_failures["coder"] == 0
    assert "hello\nkey=. ." in results[0]  # What ran: in the path's own folder, without secrets.
    assert (tmp_path / "work" / "agents" / "path-0" / "made.txt").read_text(encoding="utf-8") == "hello\n"
    for index in (1, 2, 3, 4):  # What was refused, with the reason.
        assert "Blocked for safety" in results[index], results[index]
    blocked = logged(caplog, "tool_blocked")
    assert [entry["tool"] for entry in blocked] == ["Bash", "Bash", "Bash", "Write"]
    # What the hook cannot see, the sandbox stops.
    assert "Read-only file system" in results[6] and not outside.exists()
    used = logged(caplog, "tool_use")  # Progress: one entry per use, with all that is asked for.
    assert [entry["tool"] for entry in used] == ["Bash", "Bash", "Bash", "Bash", "Read"]
    assert [entry["success"] for entry in used] == [True, False, False, True, True]
    for entry in used:
        assert (entry["agent"], entry["path"], len(entry["session_id"])) == ("coder", "path-0", 36)
        assert entry["elapsed_seconds"] >= 0 and entry["timestamp"].endswith("+00:00")
    assert any(entry["elapsed_seconds"] % 1 for entry in used)
    failed = logged(caplog, "tool_failed")  # Errors: logged with their text, counted in a row.
    assert [entry["consecutive_failures"] for entry in failed] == [1, 2] and failures == 2
    assert "Exit code 3" in failed[0]["error"]
    psutil.wait_procs(sleepers(), timeout=240)
    assert not sleepers()


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("socat", r"socat is not installed \(.*install socat\)$"),
        ("bwrap", r"bubblewrap is not installed \(.*install bubblewrap\)$"),
        ("bwrap socat", r"bubblewrap and socat are not installed"),
        ("bwrap!", r"bubblewrap does not work here \(no namespaces\)$"),
        ("socat!", r"socat does not work here \(exit code 7\)$"),
    ],
)
async def test_a_shell_that_nothing_confines_is_refused_with_what_is_missing(
    open_bench: OpenBench, tmp_path: Path, monkeypatch: Patch, broken: str, words: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in {"sh", "bwrap", "socat", "true"} - set(broken.split()) - {broken.strip("!")}:
        (programs / name).symlink_to(str(shutil.which(name)))
    if broken.endswith("!"):
        code = "exit 7" if "socat" in broken else "echo no namespaces >&2; exit 1"
        (programs / broken.strip("!")).write_text(f"#!/bin/sh\n{code}\n", encoding="utf-8")
        (programs / broken.strip("!")).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(ConfigError, match=words):
        async with open_bench(tool_profile="full"):
            pass
    async with open_bench():  # without a shell there is nothing to confine
        pass


@pytest.mark.req("REQ-OR-034")
async def test_an_agent_near_the_deadline_is_told_to_finish(open_bench: OpenBench, task: TaskDescription) -> None:
    now = 0.0
    budget = Budget(PipelineConfig(time_limit_seconds=10_000), clock=lambda: now)
    async with open_bench(client_reuse="clear", options={"budget": budget}) as bench:
        for now, file in ((0.0, "train.csv"), (9_001.0, "train.csv"), (9_001.0, "none")):  # one that fails, too
            bench.brain.reply_with("data", use("Read", file_path=str(Path(task.data_dir) / file)), "done")
            await bench.ask(agent_config(AgentType.data))
            assert budget.finalize_now == (now > 9_000)  # less than 10 % are left
            assert (HURRY in bench.brain.requests[-1].body.decode()) == budget.finalize_now


@pytest.mark.req("REQ-OR-010")
async def test_agents_with_tools_can_read_scores_and_list_the_data(open_bench: OpenBench, tmp_path: Path) -> None:
    pictures = dict.fromkeys((f"images/{index:03}.png" for index in range(600)), "")
    cut = list_data_files(write_texts(tmp_path / "many", {**pictures, "train.csv": "a\n"}))
    assert cut["files"][0] == {"path": "train.csv", "bytes": 2} and (len(cut["files"]), cut["truncated"]) == (500, True)
    async with open_bench() as bench:
        bench.brain.reply_with(
            "init",
            use("mcp__mle_star__list_data_files"),
            use("mcp__mle_star__parse_score", output="epoch 1\nFinal Validation Performance: 0.87\n"),
            "done",
        )
        await bench.ask(agent_config(AgentType.init))
        listing, score = bench.brain.requests[-1].tool_results
        assert '"path": "train.csv"' in listing and '"score": 0.87' in score


@pytest.mark.req("REQ-OR-010")
async def test_agents_can_do_without_our_tools(open_bench: OpenBench, monkeypatch: Patch, caplog: Logs) -> None:
    async with AsyncExitStack() as stack:
        with monkeypatch.context() as trouble:
            trouble.setitem(sys.modules, "claude_agent_sdk", None)  # so that nothing can be imported from it
            bench = await stack.enter_async_context(open_bench())
        assert "agents go without their own tools: ModuleNotFoundError" in caplog.text
        await bench.ask(agent_config(AgentType.init))
        tools = bench.brain.requests[-1].tools
        assert "Read" in tools and not any(name.startswith("mcp__") for name in tools)


WORK = Path("/srv/mle/work")
guard = Guard(WORK, readable=[Path("/srv/mle/data")], blocked=(r"\bgit\s+push\b", "curl [unbalanced"))
REFUSED = [
    "rm -rf /", "rm -fr /", "rm -r -f /*", "rm --recursive --force -- /", "sudo rm -rf /", "/bin/rm  -rf\t/home",
    "ls; rm -rf /", "true && rm -rf ~", "(rm -rf $HOME)", "rm -rf ..", "rm -rf '/'", "r\"m\" -rf /", "r\\m -rf /",
    "if true; then rm -rf /; fi", "for f in a; do rm -rf /; done", "A=1 nohup rm -rf /", "x\nrm -rf /",
    "rm \\\n -rf /",
    "sh -c 'rm -rf /'", "sudo bash -lc \"echo; rm -rf /\"", "eval 'rm -rf /'",
    "mkfs /dev/sda1", "sudo mkfs.ext4 -F /dev/vda", "/sbin/mkfs.xfs /dev/sdb",
    "dd if=/dev/zero of=x bs=1M", "dd bs=1 if=a", "dd of=/dev/sda",
    ":(){ :|:& };:", ":() { : | : & } ; :", "function f { f | f & }; f", "bomb(){ bomb|bomb& };bomb",
    "echo x > /etc/passwd", "echo x>>/tmp/x", "cmd &> ../x", "cmd 2> ~/.bashrc", "cat <in >| $HOME/.profile",
    "a | tee /tmp/x", "cp a /tmp/x", "mv a /srv/mle/data", "mv /srv/mle/data/train.csv .", "ln -s a /srv/mle/x",
    "touch /srv/mle/workshop", "mkdir -p /srv/mle/work/../data", "chmod -R 777 /", "chown root /etc",
    "truncate -s 0 /srv/mle/data/train.csv", "cat <<EOF > /etc/x\nhi\nEOF", "cat <<A <<B\nA\nB\nrm -rf /",
]  # fmt: skip
ORDINARY = [
    "python train.py --epochs 5 > log.txt 2>&1", "ls -la /srv/mle/data | head -5", "cat /etc/os-release", "",
    "rm -rf build ./tmp/* && mkdir -p out/a && touch out/a/b", "for f in a b; do rm $f; done", "dd of=x count=0",
    "cp /srv/mle/data/train.csv ./train.csv", "echo 'rm -rf /' > notes.txt", "X=out.txt; echo 1 > $X",
    "grep -rn 'dd if=' . ; echo \"mkfs is dangerous\"", "[ -f x ] && echo yes",
    "python - <<'EOF'\nimport os\nprint('rm -rf / is > /etc/passwd')\nrm -rf /\nEOF", "echo it's unbalanced",
    "cat > script.py <<'EOF'\nx = 3 > 2\nopen('/etc/passwd')\nEOF\npython script.py",
    "cat <<A <<-'B' | sort\nA\nrm -rf /\n  B\nls", "python -c \"print(1 if 2 > 1 else 0)\"",
    "tar -czf model.tar.gz model/", "bash -o pipefail -c 'python x.py | tee log.txt'",
    "nvidia-smi >/dev/null 2>&1 || true",
]  # fmt: skip


@pytest.mark.req("REQ-OR-033")
def test_the_listed_commands_and_writing_outside_are_refused_with_the_reason_and_ordinary_work_is_not() -> None:
    reasons = {line: guard.check_command(line) for line in (*REFUSED, *ORDINARY)}
    assert [line for line in reasons if reasons[line] is None] == ORDINARY
    as_kept("sdk/refused.txt", "\n".join(f"{line!r}: {reasons[line]}" for line in REFUSED))


@pytest.mark.req("REQ-OR-033")
def test_the_list_can_be_extended_and_no_long_text_takes_long() -> None:
    assert "git" in (guard.check_command("git  push origin main") or "") and guard.check_command("curl [unbalanced x")
    assert Guard(WORK).check_command("git push") is None
    started = time.process_time()
    for part in ("sudo ", "QUJD", "{a|", "(echo a) | ", "bash -c 'a ", "x > "):
        guard.check_command(part * (30_000 // len(part)))
    for part in ("<<a\n", "<<a\na\n"):  # pair by pair these would take half a minute
        guard.check_command(part * (120_000 // len(part)))
    assert time.process_time() - started < 25


@pytest.mark.req("REQ-OR-033")
def test_file_tools_stay_in_their_folders_and_read_nothing_that_is_no_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    work, old = data / "runs" / "new" / "work", data / "runs" / "old"
    mine, theirs = ["runs/new/work/notes.txt", "train.csv", "runs.csv", "sub/.keep"], ["runs/old/journal.jsonl", ".env"]
    theirs += [".cache/key", "kept/journal.jsonl", "kept/deep/er.csv", "runs/new/journal.jsonl"]
    marks = [f"{run}/{MARK}" for run in ("runs/new", "runs/old", "kept")]
    write_texts(data, dict.fromkeys([*mine, *theirs, *marks], ""))
    (work / "input").mkdir()
    (work / "input" / "train.csv").symlink_to(data / "train.csv")
    (work / "trick").symlink_to(data / ".env")
    local = Guard(work, readable=[data])
    for path in (*(str(data / name) for name in mine), str(data), "input/train.csv", "notes.txt"):
        assert local.check_tool("Read", {"file_path": path}) is None, path
    hidden = (*(str(data / name) for name in theirs), str(old), "trick", str(data / "sub" / ".." / ".env"))
    for path in (*hidden, "/root/.aws/credentials"):
        assert "may be read" in (local.check_tool("Read", {"file_path": path}) or ""), path
    for tool in ("Write", "Edit"):
        assert local.check_tool(tool, {"file_path": str(work / "a" / "b.py")}) is None
        assert local.check_tool(tool, {"file_path": "b.py"}) is None
        outside = (str(tmp_path / "x"), str(data / "train.csv"), "../x", "input/train.csv", "/etc/passwd", "~/.ssh/id")
        for path in outside:
            assert local.check_tool(tool, {"file_path": path}), path
    assert local.check_tool("NotebookEdit", {"notebook_path": "/x.ipynb"})
    assert local.check_tool("WebSearch", {"query": "rm -rf /"}) is None


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=200)
    | st.text(alphabet="rm -f/;|&<>()$`'\"\\{}\n#=*~:", max_size=60)
)
def test_no_text_makes_the_guard_fail(line: str) -> None:
    guard.check_command(line)


KEY = "sk-canary-6b1f0c9e"
HARNESS = """
import asyncio, sys
from mle_star.sdk import AgentClient, CallPolicy, EnvironmentFacts
from mle_star.models import AgentType, PipelineConfig, TaskDescription, agent_config
async def main():
    task = TaskDescription.model_validate_json(sys.argv[1])
    config = PipelineConfig(model="claude-sonnet-4-5", tool_profile="full", work_dir=sys.argv[2])
    policy = CallPolicy(retry_delays=(), busy_delays=(), cli_retries=0)
    async with AgentClient(task, config, EnvironmentFacts(), policy=policy, hidden=tuple(sys.argv[3:])) as agents:
        reply = await agents.ask(agent_config(AgentType.coder, None, "full"), "go", label="path-0", max_cost_usd=None)
        print(reply.text)
asyncio.run(main())
"""
MEMORY = """
import pathlib, re
word = b"sk-" + b"canary"  # so that this script does not find itself
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        maps, memory = (process / "maps").read_text().splitlines(), open(process / "mem", "rb", 0)
    except OSError:
        continue
    for line in maps:
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        try:
            memory.seek(start)
            found = re.search(word + b"-[0-9a-f]+", memory.read(min(end - start, 1 << 26)))
        except (OSError, ValueError, OverflowError):
            continue
        if found:
            print(process, found[0])
print("looked at memory")
"""
SYSTEM = """
import os
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("open:", path)
    except OSError as error:
        print("held:", path, error.strerror)
"""
OWNERS = """
import os
def tried(name, make):
    try:
        make(name)
    except OSError as error:
        print("refused:", error.strerror)
    mode = os.stat(name).st_mode & 0o7777 if os.path.exists(name) else 0
    print("made:" if mode & 0o6000 else "plain", oct(mode))
open("program", "w").close()
for bits in (0o4755, 0o2755, 0o6755):
    tried("program", lambda name: os.chmod(name, bits))
    tried(f"new{bits}", lambda name: os.close(os.open(name, os.O_CREAT | os.O_WRONLY, bits)))
    tried(f"node{bits}", lambda name: os.mknod(name, bits))
tried("program", lambda name: os.setxattr(name, "security.capability", bytes.fromhex("0000000201" + "00" * 15)))
"""
ASKING = """
import os, urllib.request
url = os.environ.get("ANTHROPIC_BASE_URL", "")
for path in ("/v1/models", "/", "/v1/messages"):
    for headers in ({}, {"x-api-key": os.environ.get("ANTHROPIC_API_KEY", "")}):
        try:
            request = urllib.request.Request(url + path, headers=headers)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            print(opener.open(request, timeout=5).read())
        except Exception as error:
            print("no answer:", type(error).__name__)
"""


LOOK = " 2>&1 | grep -aoE 'sk-[c]anary[-0-9a-f]*|MY_OTHER_[V]ARIABLE|ANTHROPIC_[A]PI_KEY=.' | head -c 2000; echo looked"
"""Not finding itself in lists of processes; short enough to come back whole."""


def python(text: str) -> str:
    return f"python3 - <<'END'\n{text}\nEND"


SEARCHES = {
    "its own work": "echo hello > made.txt; cat made.txt",
    "environment": "(env; export -p; set)" + LOOK,
    "processes' environments": "cat /proc/[0-9]*/environ /proc/$$/environ" + LOOK,
    "process list": "(ps axeww; cat /proc/[0-9]*/cmdline)" + LOOK,
    "memory": python(MEMORY),
    "files": "(cat {home}/.bashrc; grep -rsah canary $HOME $CLAUDE_CONFIG_DIR $TMPDIR {home})" + LOOK,
    "the labels": "cat {labels}/train.csv {labels}/../labels/*" + LOOK,
    "records around its work": "cat ../../../journal.jsonl" + LOOK,
    "other namespaces": "(umount /proc; cat /proc/*/environ; unshare -rpfm --mount-proc cat /proc/1/environ)" + LOOK,
    "kernel settings": "umount /proc/sys 2>/dev/null; " + python(SYSTEM),
    "programs that others run as their owner": "cp /bin/true true; chmod u+s true; ls -l true; " + python(OWNERS),
    "asking the proxy": python(ASKING),
}


@pytest.mark.req("REQ-OR-046")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for the key where Linux keeps it")
async def test_an_agent_with_a_shell_cannot_find_the_users_key(task: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    work = home / "project" / "work"  # of the home, this alone is for the agent
    write_texts(home, {"project/journal.jsonl": KEY, ".bashrc": f"export ANTHROPIC_API_KEY={KEY}\n"})
    labels = write_texts(tmp_path / "whole" / "labels", {"train.csv": f"id,y\n1,{KEY}\n"})
    brain = ScriptedBrain()
    commands = [text.replace("{home}", str(home)).replace("{labels}", str(labels)) for text in SEARCHES.values()]
    brain.reply_with("coder", *(BrainReply(tool=ToolCall("Bash", {"command": text})) for text in commands), "done")
    async with MessagesServer(brain) as server:
        given = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.base_url, "MY_OTHER_VARIABLE": KEY}
        harness = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HARNESS, task.model_dump_json(), str(work), str(labels), str(work.parent),
            env={**os.environ, **given, "HOME": str(home)}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert harness.stdout is not None
        environ = Path(f"/proc/{harness.pid}/environ")
        while not environ.read_text() and harness.returncode is None:  # empty while the program is being loaded
            await asyncio.sleep(0.01)
        assert KEY in environ.read_text()
        output, _ = await asyncio.wait_for(harness.communicate(), 600)
    assert output.decode().split()[-1] == "done", output
    assert {request.headers["x-api-key"] for request in brain.requests} == {KEY}  # the service got it
    assert {request.headers["x-mle-star-agent"] for request in brain.requests} == {"coder"}
    found = dict(zip(SEARCHES, brain.requests[-1].tool_results, strict=True))
    for place, text in found.items():
        assert "canary" not in text and "MY_OTHER" not in text, (place, text)
        if LOOK in SEARCHES[place]:
            assert text.split()[0] == "looked", (place, text)
    assert found["its own work"].startswith("hello") and "looked at memory" in found["memory"]
    assert "open:" not in found["kernel settings"] and found["kernel settings"].count("held:") == 2
    owners = found["programs that others run as their owner"]
    assert owners.count("plain") == 10 and owners.count("refused:") >= 8 and "made:" not in owners, owners
    assert "-rwxr-xr-x" in owners, owners
    left = [path for path in work.rglob("*") if path.stat().st_mode & 0o6000]
    assert not left and (work / "agents" / "path-0" / "true").exists()
    assert found["asking the proxy"].count("no answer:") == 6 and len(brain.requests) == len(SEARCHES) + 1
