"""What the safety hook refuses, in every disguise that hypothesis can think of; and what it lets through."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mle_star.agents.guard import Guard

WORK = Path("/srv/mle/work")
hunt = settings(max_examples=100, deadline=None)
guard = Guard(WORK, readable=[Path("/srv/mle/data")], blocked=(r"\bgit\s+push\b", "curl [unbalanced"))


# --- disguises -------------------------------------------------------------------------------------------


@st.composite
def spelt(draw: st.DrawFn, word: str) -> str:
    """A word as a shell would still read it: quotes and backslashes anywhere in it."""
    out = []
    for index, char in enumerate(word):
        way = draw(st.sampled_from(["plain", "plain", "plain", "single", "double", "escaped", "empty", "ansi"]))
        if way == "single":
            out.append(f"'{char}'")
        elif way == "double":
            out.append(f'"{char}"')
        elif way == "escaped" and char.isalpha() and char not in "\n":
            out.append(f"\\{char}")
        elif way == "empty" and index:
            out.append("''" + char)
        elif way == "ansi" and ord(char) < 128:
            out.append(f"$'\\x{ord(char):02x}'")
        else:
            out.append(char)
    return "".join(out)


blanks = st.text(alphabet=" \t", min_size=1, max_size=3) | st.just(" \\\n ")
before = st.sampled_from(
    ["", "", "true; ", "cd . && ", "ls -la | cat;", "x=1\n", "if true; then ", "( ", "! ", "# hi\n"]
)
wrappers = st.sampled_from(
    [
        "",
        "",
        "sudo ",
        "sudo -n -u root ",
        "env ",
        "env A=1 B=2 ",
        "/usr/bin/env -i ",
        "nohup ",
        "time ",
        "nice -n 5 ",
        "command ",
        "exec ",
        "timeout -k 1 10 ",
        "setsid ",
        "A=b ",
        "busybox ",
        "doas -u root ",
        "sudo env X=y nice ",
        "sudo --user root ",
        "sudo -nu root FOO=bar ",
        "env --unset X ",
        "env -u X -C / ",
        "timeout --signal KILL 5 ",
        "timeout --kill 1 5 ",
        "nice --adjustment 5 ",
        "ionice -c 2 --classdata 7 ",
        "stdbuf --output L ",
        "xargs -i ",
        "env - ",
        "flock lock ",
    ]
)
after = st.sampled_from(["", "", ";", " && echo done", " &", " 2>/dev/null", " | cat", "\n", " # harmless", " )"])
shells = st.sampled_from(
    ["{}", "{}", "{}", "sh -c {q}", "bash -lc {q}", "/bin/bash -c {q}", "eval {q}",
     "$({})", "`{}`", "sudo sh -ec {q}", "echo {q} | sh", "bash <<< {q}", "bash <<EOF\n{}\nEOF",
     "bash -c -- {q}", "sh -c -e {q}", "bash -o pipefail -c {q} name", "su root -c {q}", "su --command={q}",
     "su -lc {q} root", "watch {q}", "echo -n {q} | sh", "echo -e {q} | sudo sh", "printf '%s' {q} | bash",
     "printf '%s\\n' x {q} | bash", "echo {q} | tee x | cat | sh", "cat <<EOF | tee x | sh\n{}\nEOF",
     "(echo {q}; echo x) | sh", "for i in 1; do echo {q}; done | sh", "trap {q} EXIT", "function f {{ {}\n}}; f"]
)  # fmt: skip


def quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@st.composite
def disguised(draw: st.DrawFn, words: list[str], *, path: str = "") -> str:
    """A command line that does what `words` say."""
    program = draw(
        st.sampled_from(["", "/bin/", "/usr/bin/", "/usr/sbin/", "./../../../bin/"]) if path else st.just("")
    )
    parts = [draw(spelt(program + words[0]))]
    for word in words[1:]:
        parts += [draw(blanks), draw(spelt(word))]
    line = draw(wrappers) + "".join(parts)
    form = draw(shells)
    if "`" in form and ("`" in line or "\\" in line):
        form = "{}"
    line = form.replace("{q}", quote(line)).replace("{}", line).replace("{{", "{").replace("}}", "}")
    return draw(before) + line + draw(after)


rm_flags = st.sampled_from(
    [["-rf"], ["-fr"], ["-r", "-f"], ["-f", "-r"], ["--recursive", "--force"], ["-Rf"], ["-rfv"], ["-r", "--force"],
     ["--force", "-r"], ["-rf", "--no-preserve-root"], ["-rf", "--"]]
)  # fmt: skip
roots = st.sampled_from(
    ["/", "/*", "//", "/.", "/./", "/../", "/home", "/etc/passwd", "~", "~/",
     "$HOME", "${HOME}/x", "../..", "..", "/srv/mle/data", "/srv/mle/work/../data", "/srv/mle/workshop"]
)  # fmt: skip


@pytest.mark.req("REQ-OR-033")
@hunt
@given(st.data())
def test_rm_of_anything_outside_is_refused_however_it_is_spelt(data: st.DataObject) -> None:
    flags, target = data.draw(rm_flags), data.draw(roots)
    if target.startswith("/"):
        line = data.draw(disguised(["rm", *flags, target], path="/bin"))
    else:  # a tilde or a variable is one only without quotes
        line = data.draw(before) + data.draw(wrappers) + " ".join(["rm", *flags, target]) + data.draw(after)
    assert guard.check_command(line) is not None, line


@pytest.mark.req("REQ-OR-033")
@hunt
@given(
    option=st.sampled_from(["-S ", "-S", "-iS ", "-vS", "--split-string=", "--split-string ", "--split=", "-u X -S "]),
    inner=st.sampled_from(["rm -rf {}", "-i A=1 rm -rf {}", "/bin/rm -rf {}", 'sh -c "rm -rf {}"', "sudo -u me rm {}"]),
    target=st.sampled_from(["/", "/home", "../x", "/srv/mle/data"]),
    outer=wrappers,
)
def test_a_command_that_env_splits_is_refused(option: str, inner: str, target: str, outer: str) -> None:
    line = f"{outer}env {option}{quote(inner.format(target))}"
    assert guard.check_command(line) is not None, line


@pytest.mark.req("REQ-OR-033")
@hunt
@given(disguised(["mkfs", "/dev/sda1"], path="/sbin") | disguised(["mkfs.ext4", "-F", "/dev/vda"], path="/sbin"))
def test_mkfs_is_refused_however_it_is_spelt(line: str) -> None:
    assert guard.check_command(line) is not None, line


@pytest.mark.req("REQ-OR-033")
@hunt
@given(disguised(["dd", "if=/dev/zero", "of=x", "bs=1M"], path="/bin") | disguised(["dd", "bs=1", "if=a"], path="/bin"))
def test_dd_from_anything_is_refused_however_it_is_spelt(line: str) -> None:
    assert guard.check_command(line) is not None, line


@pytest.mark.req("REQ-OR-033")
@hunt
@given(
    name=st.sampled_from([":", "f", "bomb", "x_1"]),
    gaps=st.lists(st.sampled_from(["", " ", "  ", "\n", "\t"]), min_size=9, max_size=9),
    head=st.sampled_from(["{0}()", "function {0}", "{0} ( )"]),
    pre=before,
)
def test_fork_bombs_are_refused_however_they_are_spaced(name: str, gaps: list[str], head: str, pre: str) -> None:
    g = iter(gaps)
    body = f"{next(g)} {name}{next(g)}|{next(g)}{name}{next(g)}&{next(g)}"
    bomb = f"{head.format(name)}{next(g)}{{{body}}}{next(g)};{next(g)}{name}"
    assert guard.check_command(pre + bomb) is not None, bomb


@pytest.mark.req("REQ-OR-033")
@hunt
@given(
    target=st.sampled_from(["/etc/passwd", "/srv/mle/data/train.csv", "../x", "~/.bashrc", "$HOME/.profile", "/tmp/x"]),
    form=st.sampled_from(
        ["echo x > {}", "echo x >> {}", "echo x>{}", "cat <in >| {}", "cmd &> {}", "cmd 2> {}", "cmd >& {}",
         "a | tee {}", "tee -a {} < in", "cp a {}", "cp -t {} a", "mv a {}", "mv {} a", "ln -s a {}",
         "touch {}", "mkdir -p {}", "chmod -R 777 {}", "chown root {}", "truncate -s 0 {}", "sed -i s/a/b/ {}",
         "dd of={}", "install a {}",
         "rsync -a a {}", "find {} -delete", "find {} -exec rm -rf '{{}}' +", "unlink {}", "shred {}", "curl -o {} u",
         "wget -O {} u", "tar -xf a.tar -C {}", "python x.py > {} 2>&1", "sudo sh -c 'echo x > {}'",
         "echo {} | xargs rm -rf", "cd / && rm -rf {}", "X={}; rm -rf $X", "bash -c \"cat > {}\"",
         "cp --target-directory {} a", "cp -rt {} a", "mv --target={} a", "curl --output {} u", "curl -fsSLo {} u",
         "curl -D {} u", "wget -qO {} u", "wget --directory-prefix {} u", "find -L {} -delete", "find . -fprint {}",
         "find -D tree {} -delete", "chmod -x {}", "sed -i --expression=s/a/b/ {}", "echo x > ${{X:-{}}}",
         "echo x > \"${{X:-${{Y-{}}}}}\"", ": ${{X:={}}}; echo x > $X", "printf %s {} | xargs rm -rf"]
    ),
    pre=before,
)  # fmt: skip
def test_writing_outside_the_working_directory_is_refused(target: str, form: str, pre: str) -> None:
    line = pre + form.format(target)
    assert guard.check_command(line) is not None, line


@pytest.mark.req("REQ-OR-033")
@pytest.mark.parametrize(
    "line",
    [
        "cd / && rm -rf *",
        "cd ..; touch x",
        "pushd /tmp; echo x > y",
        "{rm,-rf,/}",
        "C=rm; $C -rf /",
        "C='rm -rf /'; $C",
        "$UNKNOWN -rf /",
        "rm -rf $UNSET/",
        "find / -exec sh -c 'rm -rf /' \\;",
        "eval $(echo rm -rf /)",
        "echo hi; bash -c \"bash -c 'rm -rf /'\"",
        "r\\\nm -rf /",
        "su -c 'rm -rf /'",
        "/bin/r? -rf /",
        "cat <<EOF | sh\nrm -rf /\nEOF",
        "env -C / rm -rf etc",
        "sudo --chdir=/ rm -rf etc",
        "chroot / rm -rf etc",
        "echo '\\rm -rf /' | sh",
        "echo -e '\\x72m -rf /' | sh",
        "printf '%s %s %s' rm -rf / | sh",
        "${X:-rm} -rf /",
        "runuser -u root -- rm -rf /",
    ],
)
def test_detours_are_refused_too(line: str) -> None:
    assert guard.check_command(line) is not None


@pytest.mark.req("REQ-OR-033")
@pytest.mark.parametrize(
    "line",
    [
        "python train.py --epochs 5 > log.txt 2>&1",
        "ls -la /srv/mle/data | head -5",
        "rm -rf build ./tmp/* && mkdir -p out/a && touch out/a/b",
        "cat /etc/os-release",
        "cp /srv/mle/data/train.csv ./train.csv",
        "echo 'rm -rf /' > notes.txt",
        "grep -rn 'dd if=' . ; echo \"mkfs is dangerous\"",
        "python - <<'EOF'\nimport os\nprint('rm -rf / is > /etc/passwd')\nEOF",
        "cat > script.py <<'EOF'\nx = 3 > 2\nopen('/etc/passwd')\nEOF",
        "cd sub && echo x > y",
        "for i in 1 2 3; do echo $i; done",
        "nvidia-smi >/dev/null 2>&1 || true",
        "sed 's/a/b/' in.txt > out.txt",
        "find . -name '*.pyc' -delete",
        "head -c 10 < train.csv",
        "X=out.txt; echo 1 > $X",
        "[ -f x ] && echo yes",
        "python -c \"print(1 if 2 > 1 else 0)\"",
        "dd of=x count=0",
        "tar -czf model.tar.gz model/",
        "rm -rf $PWD/tmp",
        "rm model.bin",
        "env -u X -C sub python train.py",
        "timeout --signal KILL 60 python train.py > log.txt",
        "sudo --user me FOO=bar touch x",
        "curl -fsSL https://example.org/y -o data.json",
        "curl -d@/co/x -O https://example.org/y",
        "wget -qO- https://example.org/y | head",
        "printf '%s\\n' 'rm -rf /' | tee notes.txt",
        "cp -t out /srv/mle/data/train.csv",
        "rsync -t /srv/mle/data/train.csv .",
        "X=${OUT:-out.txt}; echo 1 > $X",
        "sed -i -e '/a/d' -e '/b/d' x",
        "bash -o pipefail -c 'python x.py | tee log.txt'",
        "find -L . -name '*.pyc' -delete",
        "su me -c 'ls /etc'",
        "chmod -x run.sh",
        "watch -n 1 nvidia-smi",
        "trap 'rm -f lock' EXIT; (echo b; echo a) | sort > out.txt",
        "for i in 1 2; do echo $i; done | sort",
    ],
)  # fmt: skip
def test_ordinary_work_is_let_through(line: str) -> None:
    assert guard.check_command(line) is None


@pytest.mark.req("REQ-OR-033")
def test_the_list_can_be_extended() -> None:
    assert "git" in (guard.check_command("git  push origin main") or "")
    assert guard.check_command("g'it' pu\\sh --force")
    assert guard.check_command("curl [unbalanced x")
    assert Guard(WORK).check_command("git push") is None


@pytest.mark.req("REQ-OR-033")
def test_file_tools_stay_in_their_folders(tmp_path: Path) -> None:
    work, data = tmp_path / "work", tmp_path / "data"
    work.mkdir()
    data.mkdir()
    (work / "input").symlink_to(data)
    local = Guard(work, readable=[data])
    assert local.check_tool("Write", {"file_path": str(work / "a" / "b.py")}) is None
    assert local.check_tool("Edit", {"file_path": "b.py"}) is None
    for outside in (
        str(tmp_path / "x"),
        "../x",
        str(data / "train.csv"),
        "input/train.csv",
        "/etc/passwd",
        "~/.ssh/id",
    ):
        assert local.check_tool("Write", {"file_path": outside}), outside
        assert local.check_tool("Edit", {"file_path": outside}), outside
    assert local.check_tool("NotebookEdit", {"notebook_path": "/x.ipynb"})
    assert local.check_tool("Read", {"file_path": "input/train.csv"}) is None
    assert local.check_tool("Read", {"file_path": str(data / "train.csv")}) is None
    assert local.check_tool("Read", {"file_path": "/root/.aws/credentials"})
    assert local.check_tool("WebSearch", {"query": "rm -rf /"}) is None


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=200)
    | st.text(alphabet="rm -f/;|&<>()$`'\"\\{}\n#=*~:", max_size=60)
)
def test_no_text_makes_the_guard_fail(line: str) -> None:
    guard.check_command(line)


@pytest.mark.parametrize("part", ["sudo ", "QUJD", "{a|", "(echo a) | ", "${X:-", "echo a | sh | "])
def test_long_texts_are_judged_in_no_time(part: str) -> None:
    started = time.perf_counter()
    guard.check_command(part * (30_000 // len(part)))
    assert time.perf_counter() - started < 5
