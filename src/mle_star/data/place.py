"""The data of a task as files: what belongs to them, how a change is seen, and what they hold as bytes and texts."""

import bz2
import codecs
import csv
import gzip
import hashlib
import lzma
import os
import pwd
import shutil
import stat
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

import yaml

from mle_star.errors import ConfigError

MARK = ".mle-star-run"
"""Marks a run's folder as ours: only what lies beside it may be overwritten, and it is nobody's data."""
RUNS = "runs"
"""The folder that runs are kept in unless the user names another."""
DIGESTED_BYTES, DIGESTED_FILES = 4 << 30, 50_000
"""How much of the data is read for a digest; of what lies beyond, size and time count, and of large files samples."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
STAMPED_FILES = 2000
WHOLE_BYTES = 4_000_000
"""A file up to this size is read whole; of a larger one, this much."""
MAX_LINE = 1 << 24
"""A mask in run lengths is one long cell; beyond this it is none."""
SPARE_ROWS = 1000
"""Of a submission with too many rows so many are read beyond twice the right number: enough to say what is wrong."""
MAX_BLANK_LINES = 100_000
MAX_SECONDS = 60.0
"""Of computing, not of waiting: a busy machine must not make a table unreadable."""
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSED = (*_OPENERS, ".zip")
_CELL_LIMIT = threading.Lock()

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_SPECIAL_PLACES = ("/proc", "/sys", "/dev")

Stamp = list[tuple[tuple[str, int, int, int], int, int]]


def records_of(run_dir: Path) -> Path:
    """Where a run's records lie: the folder of all runs, or the run's own where the user has named another."""
    return run_dir.parent if run_dir.parent.name == RUNS else run_dir


class Sample(NamedTuple):
    """A sample of the training table: where it lies, how many training rows it has, and of how many."""

    folder: Path
    rows: int
    of: int


class DataFolder:
    """A data folder without what is not data: folders of runs, `ours` (where this run works) and hidden entries."""

    def __init__(self, root: Path | str, ours: Path | str | None = None) -> None:
        self.root = Path(root).resolve()
        self._ours, place = "", None if ours is None else Path(ours).resolve()
        if place is not None and self.root in place.parents:
            kept = records_of(place)
            self._ours = str(place if kept == self.root else kept)

    def leaves_out(self, path: Path) -> bool:
        """Is this folder or file none of the data?"""
        is_hidden = path.name.startswith(".") and path.parent == self.root
        return is_hidden or str(path) == self._ours or holds_runs(path)

    def holds(self, path: Path) -> bool:
        """Does this path, which has no links left in it, lead to the data, and through nothing that is left out?"""
        if not path.is_relative_to(self.root):
            return False
        on_the_way = [place for place in (path, *path.parents) if self.root in place.parents]
        return not any(self.leaves_out(place) for place in on_the_way)

    def leads_to_ours(self, path: str) -> bool:
        """Does the place where this run works lie inside this folder?"""
        return self._ours.startswith(path + os.sep)

    @property
    def is_whole(self) -> bool:
        """Is all that lies in the folder data, so that it may be shown as it is?"""
        return not self._ours and not any(map(self.leaves_out, self.root.iterdir()))

    # --- looking ----------------------------------------------------------------------------------------------

    def entries(self) -> Iterator[Path]:
        """Everything but plain folders, in the order of names; links to folders come and are followed, once each."""
        seen = set[str]()
        for place, folders, files in os.walk(self.root, followlinks=True):
            inside = set(folders)
            folders.clear()
            for path in (Path(place, name) for name in sorted([*inside, *files])):
                if self.leaves_out(path):
                    continue
                if path.name not in inside or path.is_symlink():
                    yield path
                if path.name in inside and (real := os.path.realpath(path)) not in seen:
                    seen.add(real)
                    folders.append(path.name)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """The regular files, by their names below the folder, with what the system knows of them, links followed."""
        for path in self.entries():
            with suppress(OSError):  # a link to nothing
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    yield path.relative_to(self.root).as_posix(), status

    def check(self, *, allow_outside_links: bool = False) -> None:
        """Refuse by name what could hang a reader, fill the memory or show scripts what is not data."""
        refuse_place(self.root)
        for path in self.entries():
            name, kind = path.relative_to(self.root).as_posix(), None
            with suppress(OSError):
                kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode))
            what = f"data_dir: {name!r} in {self.root} is"
            if kind is not None:
                raise ConfigError(f"{what} {kind}, not data: remove it")
            if not allow_outside_links and (target := self.outside_target(path)) is not None:
                rest = "set data_dir to where the data really lie, or set allow_outside_links to true"
                raise ConfigError(f"{what} a link to {target!r}, outside of that folder: put a copy there, {rest}")

    def outside_target(self, path: Path) -> str | None:
        """Where a link leads that leaves the folder."""
        target = os.path.realpath(path) if path.is_symlink() else ""
        return target if os.path.lexists(target) and not Path(target).is_relative_to(self.root) else None

    def outside_targets(self) -> list[str]:
        """All places outside of the folder that its links lead to."""
        return sorted({target for path in self.entries() if (target := self.outside_target(path))})

    # --- changes ----------------------------------------------------------------------------------------------

    def stamp(self) -> Stamp:
        """What is cheap to know of the first files: enough to see that someone changed or replaced one.

        A change sets the time of the last change, which no program can set back.
        """
        return [
            ((name, status.st_size, status.st_mtime_ns, status.st_ino), status.st_ctime_ns, status.st_nlink)
            for name, status in islice(self.files(), STAMPED_FILES)
        ]

    def changed_since(self, before: Stamp) -> bool:
        """Was a file changed or replaced? That another run links to one, or no longer does, changes nothing in it."""
        after = self.stamp()
        if [file for file, _, _ in after] != [file for file, _, _ in before]:
            return True
        pairs = zip(before, after, strict=True)
        return any(changed != then and links == linked for (_, then, linked), (_, changed, links) in pairs)

    def digest(self) -> str:
        """A digest of names and contents; beyond the limits of sizes, times and samples instead of contents."""
        hasher, left = hashlib.sha256(), DIGESTED_BYTES
        for number, (name, status) in enumerate(self.files()):
            size = status.st_size
            is_read = size <= left and number < DIGESTED_FILES
            left -= size if is_read else 0
            hasher.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            if not is_read:
                hasher.update(str(status.st_mtime_ns).encode())
            try:
                if is_read or size > 16 * SAMPLES * SAMPLE_BYTES:
                    hasher.update(content_digest(self.root / name, size, 1 if is_read else SAMPLES))
            except OSError as error:
                hasher.update(f"{name}: {error.errno}".encode())
        return hasher.hexdigest()


def holds_homes(folder: Path) -> bool:
    """Is it a home directory, or does one lie below it? It has no links left in it."""
    homes = ["/home", "/root", os.path.expanduser("~")]  # noqa: PTH111 - the other one fails where there is none
    with suppress(KeyError):  # in a container, a user may be no more than a number
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)  # HOME may say something else
    return any(folder in (home, *home.parents) for home in map(Path, map(os.path.realpath, homes)))


def refuse_place(folder: Path) -> None:
    """Refuse a folder that holds home directories, or nothing but the kernel's own files."""
    if holds_homes(folder):
        raise ConfigError(f"data_dir: {folder} is not a folder of data: scripts would see all that lies below it")
    for place in map(Path, _SPECIAL_PLACES):
        if place in (folder, *folder.parents) and Path("/dev/shm") not in (folder, *folder.parents):
            raise ConfigError(f"data_dir: {folder} belongs to the system: nothing in there is data")


