"""Attempts to reach what is not a script's, run as a script: each returns what it got hold of, or fails.

Started in a working directory it tries them all, each in a process of its own, and prints what came of it.
`planted.json` says what was planted; where it names something to `leave`, that is left for a later script instead.
Nothing here harms the machine if it succeeds. Standard library only.
"""

import ctypes
import errno
import fcntl
import glob
import hashlib
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

ATTACKS = []  # (what it tries, the function)
LIBC = ctypes.CDLL(None, use_errno=True)
INTEL = os.uname().machine == "x86_64"
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAFNOSUPPORT)


def attack(title):
    """An attempt, by the name that it has in the documentation."""

    def keep(function):
        ATTACKS.append((title, function))
        return function

    return keep


def call(intel, arm, *words):
    """A system call with arguments that do no harm: fails when it is refused, else says how far it came."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    answer = LIBC.syscall(intel if INTEL else arm, *words)
    number = ctypes.get_errno()
    if answer < 0 and number in REFUSALS:
        raise OSError(number, os.strerror(number))
    return f"answer {answer}, {os.strerror(number)}"


def read(path):
    with open(path, "rb") as file:
        return file.read(200)


def writable(path):
    os.close(os.open(path, os.O_WRONLY))
    return f"{path} can be written"


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


# --- reading


@attack("read a file in the home folder")
def _(w):
    return read(w["home_file"])


@attack("list the home folder")
def _(w):
    return os.listdir(w["home"])


@attack("learn whether a file in the home folder exists, and its size")
def _(w):
    return os.stat(w["home_file"]).st_size


@attack("watch the home folder for names of files")
def _(w):
    watch = LIBC.inotify_init()
    return LIBC.inotify_add_watch(watch, w["home"].encode(), 0x100) >= 0


@attack("read the answers beside the data in the task folder")
def _(w):
    return read(w["answers"])


@attack("read the labels in the task's own table")
def _(w):
    return read(w["labels"])


@attack("read the labels that another view of the data shows")
def _(w):
    return read(w["other_view"])


@attack("read what another script answered")
def _(w):
    return read(w["other_answers"])


@attack("find a label that is hidden from it, in any file within reach")
def _(w):
    found, seen = set(), 0
    for root in (".", "input", w["task"], os.path.dirname(w["task"]), w["home"], "/tmp", "/var/tmp", "/dev/shm"):
        for folder, _folders, names in os.walk(root):
            for name in names:
                seen += 1
                try:
                    text = read_all(os.path.join(folder, name))[: 1 << 22]
                except OSError:
                    continue
                found |= set(re.findall(rb"\b\d{9}\b", text))
                if seen > 20000:
                    break
    digests = {hashlib.sha256(label).hexdigest() for label in found}
    assert len(digests) > 50, "the labels that are shown are found"
    return sorted(digests & set(w["hidden"]))


@attack("read the journal of its own run")
def _(w):
    return read(w["journal"])


@attack("read a file of another run")
def _(w):
    return read(w["other_run"])


@attack("list the folder above its own")
def _(w):
    return set(os.listdir("..")) - {os.path.basename(os.getcwd())}


@attack("read a file elsewhere that everybody may read")
def _(w):
    return read(w["public"])


@attack("read the home folder through a link of its own")
def _(w):
    os.symlink(w["home_file"], "link")
    return read("link")


@attack("read a file that it has linked hard into its folder")
def _(w):
    os.link(w["precious"], "hard")
    return read("hard")


@attack("read password hashes")
def _(w):
    return read("/etc/shadow")


@attack("read private keys of the machine")
def _(w):
    return [read(path) for path in [*glob.glob("/etc/ssh/*_key"), *glob.glob("/etc/ssl/private/*")]]


@attack("read the machine's identity")
def _(w):
    return read("/etc/machine-id")


@attack("read the kernel's log")
def _(w):
    return read("/dev/kmsg")


@attack("read the sockets of services below /run")
def _(w):
    return os.listdir("/run")


@attack("read the harness's environment")
def _(w):
    return w["canary"].encode() in read_all(f"/proc/{w['harness']}/environ")


def read_all(path):
    with open(path, "rb") as file:
        return file.read()


@attack("read everybody's environment")
def _(w):
    found = []
    for pid in pids():
        try:
            found += [pid] if w["canary"].encode() in read_all(f"/proc/{pid}/environ") else []
        except OSError:
            continue
    return found


@attack("read the memory of other processes")
def _(w):
    found = []
    for pid in pids():
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
            found.append(pid)
        except OSError:
            continue
    return [pid for pid in found if pid in (1, w["neighbour"], w["harness"])]


@attack("see the command lines of other programs")
def _(w):
    return [pid for pid in pids() if w["canary"].encode() in read_all(f"/proc/{pid}/cmdline")]


@attack("go through another process's view of the files")
def _(w):
    for pid in pids():
        for place in (
            f"/proc/{pid}/root{w['home_file']}",
            f"/proc/{pid}/cwd/{os.path.relpath(w['home_file'], w['cwd'])}",
        ):
            try:
                return read(place)
            except OSError:
                continue
    return None


@attack("find a secret in the keyring")
def _(w):
    found = LIBC.syscall(250 if INTEL else 219, 10, ctypes.c_long(-4), b"user", w["canary"].encode(), 0)
    return found if found > 0 else None


@attack("see the names of keys in the keyring")
def _(w):
    return w["canary"].encode() in read_all("/proc/keys")


@attack("make a key for later")
def _(w):
    return call(248, 217, b"user", b"mle-star-test", b"x", 1, -2)


@attack("read another program's shared memory")
def _(w):
    return read(w["shared_memory"])


@attack("attach another program's shared memory (System V)")
def _(w):
    return LIBC.shmget(w["segment"], 0, 0) >= 0


@attack("leave something in the kernel for a later script (System V, message queues)")
def _(w):
    made = [LIBC.shmget(0, 4096, 0o1600), LIBC.msgget(0, 0o1600), LIBC.semget(0, 1, 0o1600)]
    made.append(LIBC.mq_open(b"/mle-star-left", 0o102, 0o600, None))
    return [number for number in made if number >= 0]


# --- writing


@attack("write to a file elsewhere")
def _(w):
    return writable(w["precious"])


@attack("empty a file elsewhere")
def _(w):
    os.truncate(w["precious"], 0)
    return True


@attack("delete a file elsewhere")
def _(w):
    os.unlink(w["disposable"])
    return True


@attack("rename a file elsewhere")
def _(w):
    os.rename(w["disposable"], w["disposable"] + "-moved")
    return True


@attack("make a file elsewhere")
def _(w):
    os.close(os.open(w["precious"] + "-new", os.O_CREAT | os.O_WRONLY))
    return True


@attack("change the mode of a file elsewhere")
def _(w):
    os.chmod(w["precious"], 0o644)
    return True


@attack("change the times of a file elsewhere")
def _(w):
    os.utime(w["precious"])
    return True


@attack("change attributes of a file elsewhere")
def _(w):
    os.setxattr(w["precious"], "user.test", b"1")
    return True


@attack("write to the data")
def _(w):
    return writable("input/train.csv")


@attack("write to the data by their real name")
def _(w):
    return writable(w["data_file"])


@attack("change mode and times of the data")
def _(w):
    os.chmod("input/train.csv", 0o644)
    os.utime("input/train.csv")
    return True


@attack("plant code among the interpreter's packages")
def _(w):
    for folder in [path for path in sys.path if path.endswith("-packages") or path == sys.prefix]:
        try:
            return os.close(os.open(f"{folder}/planted.pth", os.O_CREAT | os.O_WRONLY)) or folder
        except OSError:
            continue
    return None


@attack("change the harness's own code")
def _(w):
    return writable(w["harness_code"])


@attack("write a setting of the kernel (core_pattern leads to root)")
def _(w):
    return writable("/proc/sys/kernel/core_pattern")


@attack("write any setting of the kernel")
def _(w):
    for folder, _folders, names in os.walk("/proc/sys"):
        for name in names:
            try:
                return writable(f"{folder}/{name}")
            except OSError:
                continue
    return None


@attack("press the kernel's emergency keys")
def _(w):
    return writable("/proc/sysrq-trigger")


@attack("steer interrupts and devices")
def _(w):
    for pattern in ("/proc/irq/*", "/proc/irq/*/*", "/sys/power/*", "/sys/class/*/*/uevent", "/sys/module/*/uevent"):
        for path in filter(os.path.isfile, glob.glob(pattern)):
            try:
                return writable(path)
            except OSError:
                continue
    return None


@attack("raise its own control group's limits")
def _(w):
    for folder, _folders, names in os.walk("/sys/fs/cgroup"):
        for name in names:
            if name in ("pids.max", "memory.max", "memory.limit_in_bytes", "cgroup.procs"):
                try:
                    return writable(f"{folder}/{name}")
                except OSError:
                    continue
    return None


@attack("protect itself from the out-of-memory killer")
def _(w):
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    return True


# --- devices


@attack("write to the user's terminal")
def _(w):
    return writable(w["terminal"]) if os.stat(w["terminal"]).st_rdev == w["terminal_number"] else None


@attack("read what the user types")
def _(w):
    if os.stat(w["terminal"]).st_rdev != w["terminal_number"]:
        return None
    os.close(os.open(w["terminal"], os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
    return True


@attack("type for the user (TIOCSTI)")
def _(w):
    outer = os.openpty()[1]
    fcntl.ioctl(outer, 0x5412, b"x")
    return True


@attack("paste for the user (TIOCLINUX)")
def _(w):
    return call(16, 29, 0, 0x541C, bytes(8))


@attack("open disks, memory or the console")
def _(w):
    found = []
    disks = [path for pattern in ("[svx]d[a-z]*", "nvme*", "loop*") for path in glob.glob(f"/dev/{pattern}")]
    for path in [*disks, "/dev/mem", "/dev/console", "/dev/kvm", "/dev/fuse", "/dev/net/tun"]:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            found.append(path)
        except OSError:
            continue
    return found


@attack("make a device of its own")
def _(w):
    os.mknod("device", 0o600 | stat.S_IFBLK, os.makedev(254, 0))
    return True


# --- network and services


@attack("connect to a server on this machine")
def _(w):
    socket.create_connection(("127.0.0.1", w["port"]), 2).close()
    return True


@attack("connect by IPv6")
def _(w):
    socket.create_connection(("::1", w["port6"]), 2).close()
    return True


@attack("send a datagram to this machine")
def _(w):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", w["datagrams"]))
        for _ in range(3):
            sender.send(b"x")  # the second is refused when nobody got the first
            time.sleep(0.05)
    return True


@attack("reach the world outside")
def _(w):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("192.0.2.1", 53))  # needs a route, sends nothing
    return True


@attack("listen to raw traffic")
def _(w):
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)


@attack("send raw packets")
def _(w):
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


@attack("talk to the hypervisor (AF_VSOCK)")
def _(w):
    return socket.socket(40, socket.SOCK_STREAM)


@attack("use the kernel's ciphers (AF_ALG)")
def _(w):
    return socket.socket(38, socket.SOCK_SEQPACKET)


@attack("listen to the kernel's events (netlink)")
def _(w):
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)


@attack("talk to a service by its socket file")
def _(w):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(w["socket"])
    return True


@attack("talk to a service by an abstract socket")
def _(w):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + w["abstract"])
    return True


# --- other processes


@attack("signal the harness")
def _(w):
    os.kill(w["harness"], 0)
    return w["canary"].encode() in read_all(f"/proc/{w['harness']}/cmdline")


@attack("signal another program of the user")
def _(w):
    os.kill(w["neighbour"], 0)
    return w["canary"].encode() in read_all(f"/proc/{w['neighbour']}/cmdline")


@attack("take away the harness's limits (prlimit)")
def _(w):
    kept = resource.prlimit(w["harness"], resource.RLIMIT_CORE)
    resource.prlimit(w["harness"], resource.RLIMIT_CORE, kept)
    return True


@attack("slow another program down (scheduling)")
def _(w):
    if w["canary"].encode() in read_all(f"/proc/{w['neighbour']}/cmdline"):
        os.sched_setaffinity(w["neighbour"], os.sched_getaffinity(w["neighbour"]))
        return True
    return None


@attack("trace another program (ptrace)")
def _(w):
    return call(101, 117, 0x4206, w["neighbour"], 0, 0)


@attack("read another program's memory by call (process_vm_readv)")
def _(w):
    return call(310, 270, w["neighbour"], 0, 0, 0, 0, 0)


@attack("take another program's open files (pidfd_getfd)")
def _(w):
    return call(438, 438, -1, 0, 0)


@attack("write to the pipe on which its own end is told")
def _(w):
    found = []
    for number in range(3, 256):
        try:
            os.fstat(number)
        except OSError:
            continue
        if number not in w["mine"]:
            found.append(number)
    return found


@attack("open the supervisor's pipes by way of /proc")
def _(w):
    for pid in pids():
        for number in range(3, 30):
            try:
                if b"child.supervisor" in read_all(f"/proc/{pid}/cmdline"):
                    return os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
    return None


@attack("have rights that others have not (capabilities)")
def _(w):
    lines = read_all("/proc/self/status").decode().splitlines()
    usable = ("CapInh", "CapPrm", "CapEff", "CapAmb")
    return [line for line in lines if line.startswith(usable) and int(line.split()[1], 16)]


@attack("gain rights by a set-uid program")
def _(w):
    return b"NoNewPrivs:\t1" not in read_all("/proc/self/status")


@attack("be root")
def _(w):
    return os.getuid() == 0


# --- the kernel


@attack("make a user namespace (unshare)")
def _(w):
    return call(272, 97, 0x10000000)


@attack("make a user namespace (clone)")
def _(w):
    answer = LIBC.syscall(56, ctypes.c_long(0x10000000 | signal.SIGCHLD), 0, 0, 0, 0) if INTEL else -1
    if answer == 0:
        os._exit(0)
    return answer > 0


@attack("make a namespace (clone3)")
def _(w):
    return call(435, 435, 0, 0)


@attack("enter another namespace")
def _(w):
    return call(308, 268, os.open("/proc/self/ns/user", os.O_RDONLY), 0)


@attack("mount something")
def _(w):
    return call(165, 40, b"none", b"final", b"tmpfs", 0, 0)


@attack("mount something by the new calls")
def _(w):
    for number in (428, 429, 430, 431, 432, 433, 442):
        try:
            return call(number, number, -1, 0, 0, 0, 0)
        except OSError:
            continue
    return None


@attack("unmount what hides the rest")
def _(w):
    return call(166, 39, b"/nowhere", 2)


@attack("change its root")
def _(w):
    return call(161, 51, b".")


@attack("open files by handle, past all paths")
def _(w):
    return call(304, 265, -1, 0, 0)


@attack("get handles of files")
def _(w):
    return call(303, 264, -100, b".", bytes(136), bytes(8), 0)


@attack("use io_uring, which other filters do not see")
def _(w):
    return call(425, 425, 1, bytes(120))


@attack("load a program into the kernel (bpf)")
def _(w):
    return call(321, 280, 0, 0, 0)


@attack("watch the processor's counters")
def _(w):
    return call(298, 241, 0, 0, -1, -1, 0)


@attack("stop the kernel in its tracks (userfaultfd)")
def _(w):
    return call(323, 282, 1)


@attack("hide memory from everybody (memfd_secret)")
def _(w):
    return call(447, 447, 0)


@attack("load a kernel or a module")
def _(w):
    for intel, arm in ((175, 105), (313, 273), (246, 104), (320, 294)):
        try:
            return call(intel, arm, -1, 0, 0, 0, 0)
        except OSError:
            continue
    return None


@attack("restart the machine, swap, quotas, accounting")
def _(w):
    for intel, arm in ((169, 142), (167, 224), (168, 225), (179, 60), (443, 443), (163, 89)):
        try:
            return call(intel, arm, 0, 0, 0, 0)
        except OSError:
            continue
    return None


@attack("set the clock or the machine's name")
def _(w):
    for intel, arm in ((227, 112), (164, 170), (305, 266), (170, 161), (171, 162)):
        try:
            return call(intel, arm, 0, -1)
        except OSError:
            continue
    return None


@attack("reach the kernel by another architecture's calls (32 bits)")
def _(w):
    return INTEL and native(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3])) > 0


@attack("reach the kernel by another architecture's calls (x32)")
def _(w):
    return INTEL and LIBC.syscall(ctypes.c_long(0x40000000 + 39)) > 0


def native(code):
    """Run machine code."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


