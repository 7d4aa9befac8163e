"""The ten UCI regression sets of Sec. 4.2, by name: read from a folder or downloaded; and scaled as App. B says.

The folder is the one given, else that of the environment variable DEEPBASIS_DATA; only without either is anything
downloaded, into the user's cache.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deepbasis.errors import FileFormatError, InputError, check_choice
from deepbasis.paper import data_download, data_uci_files
from deepbasis.paper.data_download import FOLDER, WebFile, data_folder
from deepbasis.paper.data_uci_files import SHAPES as SHAPES
from deepbasis.paper.scaling import Scaled, standardised
from deepbasis.paper.splits import Floats, Split

NAMES = tuple(SHAPES)
"""In the paper's order."""

# A branch can move, a commit cannot: this is the package's version 1.1.0, which no longer keeps its files in Git LFS.
_COMMIT = "f0737523712fe66a1640e4b980b927e8490b58eb"
_PACKAGE = f"https://raw.githubusercontent.com/treforevans/uci_datasets/{_COMMIT}/uci_datasets"

# The checksums are the object ids under which that repository kept its files in Git LFS, before it gave LFS up in 2022.
# For keggdirected none is known, and song has been cut in two since: their first download is trusted, with a warning.
_SHA256 = {
    "pol/data.csv.gz": "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04",
    "elevators/data.csv.gz": "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b",
    "kin40k/data.csv.gz": "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba",
    "protein/data.csv.gz": "f709d0107c3ee90ab019b9e5d77fc2ae182158958cb70b1903236a51334fd01b",
    "keggdirected/data.csv.gz": None,
    "slice/data.csv.gz": "b2d06cf49aa324bdaac9402dece6a1fafe519253400fcf9773c38f2b59e76609",
    "keggundirected/data.csv.gz": "117419270e50f581df18bf996ffc8b6bf1bb76c9f3640331ac9d6e64cff63d4e",
    "3droad/data.csv.gz": "23b4995cca12fca521056cee7d5055ca28bea6a4fcae53259069650b448e1b51",
    "song/data.csv.gz": None,
    "song/data1.csv.gz": None,
    "buzz/data.csv.gz": "35813e6fa09f8ef6b94e57151a5a213e9bbb16021cf209636f6d9b8cc2270785",
}


@dataclass(frozen=True)
class Catalogue:
    """Where the sets are on the web, and what they are to be."""

    address: str
    shapes: Mapping[str, tuple[int, int]]
    """Rows and inputs of each."""
    sha256: Mapping[str, str | None]
    """Of each file; none where its publisher names none."""
    cache: Path | None = None
    """Where downloads are kept; none is the user's cache."""

    def sources(self, name: str) -> list[WebFile]:
        """The files on the web that set `name` comes in."""
        return [
            WebFile(f"{self.address}/{file}", f"uci/{file}", digest)
            for file, digest in self.sha256.items()
            if file.startswith(f"{check_choice('name', name, self.shapes)}/")
        ]

    def download(self, name: str) -> data_uci_files.Found | None:
        cache = self.cache or data_download.cache_folder()
        instead = f"{data_uci_files.wanted(name, Path('FOLDER'))}, and set {FOLDER} to that FOLDER"
        for source in self.sources(name):
            data_download.fetch(source, cache, instead)
        return data_uci_files.read(name, cache)


UCI = Catalogue(_PACKAGE, SHAPES, _SHA256)


class RegressionTable(NamedTuple):
    X: Floats
    """[n, d]"""
    y: Floats
    """[n]"""


def load(name: str, folder: str | os.PathLike[str] | None = None, catalogue: Catalogue = UCI) -> RegressionTable:
    """Set `name` of NAMES, all of its rows; a set that does not have the paper's size is refused."""
    check_choice("name", name, catalogue.shapes)
    named = data_folder(folder)
    found = catalogue.download(name) if named is None else data_uci_files.read(name, named)
    if found is None:
        raise InputError(
            f"{name} is not in the data folder {named}: {data_uci_files.wanted(name, named or Path())}, or name no "
            f"folder (nor {FOLDER}) to have it downloaded"
        )
    rows, inputs = catalogue.shapes[name]
    if found.data.shape != (rows, inputs + 1):
        n, columns = found.data.shape
        raise FileFormatError(
            f"{found.place} has {n} rows of {columns - 1} inputs, but {name} has {rows} of {inputs}: it is cut off, or "
            "another version; get it again"
        )
    if not np.isfinite(found.data).all():
        row, column = np.argwhere(~np.isfinite(found.data))[0]
        raise FileFormatError(f"{found.place}: row {row}, column {column} is {found.data[row, column]}: get it again")
    return RegressionTable(np.ascontiguousarray(found.data[:, :-1]), np.ascontiguousarray(found.data[:, -1]))


def paper_scaling(table: RegressionTable, split: Split) -> Scaled:
    """App. B: each input to [-1, 1] by its minimum and maximum over all rows, those of the test too."""
    return standardised(_to_unit_range(table.X, table.X), table.y, split)


def safe_scaling(table: RegressionTable, split: Split) -> Scaled:
    """The same by the minimum and maximum of the training rows: training knows nothing of the other rows."""
    return standardised(_to_unit_range(table.X, table.X[split.train]), table.y, split)


def _to_unit_range(X: Floats, seen: Floats) -> Floats:
    """2 (x - low) / (high - low) - 1, with the bounds of `seen`; an input that is constant there becomes 0."""
    low, high = seen.min(axis=0), seen.max(axis=0)
    varies = high > low
    return np.where(varies, 2.0 * (X - low) / np.where(varies, high - low, 1.0) - 1.0, 0.0)