def holds_runs(folder: Path) -> bool:
    """Is it a run's folder, or the one that runs are kept in?"""
    with suppress(OSError):
        places = [folder, *folder.iterdir()] if folder.name == RUNS else [folder]
        return any(os.path.lexists(place / MARK) for place in places)
    return False


def content_digest(path: Path, size: int, samples: int = 1) -> bytes:
    """Of the whole content, or of so many samples that span it."""
    hasher = hashlib.sha256()
    # what was a file a moment ago may be a pipe by now, and must not make anybody wait
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "no regular file")
        for number in range(samples):
            file.seek((size - SAMPLE_BYTES) * number // max(samples - 1, 1))
            left = size if samples == 1 else SAMPLE_BYTES
            while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                hasher.update(chunk)
                left -= len(chunk)
    return hasher.digest()


# --- what files hold ----------------------------------------------------------------------------------------------


def open_data(path: Path) -> IO[bytes]:
    """The content of a file; of an archive, that of its only member."""
    if path.suffix.lower() != ".zip":
        return cast(IO[bytes], _OPENERS.get(path.suffix.lower(), open)(path, "rb"))
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.namelist() if not member.endswith("/")]
        if len(members) != 1:
            raise ValueError(f"{len(members)} files in the archive, expected one")
        return archive.open(members[0])


def share(source: Path | str, target: Path | str) -> None:
    """The same content under a second name, since files of data are never changed; on another disk a copy."""
    make_room(Path(target))
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)


