"""Scripts that are broken, careless or hostile, each with what the harness must make of it.

`TOKEN` stands for a word that occurs nowhere else, `OUTSIDE` for a folder that no script may change, `PORT` for a
port on which the test listens, `HOMEFILE` for a file in the real home folder whose name and content nobody may see.
"""

import os
from dataclasses import dataclass
from typing import Any

BLOCKS = 50_000 if os.environ.get("MLE_STAR_SOAK") else 300
"""How much is much output, in blocks of 100 kB: 5 GB in the soak."""
BREATH = 0.0 if os.environ.get("MLE_STAR_SOAK") else 0.03
"""A bomb doubles so slowly that a busy machine bears it until it is found out."""
SMALL: dict[str, Any] = {
    "memory_bytes": 300 << 20, "tasks": 60, "file_bytes": 50 << 20, "open_files": 256, "output_bytes": 4 << 20,
    "head_bytes": 1 << 20, "tail_bytes": 1 << 18, "grace_seconds": 0.3,
}  # fmt: skip
"""The limits under which the cases run."""
SCORE = "print('Final Validation Performance: 0.5')"
TRIES = (
    "import glob, os, pathlib\nHOME = pathlib.Path('REALHOME')\n"
    "for attempt in (ATTEMPTS):\n    try:\n        print(attempt())\n    except OSError as error:\n"
    "        print(error.strerror)\nprint('tried all')"
)
ACCESS_LISTS = {
    "an access list that allows nothing": "[(kind, 0, 0xFFFFFFFF) for kind in (1, 4, 32)]",
    "a long access list": "[(1, 7, 0xFFFFFFFF), *((2, 7, user) for user in range(100_000, 100_480)),"
    " *((kind, 7, 0xFFFFFFFF) for kind in (4, 16, 32))]",
}


@dataclass(frozen=True)
class Case:
    """A script and its expected outcome; None means that either outcome is contained."""

    name: str
    code: str
    error: bool | None = True
    score: float | None = None
    says: str = ""  # must be in what the debugger is told, or else on stdout; `|` stands between two of which one must
    timeout: float = 120.0
    confined: bool = False  # too dangerous, or not preventable, without namespaces
    submission: bool = False
    everywhere: bool = False  # tried in each kind of confinement, also outside of the soak


def fine(name: str, code: str, **more: Any) -> Case:
    """A script that comes to its score, whatever it does before."""
    return Case(name, f"{code}\n{SCORE}", **{"error": False, "score": 0.5, **more})


