"""A machine that runs scripts for others: keeps data by content, makes working directories, sends back what came."""

import contextlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from mle_star.data.place import share
from mle_star.errors import ExecutionError
from mle_star.execution import workspace
from mle_star.execution.artifacts import STATE
from mle_star.execution.limits import RESERVE_BYTES
from mle_star.execution.local import LocalExecutor
from mle_star.execution.outcome import CHANGED_DATA, HEADER
from mle_star.execution.process import NOTE
from mle_star.integrations.remote import Delivery, Parcel, collect, digest_of_file, put, whole
from mle_star.models.texts import digest_of

FOLDER_VARIABLE = "MLE_STAR_NODE_DIR"
"""Where a machine keeps data for scripts and lets them work; below the temporary folder unless it is set there."""
PREFIX, IN_USE = "script-", "data-in-use"
"""How the folders of scripts at work are called, and the link in each to the data that its script reads."""
LEFT_SECONDS = 60.0
_OWN_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Where programs and libraries lie is this machine's to say, not the sender's."""


def default_folder() -> Path:
    """This machine's folder for the scripts of others."""
    return Path(os.environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir()) / f"mle-star-node-{os.getuid()}")


def _claim(folder: Path) -> None:
    """Make a folder in a place where others write, too; refuse one that they could put data or scripts into."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True, mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        trouble = "is no folder of yours, or others can write to it"
        raise ExecutionError(f"{folder} {trouble}: set {FOLDER_VARIABLE} to a folder that only you can write to")


def _last_used(path: Path) -> float:
    """When a path was last changed; long ago, if it is gone."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


class Node:
    """The folder of one machine: `files` by digest, `views` of them as data folders, and `work`."""

    def __init__(self, folder: Path, machine: str) -> None:
        self.folder, self.machine = folder, machine
        _claim(folder)
        for name in ("files", "views", "work"):
            (folder / name).mkdir(exist_ok=True)
        for part in (folder / "files").glob(".*"):
            if time.time() - _last_used(part) > 3600:  # its sender was lost on the way
                workspace.remove_entry(part)
        workspace.remove_left_behind(folder / "work", PREFIX, LEFT_SECONDS)

    # --- data -------------------------------------------------------------------------------------------------

    def missing(self, parcel: Parcel) -> tuple[str, ...]:
        """The digests of what must be sent before a script can see its data; none where machines share them."""
        if parcel.config.shared_data:
            return ()
        return tuple(digest for digest in dict.fromkeys(parcel.data.values()) if not self._file(digest).is_file())

    def store(self, digest: str, sender: str, offset: int, chunk: bytes, last: bool) -> None:
        """Take in a piece of a file; with the last one it is looked at, and counts."""
        part = self.folder / "files" / f".{digest}.{sender}"
        if offset == 0:
            self._make_room()
        with part.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(chunk)
        if not last:
            return
        if digest_of_file(part) != digest:
            part.unlink()
            raise ExecutionError(f"{self.machine}: a file changed while it was sent")
        part.chmod(0o644)
        part.replace(self._file(digest))

    def view(self, parcel: Parcel) -> Path:
        """The data of a parcel as a folder."""
        view = self._view(parcel)
        if view.is_dir():
            os.utime(view)  # used now: the last to go when room is wanted
            return view
        part = Path(tempfile.mkdtemp(prefix=".view-", dir=view.parent))
        for name, digest in parcel.data.items():
            share(self._file(digest), part / name)
        try:
            part.rename(view)
        except OSError:
            workspace.remove_entry(part)  # another script of the same data was quicker
        return view

    def _view(self, parcel: Parcel) -> Path:
        """Where the data of a parcel are shown: under the name of their whole content."""
        return self.folder / "views" / digest_of(*(f"{name}\0{digest}" for name, digest in parcel.data.items()))

    def _file(self, digest: str) -> Path:
        return self.folder / "files" / digest

    def _make_room(self) -> None:
        """Remove the data that were not used for longest until the reserve is free again; not those of a script."""
        for view in sorted((self.folder / "views").iterdir(), key=_last_used):
            if shutil.disk_usage(self.folder).free >= 2 * RESERVE_BYTES:
                return
            if os.path.realpath(view) in map(os.path.realpath, (self.folder / "work").glob(f"{PREFIX}*/{IN_USE}")):
                continue
            workspace.remove_entry(view)
            for path in (self.folder / "files").glob("[!.]*"):
                with contextlib.suppress(FileNotFoundError):  # another process makes room, too
                    if path.stat().st_nlink == 1:  # no other view shows it
                        workspace.remove_entry(path)

    # --- scripts ----------------------------------------------------------------------------------------------

    async def run(self, parcel: Parcel, executor: LocalExecutor, log: Path) -> Delivery:
        """Run a script on its data, confined as this machine can; with `shared_data` on those at the sender's path."""
        wanted, shared_data = parcel.request, parcel.config.shared_data
        place = Path(tempfile.mkdtemp(prefix=workspace.own_prefix(PREFIX), dir=self.folder / "work"))
        try:
            (place / IN_USE).symlink_to(self._view(parcel))  # before it is looked for: from now on nobody removes it
            view = Path(wanted.input_dir or "") if shared_data else self.view(parcel)
            work = Path(workspace.prepare_path_directory(place, "main"))
            workspace.link_input_data(str(view), str(work))
            script = work / Path(wanted.script_path).name
            script.write_bytes(parcel.code)
            for name, found in parcel.folders.items():
                put(found, work / name, "the run")
            env = {name: value for name, value in wanted.env.items() if name not in _OWN_VARIABLES}
            env |= {name: os.environ[name] for name in _OWN_VARIABLES if name in os.environ}
            places = {"script_path": script, "working_dir": work, "input_dir": view, "output_file": log}
            own = {**{name: str(path) for name, path in places.items()}, "env": env}
            raw = await executor.run(wanted.model_copy(update=own if shared_data else {**own, "readable": ()}))
            files, left = collect(work / "final")
            fitted = whole(work / STATE) if STATE in parcel.folders else {}
            if raw.isolation.strength < 2 and not shared_data and not _is_intact(view, parcel):
                stderr = f"{raw.stderr}\n{HEADER}\nPermissionError: {CHANGED_DATA}\n"
                raw = raw.model_copy(update={"stderr": stderr, "exit_code": 1})
                files, fitted = {}, {}
                for path in (self._view(parcel), *map(self._file, parcel.data.values())):
                    workspace.remove_entry(path)
        finally:
            workspace.remove_entry(place)
        notes = [f"final/ holds too much: {', '.join(left[:10])} did not come back"] if left else []
        notes += [f"{STATE}/ holds too much: nothing of it came back"] if fitted is None else []
        stderr = raw.stderr + "".join(f"\n{NOTE} {note}" for note in notes)
        raw = raw.model_copy(update={"machine": self.machine, "stderr": stderr})
        return Delivery(self.machine, raw, files, (fitted or {}) if STATE in parcel.folders else None)


def _is_intact(view: Path, parcel: Parcel) -> bool:
    """Are the data still what they were? Asked only where no namespaces keep a script from changing them."""
    with contextlib.suppress(OSError):
        return all(digest_of_file(view / name) == digest for name, digest in parcel.data.items())
    return False