def make_room(path: Path) -> None:
    """For a new file: what lies there may be a second name of someone's data, and is never written to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


@contextmanager
def create_data(path: Path) -> Iterator[IO[bytes]]:
    """A new file, compressed as its name says: the same content gives the same bytes."""
    make_room(path)
    suffix = path.suffix.lower()
    if suffix == ".zip":
        member = zipfile.ZipInfo(path.stem)
        member.compress_type = zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w") as archive, archive.open(member, "w", force_zip64=True) as stream:
            yield stream
    else:
        made: Any = gzip.GzipFile(path, "wb", 1, mtime=0) if suffix == ".gz" else None
        with made or _OPENERS.get(suffix, open)(path, "wb") as stream:
            yield stream


def read_pieces(path: Path) -> tuple[list[str], str, bool] | None:
    """A text file, its encoding, and whether it was read whole: else its beginning and three pieces from further down.

    Rows may be sorted by the target. None for binary data.
    """
    size = 0 if path.suffix.lower() in COMPRESSED else path.stat().st_size
    with open_data(path) as stream:
        if size <= WHOLE_BYTES:
            data = stream.read(WHOLE_BYTES + 1)
            chunks, whole = [data[:WHOLE_BYTES]], len(data) <= WHOLE_BYTES
        else:
            part = WHOLE_BYTES // 4
            chunks, whole = [stream.read(part)], False
            for share in (0.33, 0.66, 1.0):
                stream.seek(int((size - part) * share))
                chunks.append(stream.read(part).partition(b"\n")[2])
    decoded = _decode(chunks)
    return None if decoded is None else (*decoded, whole)


def _decode(chunks: list[bytes]) -> tuple[list[str], str] | None:
    """The chunks as texts, with the encoding's name. A last character that is cut is dropped."""
    head = chunks[0]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return [codecs.getincrementaldecoder("utf-16")("replace").decode(head)], "utf-16"
    start = head[:4096]
    if b"\0" in start or sum(byte < 32 and byte not in b"\t\n\r\f" for byte in start) > len(start) // 50:
        return None
    for encoding in ("utf-8-sig" if head.startswith(codecs.BOM_UTF8) else "utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            first = codecs.getincrementaldecoder(encoding)().decode(head)
            rest = (codecs.getincrementaldecoder(encoding.removesuffix("-sig"))().decode(c) for c in chunks[1:])
            return [text.replace("\0", "") for text in (first, *rest)], encoding  # holes of a sparse file read as NUL
    return None


def count_lines(stream: IO[bytes]) -> int:
    """The lines of a file, counted without reading them as text."""
    count, last = 0, b"\n"
    while chunk := stream.read(1 << 20):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last != b"\n")


@contextmanager
def long_cells(most: int) -> Iterator[None]:
    """Lets `csv` read cells of more than 131,072 characters; its limit is that of the process, so it is put back."""
    with _CELL_LIMIT:
        before = csv.field_size_limit(most)
        try:
            yield
        finally:
            csv.field_size_limit(before)


def submitted_rows(file: BinaryIO, separator: str, errors: str = "strict") -> Iterator[list[str]]:
    """The rows of a table that a script wrote, blank lines aside; `csv.Error` where it goes beyond all bounds.

    Apart from `data.rows`, which trusts the user's own files: what a script wrote must fill neither memory nor time.
    """
    if file.read(3) != codecs.BOM_UTF8:
        file.seek(0)
    reader = csv.reader((line.decode("utf-8", errors) for line in _bounded_lines(file)), delimiter=separator)
    while True:
        with long_cells(MAX_LINE):  # for one row at a time: the reader may pause in between
            row = next(reader, None)
        if row is None:
            return
        if row:
            yield row


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; `csv.Error` when they are too long, too blank or take too much time."""
    blank, begun = 0, time.thread_time()
    for number, line in enumerate(iter(partial(file.readline, MAX_LINE + 1), b"")):
        if len(line) > MAX_LINE:
            raise csv.Error("its lines are too long")
        blank += len(line) < 3 and not line.strip()
        if blank > MAX_BLANK_LINES:
            raise csv.Error("it consists of blank lines")
        if number % 4096 == 0 and time.thread_time() - begun > MAX_SECONDS:
            raise csv.Error(f"it takes more than {MAX_SECONDS:.0f} s to read")
        yield line


# --- YAML --------------------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """The text of a file, or one line that says what is wrong with it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The top level of a YAML file, or one line that says what is wrong with it."""
    text = read_text(path)
    try:
        content = yaml.load(text, Loader=StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: not valid YAML ({error.problem})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path}: expected `name: value` lines at the top level")
    return content


class StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a repeated key is an error, not a silent choice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)
