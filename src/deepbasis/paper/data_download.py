"""The folder of data sets on this machine, and downloads by pooch, each checked against a checksum."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from deepbasis.errors import DeepBasisError, FileFormatError, InputError
from deepbasis.storage import write_atomically

log = logging.getLogger("deepbasis")

FOLDER = "DEEPBASIS_DATA"
"""The environment variable that names the folder of data sets."""

_SECONDS = 30  # without an answer: we then assume that there is no network


class DownloadError(DeepBasisError, RuntimeError):
    """A file that is not here and could not be fetched."""


class WebFile(NamedTuple):
    """A file on the web."""

    url: str
    file: str
    """Where it goes, below the folder of all downloads."""
    sha256: str | None
    """None where its publisher names none: then the first download is trusted, and every later reading is checked."""


def data_folder(folder: str | os.PathLike[str] | None) -> Path | None:
    """The folder given, else the one that the environment names, else none."""
    named = os.environ.get(FOLDER) if folder is None else folder
    if not named:
        return None
    if not Path(named).is_dir():
        raise InputError(f"the data folder {named} is not a folder: correct its name, or make it")
    return Path(named)


def cache_folder() -> Path:
    """Where downloads are kept: a folder of the user's caches, as their system has it."""
    return Path(_pooch().os_cache("deepbasis"))


def fetch(source: WebFile, folder: Path, instead: str) -> Path:
    """The file of `source` in `folder`, downloaded if it is not there yet. `instead`: what to do when it cannot be."""
    place = folder / source.file
    known = source.sha256 or _recorded(place)
    if place.exists():
        found = _sha256(place)
        if known is not None and found != known:
            raise FileFormatError(
                f"{place} is not what it was: its SHA-256 is {found}, expected {known}; delete it to download it again"
            )
    else:
        _retrieve(source, place, known, instead)
    if known is None:
        _record(place)
    return place


def _retrieve(source: WebFile, place: Path, known: str | None, instead: str) -> None:
    pooch = _pooch()
    from requests.exceptions import RequestException  # pooch fetches with it

    try:
        pooch.retrieve(
            source.url,
            known_hash=known,
            fname=place.name,
            path=place.parent,
            downloader=pooch.HTTPDownloader(timeout=_SECONDS, chunk_size=1 << 20),
        )
    except ValueError as error:  # pooch's word for another checksum
        raise DownloadError(
            f"{source.url} is another file than the one expected, and was not kept ({error}); {instead}"
        ) from None
    except RequestException as error:
        raise DownloadError(f"{source.url} could not be downloaded ({_reason(error)}); {instead}") from None


def _reason(error: Exception) -> str:
    """The kind of failure; with the server's answer if there was one, without the inner workings of a connection."""
    answer = getattr(error, "response", None)
    if answer is not None:
        return f"the server answered {answer.status_code} {answer.reason}"
    return f"no connection: {type(error).__name__}"


def _record_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.sha256")


def _recorded(place: Path) -> str | None:
    """The checksum written down at the first download, if there was one."""
    record = _record_of(place)
    if not record.exists():
        return None
    digest = record.read_text(encoding="utf-8").partition(" ")[0]
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise FileFormatError(f"{record} holds no SHA-256: delete it, and {place.name} too, to download it again")
    return digest


def _record(place: Path) -> None:
    digest = _sha256(place)
    write_atomically(_record_of(place), f"{digest}  {place.name}\n".encode())  # as sha256sum writes and checks it
    log.warning(
        "%s: its publisher names no checksum, so this first download is trusted; SHA-256 %s is recorded beside it and "
        "checked from now on",
        place,
        digest,
    )


def _sha256(place: Path) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pooch() -> Any:
    try:
        import pooch
    except ImportError:
        raise DownloadError(
            "downloading needs pooch: pip install 'deepbasis[datasets]', or name a folder that holds the data "
            f"({FOLDER})"
        ) from None
    pooch.get_logger().setLevel("WARNING")  # what it would say at INFO is said here, in one line
    return pooch