CASES = [
    # --- too much of everything
    Case("fork bomb", f"import os, time\nwhile True:\n    os.fork()\n    time.sleep({BREATH})"),
    # refused by a control group, or counted by the supervisor
    Case("children that sleep", "import os, time\nfor _ in range(120):\n    if os.fork() == 0:\n"
         "        time.sleep(600)\ntime.sleep(100)\n" + SCORE, says="BlockingIOError|more than 60 processes"),
    Case("thread bomb", "import threading, time\nfor _ in range(120):\n"
         "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\ntime.sleep(100)\n" + SCORE,
         says="can't start new thread"),
    Case("memory hog", "hoard = []\nwhile True:\n    hoard.append(bytearray(20 << 20))", says="MemoryError"),
    Case("memory hogs side by side", "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
         "        x = bytearray(b'x') * (120 << 20)\n        time.sleep(100)\n        os.abort()\n"
         "raise RuntimeError(f'a child ended with {os.wait()[1]}')"),
    Case("memory hog in shared memory", "with open('/dev/shm/TOKEN', 'wb') as f:\n    while True:\n"
         "        f.write(bytes(10 << 20))", confined=True),
    fine("much output", f"import sys\nfor _ in range({BLOCKS}):\n    sys.stdout.write(('x' * 99 + '\\n') * 1000)",
         says="the output was cut", timeout=300.0),
    Case("much output on stderr", "import sys\nfor _ in range(300):\n"
         "    sys.stderr.write(('y' * 99 + '\\n') * 1000)\n1 / 0", says="ZeroDivisionError"),
    Case("output without newline", "import sys\nsys.stdout.write('x' * 5_000_000)\n" + SCORE, error=False),
    fine("binary output", "import os, sys\nsys.stdout.buffer.write(os.urandom(1 << 20) + b'\\n')\nsys.stdout.flush()"),
    Case("ten gigabytes of holes", "open('big', 'wb').truncate(10 << 30)", says="File too large"),
    Case("a large file", "with open('big', 'wb') as f:\n    for _ in range(10):\n        f.write(bytes(10 << 20))",
         says="File too large"),
    Case("too many open files", "kept = [open('/dev/null') for _ in range(1000)]", says="Too many open files"),
    fine("many files", "import pathlib\nfor i in range(2000):\n    pathlib.Path(f'f{i}').touch()"),
    fine("folders within folders", "import os\nfor _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')"),
    fine("folders within folders in /tmp", "import os, tempfile\nos.chdir(tempfile.gettempdir())\n"
         "for _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')"),
    fine("children nobody waits for", "import os\nfor _ in range(20):\n    if os.fork() == 0:\n"
         "        os.kill(os.getpid(), 9)"),
    Case("raises its own limits", "import resource\n"
         "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)",
         says="not allowed to raise maximum limit"),
    # --- strange ends
    Case("closed stdout", "import sys\nsys.stdout.close()\n" + SCORE, says="I/O operation on closed file"),
    Case("closed descriptors", "import os\nos.closerange(0, 50)\n" + SCORE),
    Case("leaves at once", "import os\ngetattr(os, '_ex' + 'it')(0)\n" + SCORE, error=False),
    Case("sys.exit before the score", "import sys\nsys.exit(0)\n" + SCORE, says="sys.exit()"),
    Case("exit in other words", "raise SystemExit(0)\n" + SCORE, error=False),
    Case("segfault", "import ctypes\nctypes.string_at(0)", says="SIGSEGV"),
    Case("stack overflow", "import sys\nsys.setrecursionlimit(10**6)\nclass A:\n    def __repr__(self):\n"
         "        return repr([A()])\nrepr(A())"),
    Case("kills its own group", "import os, signal\nos.killpg(0, signal.SIGKILL)", says="SIGKILL"),
    Case("syntax error", "def f(:\n    pass\n" + SCORE, says="SyntaxError"),
    Case("empty", "   \n\n", says="the script is empty"),
    # --- never ends
    Case("ignores SIGTERM", "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)",
         says="time limit of 1 second", timeout=1.0),
    Case("deadlock", "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()", says="TimeoutError",
         timeout=1.0),
    Case("a thread that never ends", "import threading, time\n"
         "threading.Thread(target=time.sleep, args=(600,)).start()\n" + SCORE, score=0.5, says="TimeoutError",
         timeout=2.0),
    Case("stops itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", says="TimeoutError", timeout=1.0),
    Case("endless output", "while True:\n    print('again and again')", says="TimeoutError", timeout=1.0),
    Case("waits for stdin", "name = input('name? ')", says="EOFError"),
    fine("daemon that outlives the script", "import os, sys\nif os.fork() == 0:\n    os.setsid()\n"
         "    if os.fork() == 0:\n"
         "        os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', 'TOKEN'], {})\n"
         "    os.kill(os.getpid(), 9)\nos.wait()"),
    # --- other people's things
    fine("writes elsewhere", TRIES.replace("ATTEMPTS", "lambda: open('OUTSIDE/escaped', 'w'),"
         "lambda: os.rename('OUTSIDE/precious', 'final/submission.csv'), lambda: open('../escaped', 'w'),"
         "lambda: open(HOME / 'TOKEN', 'w'), lambda: open('input/train.csv', 'a').write('x')"),
         says="tried all", confined=True, everywhere=True),
    fine("reads what others have", TRIES.replace("ATTEMPTS", "lambda: os.listdir(HOME),"
         "*(pathlib.Path(place).read_bytes for place in (HOME / 'HOMEFILE', '/etc/shadow', '/etc/gshadow',"
         "*glob.glob('/proc/[0-9]*/environ')))"), says="tried all", confined=True, everywhere=True),
    fine("writes to what it takes for home", "import pathlib\n(pathlib.Path.home() / 'TOKEN').write_text('x')"),
    fine("replaces the data by its own, of the same size and time", "import os\nold = os.stat('input/train.csv')\n"
         "os.remove('input/train.csv')\nopen('input/train.csv', 'wb').write(bytes(old.st_size))\n"
         "os.utime('input/train.csv', ns=(old.st_atime_ns, old.st_mtime_ns))", error=None),
    fine("adds to the data", "open('input/TOKEN.csv', 'w').write('x')", error=None),
    fine("deletes the data", "import shutil\nshutil.rmtree('input', ignore_errors=True)"),
    fine("deletes its own directory", "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\n"
         "open('left', 'w').close()", error=None, everywhere=True),  # unconfined, it can
    fine("removes all hidden files and leaves some", "import glob, os\nfor name in glob.glob('.*'):\n"
         "    os.remove(name)\nopen('left', 'w').close()\nos.mkdir('.left')"),
    fine("locks its own directory", "import os\nos.mkdir('d')\nopen('d/f', 'w').close()\nos.chmod('d', 0)\n"
         "os.chmod('.', 0o500)"),
    fine("closes its own directory", "import os\nopen('final/submission.csv', 'w').write('a')\n"
         "os.chmod('final', 0)\nos.chmod('.', 0)", submission=True, everywhere=True),
    *(fine(f"puts {name} on its own directory", "import contextlib, os, struct\n"
           f"data = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *one) for one in {entries})\n"
           "for place in ('final', '.', '..'):\n    for kind in ('access', 'default'):\n"
           "        with contextlib.suppress(OSError):\n"
           "            os.setxattr(place, f'system.posix_acl_{kind}', data)", everywhere=True)
      for name, entries in ACCESS_LISTS.items()),
    fine("makes programs that others run as their owner", "import os\n"
         "for name, mode in (('a', 0o4755), ('b', 0o2755)):\n    open(name, 'w').close()\n    try:\n"
         "        os.chmod(name, mode)\n    except OSError:\n        pass\n"
         "assert not any(os.stat(name).st_mode & 0o6000 for name in 'ab')", everywhere=True),
    fine("puts a link in place of the script", "import os\nos.remove('solution.py')\n"
         "os.symlink('OUTSIDE/precious', 'solution.py')"),
    fine("reads the environment", "import os\nprint(dict(os.environ))"),
    Case("opens a socket", "import socket\nsocket.create_connection(('127.0.0.1', PORT), 3)\n" + SCORE,
         says="Errno 1"),  # refused by nobody there, or no network at all
    fine("kills its parent", "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(0.3)",
         error=None),
    fine("kills everything", "import os, signal\nos.kill(-1, signal.SIGKILL)", error=None, confined=True),
    Case("forges the report of its end", "import ctypes, os\nfor fd in range(3, 256):\n    try:\n"
         "        os.write(fd, b'exit\\t0\\n')\n    except OSError:\n        pass\n"
         "print('Final Validation Performance: 0.97', flush=True)\nctypes.string_at(0)", score=0.97, says="SIGSEGV"),
    Case("forges a report that would end the run", "import os\nfor fd in range(3, 256):\n    try:\n"
         "        os.write(fd, b'error\\tx\\n')\n    except OSError:\n        pass\n"
         "raise ValueError('still an error')", says="still an error"),
    Case("pretends that the sandbox failed", "import sys\nprint('bwrap: no', file=sys.stderr)\nraise SystemExit(1)",
         says="bwrap: no"),
    Case("changes the clock", "import time\ntime.clock_settime(time.CLOCK_REALTIME, time.time())",
         says="PermissionError"),
    fine("changes locale and mask", "import locale, os\nlocale.setlocale(locale.LC_ALL, 'C')\n"
         "os.environ['LANG'] = 'xx'\nos.umask(0o777)\nos.nice(5)"),
    Case("mounts something", "import ctypes\n"
         "assert ctypes.CDLL(None).mount(b'none', b'final', b'tmpfs', 0, None) == 0"),
    # --- submissions that are none
    fine("symlink as submission", "import os\nos.symlink('OUTSIDE/precious', 'final/submission.csv')"),
    fine("final is a link", "import os\nos.rmdir('final')\nos.symlink('OUTSIDE', 'final')"),
    fine("fifo as submission", "import os\nos.mkfifo('final/submission.csv')"),
    fine("socket as submission", "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('final/submission.csv')"),
    fine("directory as submission", "import os\nos.mkdir('final/submission.csv')"),
    Case("device as submission", "import os, stat\n"
         "os.mknod('final/submission.csv', 0o600 | stat.S_IFCHR, os.makedev(1, 5))", says="PermissionError"),
    # --- output that misleads
    fine("prints the score twice", "print('Final Validation Performance: 0.9')"),
    Case("prints the score, then crashes", "print('Final Validation Performance: 0.5')\n1 / 0", score=0.5,
         says="ZeroDivisionError"),
    Case("huge message", "raise ValueError('x' * 5_000_000)", says="characters left out"),
    Case("a traceback of its own making", "import sys\nsys.stderr.write('Traceback (most recent call last):\\n'\n"
         "    + '  File \"solution.py\", line 1, in f\\n' + ('    ' + 'x' * 95 + '\\n') * 8000)\nraise SystemExit(1)"),
    Case("deep traceback", "import json\ndef f(n):\n    return f(n - 1) if n else json.loads('{')\ndef g(n):\n"
         "    return g(n - 1) if n else f(300)\ng(300)", says="JSONDecodeError"),
    fine("unprintable text", "print('\\ud800 \\U0001f600')"),
    Case("source that is no text", "x = '\ud800'\n" + SCORE, says="can't encode"),
]  # fmt: skip
