"""Attempts to reach what is not a script's, run as a script: each gives what it got hold of, or nothing, or fails.

Started in a working directory it tries them all, each in a process of its own, and prints what came of it.
`planted.json` says what was planted; where it names something to `leave`, that is left for a later script instead.
Nothing here harms the machine if it succeeds. Standard library only.
"""

import ctypes
import errno
import fcntl
import glob
import hashlib
import itertools
import json
import mmap
import os
import re
import resource
import signal
import socket
import stat
import struct
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
INTEL = os.uname().machine == "x86_64"
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT)
OWN = (".", "input", "final")
MAKE = os.O_CREAT | os.O_WRONLY
LEFT_TIME, LEFT_MODE = 77_777_777, 0o751


def call(intel, arm, *words):
    """A system call with arguments that do no harm: fails when it is refused, else says how far it came."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    answer = LIBC.syscall(intel if INTEL else arm, *words)
    number = ctypes.get_errno()
    if answer < 0 and number in REFUSALS:
        raise OSError(number, os.strerror(number))
    return f"answer {answer}, {os.strerror(number)}"


def read(path, most=200):
    with open(path, "rb") as file:
        return file.read(most)


def has_canary(w, path):
    return w["canary"].encode() in read(path, -1)


def opened(path, flags, mode=0o777):
    os.close(os.open(path, flags, mode))
    return f"{path} can be opened"


def writable(path):
    return opened(path, os.O_WRONLY)


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def below(folder):
    return (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)


def quietly(function, *words):
    try:
        return function(*words)
    except OSError as error:
        return error


def those(attempt, items):
    """The items with which an attempt succeeds."""
    answers = ((item, quietly(attempt, item)) for item in items)
    return [item for item, answer in answers if answer and not isinstance(answer, OSError)]


def first(attempt, items):
    """What an attempt gives with the first item that is not refused."""
    answers = (quietly(attempt, item) for item in items)
    return next((answer for answer in answers if not isinstance(answer, OSError)), None)


def any_call(pairs, *words):
    """Whether one of several system calls, by their numbers on both machines, is not refused."""
    return first(lambda pair: call(*pair, *words), pairs)


def connected(address, family=socket.AF_UNIX, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as client:
        client.connect(address)
    return True


def find_hidden_labels(w):
    found = set()
    for root in (".", "input", w["task"], os.path.dirname(w["task"]), w["home"], "/tmp", "/var/tmp", "/dev/shm"):
        for path in itertools.islice(below(root), 20000):
            text = quietly(read, path, 1 << 22)
            found |= set() if isinstance(text, OSError) else set(re.findall(rb"\b\d{9}\b", text))
    digests = {hashlib.sha256(label).hexdigest() for label in found}
    assert len(digests) > 50, "the labels that are shown are found"
    return sorted(digests & set(w["hidden"]))


def views_of_others(w):
    inside = os.path.relpath(w["home_file"], w["cwd"])
    return [place for pid in pids() for place in (f"/proc/{pid}/root{w['home_file']}", f"/proc/{pid}/cwd/{inside}")]


def leave_in_the_kernel(w):
    numbers = [LIBC.shmget(0, 4096, 0o1600), LIBC.msgget(0, 0o1600), LIBC.semget(0, 1, 0o1600)]
    numbers.append(LIBC.mq_open(b"/mle-star-left", 0o102, 0o600, None))
    return [number for number in numbers if number >= 0]


def terminal(w, flags):
    return opened(w["terminal"], flags) if os.stat(w["terminal"]).st_rdev == w["terminal_number"] else None


def send_datagrams(w):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", w["datagrams"]))
        for _ in range(3):
            sender.send(b"x")  # the second is refused when nobody got the first
            time.sleep(0.05)
    return True


def signal_program(w, name):
    os.kill(w[name], 0)
    return has_canary(w, f"/proc/{w[name]}/cmdline")


def supervisor_pipes(w):
    found = those(lambda pid: b"child.supervisor" in read(f"/proc/{pid}/cmdline", -1), pids())
    paths = [f"/proc/{pid}/fd/{number}" for pid in found for number in range(3, 30)]
    return first(lambda path: opened(path, os.O_WRONLY | os.O_NONBLOCK), paths)


def capabilities(w):
    usable = ("CapInh", "CapPrm", "CapEff", "CapAmb")
    lines = read("/proc/self/status", -1).decode().splitlines()
    return [line for line in lines if line.startswith(usable) and int(line.split()[1], 16)]


def clone_user_namespace(w):
    answer = LIBC.syscall(56, ctypes.c_long(0x10000000 | signal.SIGCHLD), 0, 0, 0, 0) if INTEL else -1
    if answer == 0:
        os._exit(0)
    return answer > 0


def native(code):
    """Run machine code."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


