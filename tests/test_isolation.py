"""The tests' own fence: no credential in the environment, no connection that leaves the machine, no deaf children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def output_of(code: str, **options: Any) -> str:
    """What another Python prints that runs this where the tests are."""
    printed: bytes = subprocess.check_output([sys.executable, "-c", code], cwd=Path(__file__).parents[1], **options)
    return printed.decode()


def test_credentials_are_stripped_before_any_test_runs() -> None:
    planted = dict.fromkeys(
        ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "https_proxy"), "x"
    )
    seen = output_of("import os, tests.conftest; print(sorted(os.environ))", env={**os.environ, **planted})
    assert not [name for name in planted if name in seen]
    assert not [name for name in os.environ if SECRET.match(name) and name not in KEPT]


def test_children_hear_ctrl_c_although_the_tests_were_started_in_the_background() -> None:
    """As `nohup make test &` in a script starts them."""
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    code = f"import subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', {child!r}])"
    deaf: dict[str, Any] = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    assert [output_of(words, **deaf) for words in (child, code)] == ["False\n", "True\n"]