# --- for a later script -----------------------------------------------------------------------------------------

OWN = (".", "input", "final")
LEFT_TIME, LEFT_MODE = 77_777_777, 0o751


def left_in_memory(w):
    return f"/dev/shm/left-{w['harness']}"


def elsewhere(w):
    return ("..", w["view"], w["data_file"], w["outside"])


def leave(w):
    """All that a script could leave for the next one in the same folder, and what would spoil that folder for it."""
    inner = os.path.join(left_in_memory(w), "folder")
    rights = [(kind, 0, 0xFFFFFFFF) for kind in (1, 4, 32)]  # owner, group and others may do nothing
    long = [(1, 7, 0xFFFFFFFF), *((2, 7, user) for user in range(100_000, 100_480)), (4, 7, 0xFFFFFFFF)]
    long += [(16, 7, 0xFFFFFFFF), (32, 7, 0xFFFFFFFF)]
    for place in (*OWN, *elsewhere(w)):
        quietly(os.setxattr, place, "user.left", b"1")
    for place in (*elsewhere(w), *OWN):
        quietly(os.utime, place, (LEFT_TIME, LEFT_TIME))
    quietly(os.makedirs, inner)
    quietly(os.mknod, os.path.join(inner, "file"))
    for place in OWN[::-1]:
        quietly(os.chmod, place, LEFT_MODE)
        quietly(os.setxattr, place, "system.posix_acl_default", access_list(long))
        quietly(os.setxattr, place, "system.posix_acl_default", access_list(rights))
        quietly(os.chmod, place, 0)