def matching(folder, *patterns):
    return [path for pattern in patterns for path in glob.glob(f"{folder}/{pattern}")]


def set_uid_programs(w):
    for bits in (0o4755, 0o2755, 0o6755):
        how = struct.pack("QQQ", MAKE, bits, 0)  # of openat2
        ways = {
            "chmod": lambda path: os.chmod(path, bits),
            "fchmod": lambda path: os.fchmod(os.open(path, os.O_RDONLY), bits),
            "fchmodat": lambda path: call(268, 53, -100, path.encode(), bits),
            "fchmodat2": lambda path: call(452, 452, -100, path.encode(), bits, 0),
            "open": lambda path: opened(f"{path}-new", MAKE, bits),
            "nameless": lambda path: named_later(f"{path}-new", bits),
            "mknod": lambda path: os.mknod(f"{path}-new", stat.S_IFREG | bits),
            "openat2": lambda path: call(437, 437, -100, f"{path}-new".encode(), how, 24),
        }
        for name, way in ways.items():
            path = f"{name}-{bits:o}"
            opened(path, MAKE, 0o755)
            quietly(way, path)
            for place in (path, f"{path}-new"):
                if os.path.exists(place) and os.stat(place).st_mode & 0o6000:
                    return f"{place} has mode {os.stat(place).st_mode:o}"
    return None


def named_later(path, bits):
    number = os.open(".", os.O_TMPFILE | os.O_WRONLY, bits)
    os.link(f"/proc/self/fd/{number}", path, follow_symlinks=True)


def elsewhere(w):
    return ("..", w["view"], w["data_file"], w["outside"])


def marked(place):
    status = os.stat(place)
    return LEFT_TIME in (status.st_atime, status.st_mtime) or stat.S_IMODE(status.st_mode) == LEFT_MODE


def leave(w):
    """All that a script could leave for the next one in the same folder, and what would spoil that folder for it."""
    inner = f"/dev/shm/left-{w['harness']}/folder"
    for place in (*elsewhere(w), *OWN):
        quietly(os.setxattr, place, "user.left", b"1")
        quietly(os.utime, place, (LEFT_TIME, LEFT_TIME))
    quietly(os.makedirs, inner)
    quietly(os.mknod, os.path.join(inner, "file"))
    for place in OWN[::-1]:
        quietly(os.chmod, place, LEFT_MODE)
        quietly(os.chmod, place, 0)


