"""What training scripts do every day, each a function that fails when the sandbox refuses it.

Run as a script it prints what failed. With `models` in its environment it trains some, too.
"""

import asyncio
import ctypes.util
import getpass
import json
import mmap
import multiprocessing
import os
import platform
import pwd
import resource
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory
from pathlib import Path


def square(number):
    return number * number


def put(queue):
    queue.put(os.getpid())


class Work:
    """What every script may do."""

    def pools_of_processes():
        with multiprocessing.Pool(2) as pool:
            assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
        with ProcessPoolExecutor(2) as pool:
            assert list(pool.map(square, range(3))) == [0, 1, 4]

    def spawned_processes():
        for method in ("spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            process = context.Process(target=put, args=(queue,))
            process.start()
            assert queue.get(timeout=300) == process.pid
            process.join()

    def managers():
        with multiprocessing.Manager() as manager:
            shared = manager.dict()
            shared["a"] = 1
            assert dict(shared) == {"a": 1}

    def shared_memory_of_data_loaders():
        block = shared_memory.SharedMemory(create=True, size=1 << 20)
        try:
            block.buf[0] = 7
            again = shared_memory.SharedMemory(block.name)
            assert again.buf[0] == 7
            again.close()
        finally:
            block.close()
            block.unlink()
        loader = f"/dev/shm/torch_{os.getpid()}_1_0"
        with open(loader, "w+b") as file:
            file.truncate(1 << 16)
            mmap.mmap(file.fileno(), 1 << 16)[:1] = b"x"
        os.unlink(loader)

    def descriptors_passed_between_processes():
        here, there = socket.socketpair()
        with open("passed", "w") as file:
            socket.send_fds(here, [b"x"], [file.fileno()])
        _, numbers, _, _ = socket.recv_fds(there, 1, 1)
        os.write(numbers[0], b"1")
        assert Path("passed").read_text() == "1"

    def temporary_files_and_caches():
        with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
            file.write(b"x")
            Path(folder, "y").touch()
        cache = Path.home() / ".cache" / "library"
        cache.mkdir(parents=True)
        (cache / "weights").write_bytes(b"x" * 1000)
        Path("/var/tmp/x").touch() if os.environ["TMPDIR"] == "/tmp" else None

    def files_in_the_working_directory():
        Path("models").mkdir()
        Path("models/a").write_text("1")
        os.rename("models/a", "b")
        os.symlink("b", "c")
        os.link("b", "d")
        os.chmod("b", 0o600)
        os.truncate("b", 0)
        zipfile.ZipFile("e.zip", "w").write("b")
        sqlite3.connect("f.db").execute("create table t (x)")
        Path("final/submission.csv").write_text("id,y\n1,2\n")
        assert Path("input/train.csv").read_text() and os.listdir("input") == ["train.csv"]

    def other_programs():
        output = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, check=True).stdout
        assert output == "1\n"
        assert subprocess.run("ls | wc -l && uname -m", shell=True, capture_output=True, check=True).stdout

    def questions_about_the_machine():
        assert os.cpu_count() and os.sched_getaffinity(0) and platform.platform() and time.localtime()
        assert Path("/proc/meminfo").read_text() and Path("/proc/cpuinfo").read_text()
        assert Path("/proc/self/status").read_text() and os.listdir("/proc/self/fd")
        assert pwd.getpwuid(os.getuid()).pw_name and (os.environ.get("USER") or getpass.getuser())
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        resource.prlimit(os.getpid(), resource.RLIMIT_CORE)
        os.nice(1)

    def threads_and_event_loops():
        threads = [threading.Thread(target=square, args=(1,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        assert asyncio.run(asyncio.sleep(0, 3)) == 3

    def libraries_of_the_system():
        assert ssl.create_default_context() and ctypes.CDLL(None).getpid() == os.getpid()
        assert mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)  # compilers at run time


class Models:
    """What those do that train some."""

    def joblib_processes():
        import numpy
        from joblib import Parallel, delayed

        assert Parallel(n_jobs=2)(delayed(square)(i) for i in range(4)) == [0, 1, 4, 9]
        large = numpy.ones((1000, 1000))  # shared by a memory map
        assert Parallel(n_jobs=2)(delayed(numpy.sum)(large) for _ in range(2)) == [1e6, 1e6]
        assert (large @ large)[0, 0] == 1000

    def trees():
        import catboost
        import lightgbm
        import numpy
        import xgboost
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.model_selection import cross_val_score

        features = numpy.random.default_rng(0).normal(size=(200, 4))
        labels = (features[:, 0] > 0).astype(int)
        for model in (
            lightgbm.LGBMClassifier(n_estimators=5, n_jobs=2, verbose=-1),
            xgboost.XGBClassifier(n_estimators=5, n_jobs=2),
            catboost.CatBoostClassifier(iterations=5, thread_count=2, verbose=False),
        ):
            assert model.fit(features, labels).score(features, labels) > 0.8
        assert cross_val_score(RandomForestClassifier(10, n_jobs=2), features, labels, cv=3, n_jobs=2).mean() > 0.8

    def pictures():
        import matplotlib.pyplot

        matplotlib.pyplot.plot([1, 2])
        matplotlib.pyplot.savefig("final/curve.png")


class Loopback:
    """What those do that talk to themselves."""

    def servers_of_its_own():
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), 5).close()


def main():
    kinds = [Work, *([Models] if "MODELS" in os.environ else []), *([Loopback] if "LOOPBACK" in os.environ else [])]
    chosen = {name: work for kind in kinds for name, work in vars(kind).items() if not name.startswith("__")}
    failed = {}
    for name, work in chosen.items():
        try:
            work()
        except BaseException:
            failed[name] = traceback.format_exc()
    print(json.dumps({"done": [*chosen], "failed": failed}))


if __name__ == "__main__":
    main()
