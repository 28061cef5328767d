"""The tests' own fence: no credential, no connection that leaves the machine, no deaf children, and lasting names."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools import mutate

from tests.conftest import KEPT, SECRET


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "example.org"])
def test_a_connection_that_is_not_loopback_is_refused(host: str) -> None:
    with pytest.raises(PermissionError, match="this machine only"):
        socket.create_connection((host, 80), timeout=1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, pytest.raises(PermissionError):
        sender.sendto(b"x", ("192.0.2.1", 9))


def test_loopback_and_unix_sockets_work(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, server.getsockname()[1]), timeout=5).close()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))


def output_of(*words: str, **options: Any) -> str:
    """What another Python prints that runs this where the tests are."""
    printed: bytes = subprocess.check_output([sys.executable, *words], cwd=Path(__file__).parents[1], **options)
    return printed.decode()


def test_credentials_are_stripped_and_children_hear_ctrl_c_although_the_tests_were_started_in_the_background() -> None:
    secrets = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "https_proxy")
    env = {**os.environ, **dict.fromkeys(secrets, "x")}
    seen = output_of("-c", "import os, tests.conftest; print(sorted(os.environ))", env=env)
    assert not [name for name in secrets if name in seen]
    assert not [name for name in os.environ if SECRET.match(name) and name not in KEPT]
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    code = f"import subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', {child!r}])"
    deaf: dict[str, Any] = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}  # `nohup make test &`
    assert [output_of("-c", words, **deaf) for words in (child, code)] == ["False\n", "True\n"]


@pytest.mark.long
def test_names_of_tests_hold_no_time_hash_address_or_folder(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Workers agree on them, and a failure can be run again: another process finds them later, with other hashes."""
    env = {**os.environ, "PYTHONHASHSEED": "1", "TMPDIR": str(tmp_path)}
    env.pop("PYTEST_XDIST_WORKER", None)
    words = "-m pytest --collect-only -q -p no:cacheprovider -p no:xdist"
    names = [line for line in output_of(*words.split(), env=env, timeout=900).splitlines() if "::" in line]
    assert len(names) > 3000 and len(set(names)) == len(names)
    named = [name for tests in mutate.TESTS.values() for name in tests]
    assert [name for name in named if not any(known.startswith(name) for known in names)] == []
    assert not {item.nodeid for item in request.session.items} - set(names)