# By the names that they have in the documentation; a list that holds anything is a success.
ATTACKS = {
    # reading
    "read a file in the home folder": lambda w: read(w["home_file"]),
    "list the home folder": lambda w: os.listdir(w["home"]),
    "learn whether a file in the home folder exists, and its size": lambda w: os.stat(w["home_file"]).st_size,
    "watch the home folder for names of files": lambda w: (
        LIBC.inotify_add_watch(LIBC.inotify_init(), w["home"].encode(), 0x100) >= 0
    ),
    "read the answers beside the data in the task folder": lambda w: read(w["answers"]),
    "read the labels in the task's own table": lambda w: read(w["labels"]),
    "read the labels that another view of the data shows": lambda w: read(w["other_view"]),
    "read what another script answered": lambda w: read(w["other_answers"]),
    "find a label that is hidden from it, in any file within reach": find_hidden_labels,
    "read the journal of its own run": lambda w: read(w["journal"]),
    "read a file of another run": lambda w: read(w["other_run"]),
    "list the folder above its own": lambda w: set(os.listdir("..")) - {os.path.basename(os.getcwd())},
    "read a file elsewhere that everybody may read": lambda w: read(w["public"]),
    "read the home folder through a link of its own": lambda w: os.symlink(w["home_file"], "link") or read("link"),
    "read a file that it has linked hard into its folder": lambda w: os.link(w["precious"], "hard") or read("hard"),
    "read password hashes": lambda w: read("/etc/shadow"),
    "read private keys of the machine": lambda w: those(read, matching("/etc", "ssh/*_key", "ssl/private/*")),
    "read the machine's identity": lambda w: read("/etc/machine-id"),
    "read the kernel's log": lambda w: read("/dev/kmsg"),
    "read the sockets of services below /run": lambda w: os.listdir("/run"),
    "read the harness's environment": lambda w: has_canary(w, f"/proc/{w['harness']}/environ"),
    "read everybody's environment": lambda w: those(lambda pid: has_canary(w, f"/proc/{pid}/environ"), pids()),
    "read the memory of other processes": lambda w: (
        {1, w["neighbour"], w["harness"]} & {*those(lambda pid: opened(f"/proc/{pid}/mem", os.O_RDONLY), pids())}
    ),
    "see the command lines of other programs": lambda w: those(lambda n: has_canary(w, f"/proc/{n}/cmdline"), pids()),
    "go through another process's view of the files": lambda w: first(read, views_of_others(w)),
    "find a secret in the keyring": lambda w: (
        LIBC.syscall(250 if INTEL else 219, 10, ctypes.c_long(-4), b"user", w["canary"].encode(), 0) > 0
    ),
    "see the names of keys in the keyring": lambda w: has_canary(w, "/proc/keys"),
    "make a key for later": lambda w: call(248, 217, b"user", b"mle-star-test", b"x", 1, -2),
    "read another program's shared memory": lambda w: read(w["shared_memory"]),
    "attach another program's shared memory (System V)": lambda w: LIBC.shmget(w["segment"], 0, 0) >= 0,
    "leave something in the kernel for a later script (System V, message queues)": leave_in_the_kernel,
    # writing
    "write to a file elsewhere": lambda w: writable(w["precious"]),
    "empty a file elsewhere": lambda w: [os.truncate(w["precious"], 0)],
    "delete a file elsewhere": lambda w: [os.unlink(w["disposable"])],
    "rename a file elsewhere": lambda w: [os.rename(w["disposable"], w["disposable"] + "-moved")],
    "make a file elsewhere": lambda w: opened(w["precious"] + "-new", MAKE),
    "change the mode of a file elsewhere": lambda w: [os.chmod(w["precious"], 0o644)],
    "change the times of a file elsewhere": lambda w: [os.utime(w["precious"])],
    "change attributes of a file elsewhere": lambda w: [os.setxattr(w["precious"], "user.test", b"1")],
    "write to the data": lambda w: writable("input/train.csv"),
    "write to the data by their real name": lambda w: writable(w["data_file"]),
    "change mode and times of the data": lambda w: [os.chmod("input/train.csv", 0o644), os.utime("input/train.csv")],
    "plant code among the interpreter's packages": lambda w: first(
        lambda folder: opened(f"{folder}/planted.pth", MAKE),
        [path for path in sys.path if path.endswith("-packages") or path == sys.prefix],
    ),
    "change the harness's own code": lambda w: writable(w["harness_code"]),
    "write a setting of the kernel (core_pattern leads to root)": lambda w: writable("/proc/sys/kernel/core_pattern"),
    "write any setting of the kernel": lambda w: first(writable, below("/proc/sys")),
    "press the kernel's emergency keys": lambda w: writable("/proc/sysrq-trigger"),
    "steer interrupts and devices": lambda w: first(
        writable, matching("/proc/irq", "*", "*/*") + matching("/sys", "power/*", "class/*/*/uevent", "module/*/uevent")
    ),
    "raise its own control group's limits": lambda w: first(
        writable,
        (path for path in below("/sys/fs/cgroup") if path.endswith((".max", ".limit_in_bytes", "cgroup.procs"))),
    ),
    "protect itself from the out-of-memory killer": lambda w: os.write(
        os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000"
    ),
    # devices
    "write to the user's terminal": lambda w: terminal(w, os.O_WRONLY),
    "read what the user types": lambda w: terminal(w, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY),
    "type for the user (TIOCSTI)": lambda w: [fcntl.ioctl(os.openpty()[1], 0x5412, b"x")],
    "paste for the user (TIOCLINUX)": lambda w: call(16, 29, 0, 0x541C, bytes(8)),
    "open disks, memory or the console": lambda w: those(
        lambda path: opened(path, os.O_RDONLY | os.O_NONBLOCK),
        matching("/dev", "[svx]d[a-z]*", "nvme*", "loop*", "mem", "console", "kvm", "fuse", "net/tun"),
    ),
    "make a device of its own": lambda w: [os.mknod("device", 0o600 | stat.S_IFBLK, os.makedev(254, 0))],
    # network and services
    "connect to a server on this machine": lambda w: connected(("127.0.0.1", w["port"]), socket.AF_INET),
    "connect by IPv6": lambda w: connected(("::1", w["port6"]), socket.AF_INET6),
    "send a datagram to this machine": send_datagrams,
    # needs a route, sends nothing
    "reach the world outside": lambda w: connected(("192.0.2.1", 53), socket.AF_INET, socket.SOCK_DGRAM),
    "listen to raw traffic": lambda w: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0),
    "send raw packets": lambda w: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "talk to the hypervisor (AF_VSOCK)": lambda w: socket.socket(40, socket.SOCK_STREAM),
    "use the kernel's ciphers (AF_ALG)": lambda w: socket.socket(38, socket.SOCK_SEQPACKET),
    "listen to the kernel's events (netlink)": lambda w: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15),
    "talk to a service by its socket file": lambda w: connected(w["socket"]),
    "talk to a service by an abstract socket": lambda w: connected("\0" + w["abstract"]),
    # other processes
    "signal the harness": lambda w: signal_program(w, "harness"),
    "signal another program of the user": lambda w: signal_program(w, "neighbour"),
    "take away the harness's limits (prlimit)": lambda w: resource.prlimit(w["harness"], resource.RLIMIT_CORE, (0, 0)),
    "slow another program down (scheduling)": lambda w: (
        has_canary(w, f"/proc/{w['neighbour']}/cmdline")
        and [os.sched_setaffinity(w["neighbour"], os.sched_getaffinity(w["neighbour"]))]
    ),
    "trace another program (ptrace)": lambda w: call(101, 117, 0x4206, w["neighbour"], 0, 0),
    "read another program's memory by call (process_vm_readv)": lambda w: call(310, 270, w["neighbour"], 0, 0, 0, 0, 0),
    "take another program's open files (pidfd_getfd)": lambda w: call(438, 438, -1, 0, 0),
    "write to the pipe on which its own end is told": lambda w: (
        {*those(lambda number: [os.fstat(number)], range(3, 256))} - {*w["mine"]}
    ),
    "open the supervisor's pipes by way of /proc": supervisor_pipes,
    "have rights that others have not (capabilities)": capabilities,
    "gain rights by a set-uid program": lambda w: b"NoNewPrivs:\t1" not in read("/proc/self/status", -1),
    "be root": lambda w: os.getuid() == 0,
    # the kernel
    "make a user namespace (unshare)": lambda w: call(272, 97, 0x10000000),
    "make a user namespace (clone)": clone_user_namespace,
    "make a namespace (clone3)": lambda w: call(435, 435, 0, 0),
    "enter another namespace": lambda w: call(308, 268, os.open("/proc/self/ns/user", os.O_RDONLY), 0),
    "mount something": lambda w: call(165, 40, b"none", b"final", b"tmpfs", 0, 0),
    "mount something by the new calls": lambda w: any_call(
        [(one, one) for one in (428, 429, 430, 431, 432, 433, 442)], -1, 0, 0, 0, 0
    ),
    "unmount what hides the rest": lambda w: call(166, 39, b"/nowhere", 2),
    "change its root": lambda w: call(161, 51, b"."),
    "open files by handle, past all paths": lambda w: call(304, 265, -1, 0, 0),
    "get handles of files": lambda w: call(303, 264, -100, b".", bytes(136), bytes(8), 0),
    "use io_uring, which other filters do not see": lambda w: call(425, 425, 1, bytes(120)),
    "load a program into the kernel (bpf)": lambda w: call(321, 280, 0, 0, 0),
    "watch the processor's counters": lambda w: call(298, 241, 0, 0, -1, -1, 0),
    "stop the kernel in its tracks (userfaultfd)": lambda w: call(323, 282, 1),
    "hide memory from everybody (memfd_secret)": lambda w: call(447, 447, 0),
    "load a kernel or a module": lambda w: any_call(((175, 105), (313, 273), (246, 104), (320, 294)), -1, 0, 0, 0, 0),
    "restart the machine, swap, quotas, accounting": lambda w: any_call(
        ((169, 142), (167, 224), (168, 225), (179, 60), (443, 443), (163, 89)), 0, 0, 0, 0
    ),
    "set the clock or the machine's name": lambda w: any_call(
        ((227, 112), (164, 170), (305, 266), (170, 161), (171, 162)), 0, -1
    ),
    "reach the kernel by another architecture's calls (32 bits)": lambda w: (
        INTEL and native(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3])) > 0
    ),
    "reach the kernel by another architecture's calls (x32)": lambda w: (
        INTEL and LIBC.syscall(ctypes.c_long(0x40000000 + 39)) > 0
    ),
    # from one script to a later one
    "find attributes that an earlier script has set on its folder, on the data or elsewhere": lambda w: [
        p for p in (*OWN, *elsewhere(w)) if quietly(os.getxattr, p, "user.left") == b"1"
    ],
    "find what an earlier script has left in shared memory": lambda w: os.path.exists(f"/dev/shm/left-{w['harness']}"),
    "find times or modes that an earlier script has set on its folder": lambda w: [*filter(marked, OWN)],
    "find times that an earlier script has set elsewhere": lambda w: [*filter(marked, elsewhere(w))],
    "leave a program that others would run as its owner (set-uid, set-gid)": set_uid_programs,
    "write to the root of its file system": lambda w: first(
        lambda top: opened(f"{top}/planted", MAKE), ("/", "/etc", "/dev", "/usr", "/var", "/home", "/root")
    ),
}


def try_one(function, w):
    """What came of it, told by a process of its own, since some attempts end the process."""
    inner, outer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            answer = function({**w, "mine": [inner, outer]})
            line = f"open: {answer!r}" if answer else "held: nothing found"
        except BaseException as error:
            line = f"held: {type(error).__name__} {error}"
        os.write(outer, line[:300].encode("utf-8", "backslashreplace"))
        os._exit(0)
    os.close(outer)
    status = os.waitpid(pid, 0)[1]
    line = os.read(inner, 4096)
    os.close(inner)
    return line.decode("utf-8", "replace") or f"held: ended by signal {os.WTERMSIG(status)}"


def main():
    with open("planted.json") as file:
        w = json.load(file)
    if w["leave"]:
        leave(w)
        return
    print(json.dumps({title: try_one(function, w) for title, function in ATTACKS.items()}))


if __name__ == "__main__":
    main()