def quietly(function, *words):
    try:
        return function(*words)
    except OSError as error:
        return error


def access_list(entries):
    """An access list as the kernel wants it: kind, rights, number."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@attack("find attributes that an earlier script has set on its folder, on the data or elsewhere")
def _(w):
    return [place for place in (*OWN, *elsewhere(w)) if quietly(os.getxattr, place, "user.left") == b"1"]


@attack("find what an earlier script has left in shared memory")
def _(w):
    return os.path.exists(left_in_memory(w))


@attack("find times or modes that an earlier script has set on its folder")
def _(w):
    return [place for place in OWN if marked(place)]


@attack("find times that an earlier script has set elsewhere")
def _(w):
    return [place for place in elsewhere(w) if marked(place)]


def marked(place):
    status = os.stat(place)
    return LEFT_TIME in (status.st_atime, status.st_mtime) or stat.S_IMODE(status.st_mode) == LEFT_MODE


@attack("leave a program that others would run as its owner (set-uid, set-gid)")
def _(w):
    how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0, 0)  # of openat2, with the mode in the middle
    for bits in (0o4755, 0o2755, 0o6755):
        ways = {
            "chmod": lambda path: os.chmod(path, bits),
            "fchmod": lambda path: with_open(path, lambda number: os.fchmod(number, bits)),
            "fchmodat": lambda path: call(268, 53, -100, path.encode(), bits),
            "fchmodat2": lambda path: call(452, 452, -100, path.encode(), bits, 0),
            "open": lambda path: os.close(os.open(f"{path}-new", os.O_CREAT | os.O_WRONLY, bits)),
            "nameless": lambda path: named_later(f"{path}-new", bits),
            "mknod": lambda path: os.mknod(f"{path}-new", stat.S_IFREG | bits),
            "openat2": lambda path: call(
                437, 437, -100, f"{path}-new".encode(), how[:8] + struct.pack("QQ", bits, 0), 24
            ),
        }
        for name, way in ways.items():
            path = f"{name}-{bits:o}"
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
            quietly(way, path)
            for made in (path, f"{path}-new"):
                if os.path.exists(made) and os.stat(made).st_mode & 0o6000:
                    return f"{made} has mode {os.stat(made).st_mode:o}"
    return None


def with_open(path, function):
    number = os.open(path, os.O_RDONLY)
    try:
        function(number)
    finally:
        os.close(number)


def named_later(path, bits):
    number = os.open(".", os.O_TMPFILE | os.O_WRONLY, bits)
    os.link(f"/proc/self/fd/{number}", path, follow_symlinks=True)


@attack("write to the root of its file system")
def _(w):
    for place in ("/", "/etc", "/dev", "/usr", "/var", "/home", "/root"):
        try:
            return os.close(os.open(f"{place}/planted", os.O_CREAT | os.O_WRONLY)) or place
        except OSError:
            continue
    return None


def try_one(function, w):
    """What came of it, told by a process of its own, since some attempts end the process."""
    inner, outer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(inner)
        w["mine"] = [inner, outer]
        try:
            answer = function(w)
            os.write(outer, f"open: {answer!r}"[:300].encode() if answer else b"held: nothing found")
        except BaseException as error:
            os.write(outer, f"held: {type(error).__name__} {error}"[:300].encode())
        finally:
            os._exit(0)
    os.close(outer)
    said = b""
    while chunk := os.read(inner, 4096):
        said += chunk
    os.close(inner)
    status = os.waitpid(pid, 0)[1]
    return said.decode("utf-8", "replace") or f"held: ended by signal {os.WTERMSIG(status)}"


def main():
    with open("planted.json") as file:
        w = json.load(file)
    if w["leave"]:
        leave(w)
        return
    print(json.dumps({title: try_one(function, w) for title, function in ATTACKS}))


if __name__ == "__main__":
    main()
