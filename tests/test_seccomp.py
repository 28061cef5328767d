"""The filter of system calls: what libseccomp makes of our list on each architecture, and what is said without it."""

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mle_star.seccomp import filter_program, shell_filter
from tests.conftest import as_kept

name_of = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_num_arch
name_of.restype = ctypes.c_char_p
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED, REFUSED, ABSENT, KILLED = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
ANSWERS = {REFUSED: "refused", ABSENT: "absent", 0x0005005F: "no attributes"}
NO_FAMILY, NO_NETWORK, PRETENDED = 0x00050061, 0x00050065, 0x00050000
CHECKED = {"clone": (56, 220), "unshare": (272, 97), "ioctl": (16, 29), "prlimit64": (302, 261), "socket": (41, 198)}
MODES = {"chmod": (90, None, 1), "fchmod": (91, 52, 1), "fchmodat": (268, 53, 2), "fchmodat2": (452, 452, 2)}
"""Numbers, and which argument is a mode; likewise for what makes files."""
NEW = {"creat": (85, None, 1), "mknod": (133, None, 1), "mknodat": (259, 33, 2)}
OPENS = {"open": (2, None, 2), "openat": (257, 56, 3)}
YOUNG = {440, 442, 443, 447, 452, 457, 458, 463, 466, 467}
"""Where libseccomp does not know these by name, it can refuse them on its own architecture only."""
HIGH = 1 << 40  # what the kernel does not look at in an `int`


def scored(program: bytes, machine: int, number: int, *words: int) -> int:
    """What the kernel would answer to a call, by the rules of its filter programs."""
    lines = list(struct.iter_unpack("=HBBI", program))
    given = struct.pack("<IIQ6Q", number, machine, 0, *words, *[0] * (6 - len(words)))
    value = place = 0
    while True:
        code, yes, no, constant = lines[place]
        place += 1
        if code == 0x06:
            return int(constant)
        if code == 0x20:
            value = struct.unpack_from("<I", given, constant)[0]
        elif code == 0x54:
            value &= constant
        elif code == 0x05:
            place += constant
        else:
            place += yes if {0x15: value == constant, 0x25: value > constant, 0x35: value >= constant}[code] else no


def test_each_architecture_refuses_the_list_and_nothing_else() -> None:
    """What it does not refuse it allows; those of one number everywhere are in the list of this machine."""
    lines = list[str]()
    for machine, code in MACHINES.items():
        young = YOUNG if machine == os.uname().machine else set[int]()
        for kind, program in (("scripts", filter_program(True, machine)), ("shell", shell_filter(machine))):
            for number in {*range(1024)} - (YOUNG - young):
                answer = scored(program, code, number, 1)
                place = "anywhere" if number in YOUNG else f"on {machine}: {(name_of(code, number) or b'').decode()}"
                lines += [f"{kind} {place} {number} {ANSWERS.get(answer, answer)}"] * (answer != ALLOWED)
    as_kept("seccomp.txt", "\n".join(sorted(lines)))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("world", [ALLOWED, NO_NETWORK])
def test_what_depends_on_arguments_is_scored_by_them(machine: str, world: int) -> None:
    column, program = list(MACHINES).index(machine), filter_program(world == ALLOWED, machine)

    def answer(name: str, *words: int) -> int:
        return scored(program, MACHINES[machine], CHECKED[name][column], *words)

    for name, kinds in (("clone", range(25, 31)), ("unshare", (7, *range(25, 31)))):
        assert {answer(name, 1 << bit) for bit in (17, *kinds)} == {REFUSED}, name
        assert {answer(name, 1 << bit) for bit in (0, 4, 8, 10, 16, 18, 24)} == {ALLOWED}, name
        assert answer(name, HIGH | 0x10000011) == REFUSED
    assert [answer("ioctl", 0, word) for word in (0x5401, 0x5412, 0x541C)] == [ALLOWED, REFUSED, REFUSED]
    assert answer("ioctl", 0, HIGH | 0x5412) == REFUSED
    for own in (0, HIGH):
        assert (answer("prlimit64", own, 7, 1), answer("prlimit64", 77, 7, 0)) == (ALLOWED, ALLOWED)
    for other in (1, 77, 1 << 31):
        assert (answer("prlimit64", other, 7, 1), answer("prlimit64", other, 7, HIGH)) == (REFUSED, REFUSED)
    for high in (0, HIGH):
        families = {family: answer("socket", high | family, 1, 0) for family in (*range(300), 1 << 31, 0xFFFFFFFF)}
        assert [families.pop(family) for family in (1, 2, 10, 16)] == [ALLOWED, world, world, ALLOWED]
        assert set(families.values()) == {NO_FAMILY}
        assert {answer("socket", 16, 3, high | protocol) for protocol in range(1, 40)} == {NO_FAMILY}
        assert answer("socket", 16, 3, high) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("made", [lambda machine: filter_program(False, machine), shell_filter])
