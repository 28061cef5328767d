"""What the safety hook refuses by its text, and what it lets through: the rest is for the sandbox."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.data.place import MARK
from mle_star.sdk.hooks import Guard

WORK = Path("/srv/mle/work")
guard = Guard(WORK, readable=[Path("/srv/mle/data")], blocked=(r"\bgit\s+push\b", "curl [unbalanced"))


@pytest.mark.req("REQ-OR-033")
@pytest.mark.parametrize(
    "line",
    [
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
    ],
)  # fmt: skip
def test_the_listed_commands_and_writing_outside_are_refused(line: str) -> None:
    assert guard.check_command(line) is not None


@pytest.mark.req("REQ-OR-033")
@pytest.mark.parametrize(
    "line",
    [
        "python train.py --epochs 5 > log.txt 2>&1", "ls -la /srv/mle/data | head -5", "cat /etc/os-release", "",
        "rm -rf build ./tmp/* && mkdir -p out/a && touch out/a/b", "for f in a b; do rm $f; done", "dd of=x count=0",
        "cp /srv/mle/data/train.csv ./train.csv", "echo 'rm -rf /' > notes.txt", "X=out.txt; echo 1 > $X",
        "grep -rn 'dd if=' . ; echo \"mkfs is dangerous\"", "[ -f x ] && echo yes",
        "python - <<'EOF'\nimport os\nprint('rm -rf / is > /etc/passwd')\nrm -rf /\nEOF", "echo it's unbalanced",
        "cat > script.py <<'EOF'\nx = 3 > 2\nopen('/etc/passwd')\nEOF\npython script.py",
        "cat <<A <<-'B' | sort\nA\nrm -rf /\n  B\nls", "python -c \"print(1 if 2 > 1 else 0)\"",
        "tar -czf model.tar.gz model/", "bash -o pipefail -c 'python x.py | tee log.txt'",
        "nvidia-smi >/dev/null 2>&1 || true",
    ],
)  # fmt: skip
def test_ordinary_work_is_let_through(line: str) -> None:
    assert guard.check_command(line) is None


@pytest.mark.req("REQ-OR-033")
def test_the_list_can_be_extended() -> None:
    assert "git" in (guard.check_command("git  push origin main") or "")
    assert guard.check_command("curl [unbalanced x")
    assert Guard(WORK).check_command("git push") is None


@pytest.mark.req("REQ-OR-033")
def test_file_tools_stay_in_their_folders_and_read_nothing_that_is_no_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    work, old = data / "runs" / "new" / "work", data / "runs" / "old"
    mine, theirs = ["runs/new/work/notes.txt", "train.csv", "runs.csv", "sub/.keep"], ["runs/old/journal.jsonl", ".env"]
    theirs += [".cache/key", "kept/journal.jsonl", "kept/deep/er.csv", "runs/new/journal.jsonl"]
    for name in (*mine, *theirs, *(f"{run}/{MARK}" for run in ("runs/new", "runs/old", "kept"))):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).touch()
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
        for path in (
            str(tmp_path / "x"),
            "../x",
            str(data / "train.csv"),
            "input/train.csv",
            "/etc/passwd",
            "~/.ssh/id",
        ):
            assert local.check_tool(tool, {"file_path": path}), path
    assert local.check_tool("NotebookEdit", {"notebook_path": "/x.ipynb"})
    assert local.check_tool("WebSearch", {"query": "rm -rf /"}) is None


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=200)
    | st.text(alphabet="rm -f/;|&<>()$`'\"\\{}\n#=*~:", max_size=60)
)
def test_no_text_makes_the_guard_fail(line: str) -> None:
    guard.check_command(line)


@pytest.mark.parametrize(
    ("part", "length"),
    [
        *[(part, 30_000) for part in ("sudo ", "QUJD", "{a|", "(echo a) | ", "bash -c 'a ", "x > ")],
        *[(part, 120_000) for part in ("<<a\n", "<<a\na\n")],  # pair by pair these would take half a minute
    ],
)
def test_long_texts_are_scored_in_no_time(part: str, length: int) -> None:
    started = time.process_time()
    guard.check_command(part * (length // len(part)))
    assert time.process_time() - started < 15