def test_no_mode_makes_a_program_run_as_its_owner(machine: str, made: Callable[[str], bytes]) -> None:
    column, program = list(MACHINES).index(machine), made(machine)

    def answers(calls: dict[str, tuple[int, int | None, int]], mode: int, flags: int = 0) -> set[int]:
        young = YOUNG if machine != os.uname().machine else set()
        known = [(call[column], call[2]) for call in calls.values() if call[column] not in (None, *young)]
        words = [(number or 0, *[0] * (place - 1), flags, mode) for number, place in known]
        return {scored(program, MACHINES[machine], *given) for given in words}

    for plain in (0o777, 0o1755, 0o100644):
        assert answers(MODES, plain) == answers(NEW, plain) == answers(OPENS, plain, os.O_CREAT) == {ALLOWED}
    for bits in (0o4755, 0o4000, HIGH | 0o4711):
        assert answers(MODES, bits) == answers(NEW, bits) == answers(OPENS, bits, os.O_CREAT) == {REFUSED}
    assert answers(MODES, 0o2755) == {PRETENDED}, "a copied folder of a shared group has this bit"
    assert ALLOWED not in answers(MODES, 0o6755)
    for flags in (os.O_CREAT, os.O_TMPFILE, os.O_CREAT | os.O_WRONLY | os.O_EXCL):
        assert answers(NEW, 0o2755) == answers(OPENS, 0o2755, flags) == {REFUSED}
    assert answers(OPENS, 0o6755, os.O_RDONLY) == {ALLOWED}, "nothing is made, so that is no mode"


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_end_the_process_and_one_not_known_has_no_filter(machine: str) -> None:
    for program in (filter_program(False, machine), shell_filter(machine)):
        assert scored(program, MACHINES[machine], 0) == ALLOWED
        for other in {*MACHINES.values(), 0x40000003, 0x40000028} - {MACHINES[machine]}:  # 32 bits, too
            assert scored(program, other, 0) == KILLED
        numbers = (0, 59, 520, 1023) if machine == "x86_64" else ()
        assert all(scored(program, MACHINES[machine], 0x40000000 | number) == KILLED for number in numbers)
    with pytest.raises(OSError, match="only those of x86-64 and arm64"):
        filter_program(False, "riscv64")
    with pytest.MonkeyPatch.context() as full, pytest.raises(OSError, match=r"cannot write the filter .*: install lib"):
        full.setattr("tempfile.tempdir", "/none")
        shell_filter(machine)


WITHOUT = """
import asyncio, os, sys
from mle_star.cli.app import main
from mle_star.errors import ConfigError
from mle_star.execution import LocalExecutor
from mle_star.models import PipelineConfig
from mle_star.run.context import ScriptRequest

folder, script = sys.argv[1:]
request = ScriptRequest(script_path=script, working_dir=folder, timeout_seconds=240, env={"PATH": "/usr/bin"})
for kind in ("auto", "namespaces", "none"):
    raw = asyncio.run(LocalExecutor(sandbox=kind).run(request))
    print(raw.isolation.sandbox, raw.isolation.network_blocked, raw.stdout.strip())
try:
    LocalExecutor(PipelineConfig(require_sandbox=True)).announce()
except ConfigError as error:
    print(error, os.environ["PATH"])
for is_required in ("false", "true"):
    main(["doctor", "--model", "offline", "--set", "tool_profile=full", "--set", f"require_sandbox={is_required}"])
"""


def test_without_the_library_it_is_said_everywhere_and_with_what_to_install(tmp_path: Path) -> None:
    """A file that is no library stands in the way of the real one."""
    (tmp_path / "libseccomp.so.2").write_text("nothing\n")
    script = tmp_path / "solution.py"
    script.write_text("print(open('/proc/self/status').read().split('Seccomp:')[1].split()[0])")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "COLUMNS": "1000", "PATH": f"{os.environ['PATH']}:here"}
    words = [sys.executable, "-c", WITHOUT, str(tmp_path), str(script)]
    output = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
    before = Path("/proc/self/status").read_text().split("Seccomp:")[1].split()[0]  # a container's own
    *ran, refused = output.splitlines()[:4]
    doctor = output.splitlines()[4:]
    assert ran == [f"bubblewrap True {before}", f"namespaces True {before}", f"none False {before}"]
    assert "require_sandbox is set, but scripts would run without a filter of system calls" in refused
    assert refused.endswith(f" {env['PATH']}"), "given back"
    (line, required) = [line for line in doctor if "script sandbox" in line]
    assert (line.split()[0], required.split()[0]) == ("note", "problem")
    for text in (refused, line, required):
        assert "libseccomp.so.2" in text and "apt install libseccomp2" in text
    assert "bubblewrap: scripts run without a filter" in line
    shell = next(line for line in doctor if "agents' shell" in line)
    assert "set-uid programs cannot be forbidden (libseccomp.so.2 is missing" in shell
