"""The container on disk: what goes in comes out, damage is always noticed, and a writer that fails leaves no trace."""

import errno
import hashlib
import json
import os
import pickle
import random
import stat
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from deepbasis import storage
from deepbasis.errors import FileFormatError, FileInUseError

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.bool, torch.complex64),
]
METADATA = {
    "text": 'σ² ≥ 0, 日本語, 🜁, "quotes", \\, \n, \x00',
    "numbers": [0, -1, 2**70, 1.5, 1e-300, 5e-324],
    "nothing": None,
    "yes": True,
    "nested": {"a": [{"b": []}], "": {}},
}
Content = tuple[dict[str, Tensor], dict[str, object]]


def random_bits(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Every bit pattern: NaNs, infinities and subnormal numbers among them."""
    size = torch.empty(0, dtype=dtype).element_size()
    count = size * torch.Size(shape).numel()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def bits(tensor: Tensor) -> tuple[torch.dtype, list[int], bytes]:
    return tensor.dtype, list(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(first: Content, second: Content) -> bool:
    (tensors, metadata), (others, other_metadata) = first, second
    return metadata == other_metadata and {k: bits(t) for k, t in tensors.items()} == {
        k: bits(t) for k, t in others.items()
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.fixture
def written(path: Path) -> Content:
    """A small file of every shape of thing, and what is in it."""
    content = ({"w": torch.randn(3, 2), "scalar": torch.tensor(2), "ε": torch.zeros(0, 4).bool()}, {"a": [1, "é"]})
    storage.save(path, "model", *content)
    return content


# --- round trips ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (5,), (2, 3, 4)], ids=str)
def test_tensors_come_back_bit_by_bit(path, dtype, shape):
    content = ({"t": random_bits(shape, dtype)}, {})
    storage.save(path, "model", *content)
    assert same(storage.load(path, "model"), content)


def test_everything_together_comes_back(path):
    content = ({f"é {i}": random_bits((i, 2), dtype) for i, dtype in enumerate(DTYPES)}, METADATA)
    storage.save(path, "a kind of its own", *content)
    assert same(storage.load(path, "a kind of its own"), content)


def test_nothing_comes_back_as_nothing(path):
    storage.save(path, "model", {}, {})
    assert storage.load(path, "model") == ({}, {})


def test_views_and_parameters_are_saved_as_they_look(path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "transposed": base.mT,
        "strided": base[::2, 1::2],
        "expanded": base[0].expand(5, 4),
        "row": base[1],
        "parameter": torch.nn.Parameter(base + 1),
    }
    storage.save(path, "model", tensors, {})
    assert same(storage.load(path, "model"), ({k: t.detach() for k, t in tensors.items()}, {}))


def test_a_view_of_one_number_is_saved(path):
    """Its stride is that of the whole; a history of one epoch is such a view."""
    view = torch.arange(6.0, dtype=torch.float64).view(2, 3)[:1, 1]
    storage.save(path, "thing", {"view": view}, {})
    assert storage.load(path, "thing")[0]["view"].tolist() == [1.0]


@pytest.mark.parametrize("second", [slice(None), slice(0, 2)], ids=["whole", "part"])
def test_tensors_that_share_memory_are_saved_each(path, second):
    shared = torch.arange(6.0)
    tensors = {"one": shared, "other": shared[second]}
    storage.save(path, "model", tensors, {})
    assert same(storage.load(path, "model"), (tensors, {}))


def test_loaded_tensors_are_the_callers_own(path, written):
    first, _ = storage.load(path, "model")
    first["w"].add_(1.0)
    assert same(storage.load(path, "model"), written)


def test_saving_again_replaces(path, written):
    storage.save(str(path), "model", {"x": torch.ones(1)}, {"b": 2})
    assert same(storage.load(str(path), "model"), ({"x": torch.ones(1)}, {"b": 2}))
    assert os.listdir(path.parent) == [path.name]


def test_equal_content_gives_equal_files(path, written):
    first = path.read_bytes()
    storage.save(path, "model", dict(reversed(written[0].items())), written[1])
    assert path.read_bytes() == first


def test_others_can_read_the_file(path, written):
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("w"), written[0]["w"])
        envelope = json.loads(file.metadata()["deepbasis"])
    assert (envelope["format"], envelope["kind"], envelope["metadata"]) == (storage.FORMAT, "model", written[1])


# --- files that are not what was asked for ---


def test_wrong_kind_names_both(path, written):
    with pytest.raises(FileFormatError, match="'model' file, expected a 'checkpoint' file"):
        storage.load(path, "checkpoint")


def test_newer_format_says_upgrade(path):
    storage.save(path, "model", {"x": torch.ones(2)}, {})
    newer = path.read_bytes().replace(
        f'format\\": {storage.FORMAT}'.encode(), f'format\\": {storage.FORMAT + 1}'.encode()
    )
    path.write_bytes(newer)
    with pytest.raises(FileFormatError, match=f"format {storage.FORMAT + 1}.*up to {storage.FORMAT}.*upgrade"):
        storage.load(path, "model")


def zip_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps([1]))


def with_header(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def foreign(metadata: dict[str, str] | None, path: Path) -> None:
    save_file({"w": torch.ones(2)}, path, metadata=metadata)


NOT_OURS = {
    "empty": lambda p: p.write_bytes(b""),
    "text": lambda p: p.write_text("mean,std\n1,2\n"),
    "zeros": lambda p: p.write_bytes(bytes(1000)),
    "ones": lambda p: p.write_bytes(b"\xff" * 1000),
    "image": lambda p: p.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100)),
    "pickle": lambda p: p.write_bytes(pickle.dumps({"w": [1.0]})),
    "torch.save": lambda p: torch.save({"w": torch.ones(2)}, p),
    "zip": zip_file,
    "deep JSON": lambda p: p.write_bytes(with_header(b"[" * 200_000)),
    "huge integer": lambda p: p.write_bytes(with_header(b"9" * 10_000)),
    "JSON list": lambda p: p.write_bytes(with_header(b"[1, 2]")),
    "not UTF-8": lambda p: p.write_bytes(with_header(b'{"__metadata__": {"deepbasis": "\xff"}}')),
    "foreign": lambda p: foreign(None, p),
    "foreign metadata": lambda p: foreign({"format": "pt"}, p),
    "our key, not JSON": lambda p: foreign({"deepbasis": "hello"}, p),
    "our key, null": lambda p: foreign({"deepbasis": "null"}, p),
    "our key, list": lambda p: foreign({"deepbasis": "[]"}, p),
    "our key, empty": lambda p: foreign({"deepbasis": "{}"}, p),
    "our key, wrong types": lambda p: foreign({"deepbasis": '{"format": "1", "kind": 2, "metadata": []}'}, p),
    "no checksum": lambda p: foreign({"deepbasis": '{"format": 1, "kind": "model", "metadata": {}}'}, p),
    "null checksum": lambda p: foreign(
        {"deepbasis": '{"format": 1, "kind": "model", "metadata": {}, "sha256": null}'}, p
    ),
}


@pytest.mark.parametrize("make", list(NOT_OURS.values()), ids=list(NOT_OURS))
def test_a_file_that_is_not_ours_is_a_format_error_that_names_it(path, make):
    make(path)
    with pytest.raises(FileFormatError, match=path.name):
        storage.load(path, "model")


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        storage.load(tmp_path / "nowhere", "model")
    with pytest.raises(OSError, match=tmp_path.name):
        storage.load(tmp_path, "model")


# --- damage ---


def test_truncation_anywhere_is_noticed(path, written):
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            storage.load(path, "model")


def mutations(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Bytes changed, inserted, deleted or copied, one to three times; half of them in the header, read with care."""
    rng = random.Random(seed)
    header = 8 + int.from_bytes(data[:8], "little")
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.randrange(header if rng.random() < 0.5 else len(data))
            what = rng.choice(("bit", "byte", "text", "insert", "delete", "copy"))
            if what == "bit":
                damaged[at % len(damaged)] ^= 1 << rng.randrange(8)
            elif what == "byte":
                damaged[at % len(damaged)] = rng.randrange(256)
            elif what == "text":
                damaged[at % len(damaged)] = rng.choice(b'0123456789{}[]",:\\ IFUBC-eE.')
            elif what == "insert":
                damaged[at:at] = rng.randbytes(rng.randint(1, 4))
            elif what == "delete":
                del damaged[at : at + rng.randint(1, 4)]
            else:
                other = rng.randrange(len(data))
                damaged[at : at + 8] = data[other : other + 8]
        yield bytes(damaged)


def outcome(path: Path, content: Content) -> str:
    try:
        loaded = storage.load(path, "model")
    except FileFormatError:
        return "noticed"
    return "unharmed" if same(loaded, content) else "WRONG CONTENT"


def test_damage_is_noticed_or_harmless(path, written):
    counts = {"noticed": 0, "unharmed": 0, "WRONG CONTENT": 0}
    for damaged in mutations(path.read_bytes(), 3000, seed=0):
        path.write_bytes(damaged)
        counts[outcome(path, written)] += 1
    assert counts["WRONG CONTENT"] == 0
    assert counts["noticed"] > 2500


@pytest.mark.parametrize(
    "new", ["F64", "F16", "BF16", "I32", "U32", "C64", "F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "BOOL"]
)
def test_another_dtype_in_the_header_is_noticed(path, written, new):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"F32"', f'"{new}"'.encode())
    assert header != data[8 : 8 + length]
    path.write_bytes(with_header(header) + data[8 + length :])
    assert outcome(path, written) == "noticed"


# --- writers that fail ---


def fails(error: BaseException) -> object:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("exists", [True, False])
def test_a_writer_that_fails_leaves_what_was_there(path, written, monkeypatch, step, error, exists):
    if not exists:
        if step == "chmod":
            pytest.skip("a new file has the permissions that the system gives it")
        path.unlink()
    monkeypatch.setattr(os, step, fails(error))
    with pytest.raises(type(error)):
        storage.save(path, "model", {"other": torch.zeros(9)}, {})
    monkeypatch.undo()
    assert os.listdir(path.parent) == ([path.name] if exists else [])
    if exists:
        assert same(storage.load(path, "model"), written)


@pytest.mark.parametrize(
    "metadata",
    [{"a": float("nan")}, {"a": float("inf")}, {"a": object()}, {"a": {1, 2}}],
    ids=["nan", "inf", "object", "set"],
)
def test_metadata_that_json_cannot_hold_is_refused_before_writing(path, written, metadata):
    with pytest.raises((ValueError, TypeError)):
        storage.save(path, "model", {}, metadata)
    assert os.listdir(path.parent) == [path.name]
    assert same(storage.load(path, "model"), written)


def test_a_missing_folder_is_named(tmp_path):
    target = tmp_path / "no such folder" / "model.safetensors"
    with pytest.raises(FileNotFoundError, match="no such folder"):
        storage.save(target, "model", {}, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002, 0o027], ids=oct)
def test_permissions_follow_the_umask(path, mask):
    before = os.umask(mask)
    try:
        storage.save(path, "model", {}, {})
        assert os.umask(mask) == mask  # left as it was
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664], ids=oct)
def test_a_file_that_is_written_over_keeps_its_permissions(path, mode):
    storage.save(path, "model", {}, {"a": 1})
    path.chmod(mode)
    with storage.writing_atomically(path):
        (temporary,) = path.parent.glob(".*")
        assert stat.S_IMODE(temporary.stat().st_mode) & ~mode == 0  # while it is written, too
    storage.save(path, "model", {}, {"a": 2})
    assert storage.load(path, "model")[1] == {"a": 2}
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_the_umask_of_other_threads_is_left_alone(path, monkeypatch):
    """It can only be read by changing it, for a moment, for the whole process."""
    monkeypatch.setattr(os, "umask", fails(AssertionError("the umask was changed")))
    storage.save(path, "model", {}, {})


def test_what_killed_writers_left_is_swept_up_and_nothing_else(path):
    code = (
        "import os, sys; from deepbasis.storage import writing_atomically\n"
        "with writing_atomically(sys.argv[1]) as file: file.write(b'half'); file.flush(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert len(os.listdir(path.parent)) == 1
    others = [".other.safetensors.0123abcd.tmp", f".{path.name}.backup.tmp", f".{path.name}.tmp"]
    for name in others:
        (path.parent / name).touch()
    with storage.writing_atomically(path) as first:
        first.write(b"slow")
        held = set(os.listdir(path.parent))
        storage.save(path, "model", {}, {})  # another writer at the same time: both are whole
        assert held <= set(os.listdir(path.parent))
    assert path.read_bytes() == b"slow"
    assert sorted(os.listdir(path.parent)) == sorted([*others, path.name])


def test_writers_of_one_file_do_not_sweep_up_each_others_work(path):
    contents = [bytes([k]) * 100 for k in range(8)]

    def write(content: bytes) -> None:
        for _ in range(100):
            storage.write_atomically(path, content)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, contents))
    assert path.read_bytes() in contents
    assert os.listdir(path.parent) == [path.name]


def test_a_full_disk_is_told_with_the_files_name(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fails(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match=path.name) as caught:
        storage.save(path, "model", {}, {})
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("header", [b"{}", b'{"__metadata__": {}}', b"[]", b"null", b'{"a": 1, "__metadata__": 2}'])
def test_a_huge_file_that_is_not_ours_is_refused_by_its_header(path, header):
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(1 << 36)  # sparse: reading 64 GiB would take all memory
    with pytest.raises(FileFormatError, match="not a deepbasis file"):
        storage.load(path, "model")


def test_a_file_longer_or_shorter_than_its_header_says_is_refused_before_it_is_read(path):
    storage.save(path, "model", {"a": torch.zeros(1000)}, {})
    size = path.stat().st_size
    for other in (1 << 36, size - 1):
        with open(path, "rb+") as file:
            file.truncate(other)
        with pytest.raises(FileFormatError, match=f"it is {other} bytes long"):
            storage.load(path, "model")


def with_parts(path: Path, change: Callable[[dict[str, Any], int], int]) -> None:
    """Change the header of a file, from the bytes of content that it had to those that it then has; more are zeros."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, content = json.loads(data[8 : 8 + length]), data[8 + length :]
    size = change(header, len(content))
    text = with_header(json.dumps(header).encode())
    path.write_bytes(text + content[:size])
    os.truncate(path, len(text) + size)


def test_a_file_of_any_size_is_refused_by_its_checksum_without_memory_of_its_size(path, written):
    size = 256 << 20

    def add(header: dict[str, Any], end: int) -> int:
        header["giant"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [end, end + size]}
        return end + size

    with_parts(path, add)
    tracemalloc.start()
    with pytest.raises(FileFormatError, match="does not match its checksum"):
        storage.load(path, "model")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 16


@pytest.mark.parametrize(
    "part",
    [
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},  # where another is
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [0, 10**30], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": {}, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4.0]},
        {"dtype": "F32", "shape": None, "data_offsets": [0, 4]},
        {"dtype": [], "shape": [], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]},
        {"dtype": "F32", "shape": [1]},
        7,
    ],
    ids=str,
)
def test_tensors_that_cannot_be_where_the_header_says_are_refused(path, written, part):
    with_parts(path, lambda header, end: (header.update(giant=part), end)[1])
    with pytest.raises(FileFormatError, match=path.name):
        storage.load(path, "model")


def test_shapes_and_names_that_no_tensor_has_are_refused_with_the_right_checksum_too(path):
    storage.save(path, "model", {"w": torch.zeros(0)}, {})
    envelope = {"format": storage.FORMAT, "kind": "model", "metadata": {}}
    for shape, name in (([0, 10**30], "w"), ([0], "\ud800")):
        label = f"{name}|torch.float32|{shape}|".encode("utf-8", "surrogatepass")
        right = hashlib.sha256(json.dumps(envelope, sort_keys=True).encode() + label).hexdigest()
        header = {
            "__metadata__": {"deepbasis": json.dumps({**envelope, "sha256": right})},
            name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]},
        }
        path.write_bytes(with_header(json.dumps(header).encode()))
        with pytest.raises(FileFormatError, match=path.name):
            storage.load(path, "model")


def test_written_bytes_are_synced_before_the_rename(path, monkeypatch):
    """fsync of the file, then the rename, then fsync of the folder."""
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: (calls.append(name), real(*args))[1])
    storage.save(path, "model", {}, {})
    assert calls == ["fsync", "replace", "fsync"]


def test_a_file_that_cannot_be_there_is_told_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such folder to write to.*nowhere'"):
        storage.write_atomically(tmp_path / "nowhere" / "model", b"")
    with pytest.raises(IsADirectoryError, match=r"is a folder.*'"):
        storage.write_atomically(tmp_path, b"")
    assert not list(tmp_path.iterdir())


# --- reserved names ---

HOLDER = """
import sys
from deepbasis import storage
with storage.reserved(sys.argv[1]):
    print("mine", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="needs locks of files")
def test_a_name_that_another_process_has_reserved_is_refused_until_it_is_dead(tmp_path):
    """Killed, it leaves the file that it had locked, but not the lock."""
    path = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        with (
            pytest.raises(FileInUseError, match=rf"run is in use by process {other.pid} on \S+: wait"),
            storage.reserved(path),
        ):
            pass
        other.kill()
        other.wait()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".run.")
    with storage.reserved(path):
        assert str(os.getpid()) in left.read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_free_again_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), storage.reserved(tmp_path / "run"):
            raise KeyError
    with storage.reserved(tmp_path / "run"), pytest.raises(FileInUseError), storage.reserved(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="needs locks of files")
@pytest.mark.parametrize("link", [False, True])
def test_reserving_a_name_leaves_what_others_have_beside_it(tmp_path, link):
    with storage.reserved(tmp_path / "run"):
        (own,) = tmp_path.iterdir()
    others = {"run.lock": b"mine", ".run.lock": b"", own.name: b"mine too"}
    if link:
        (tmp_path / "empty").touch()
        del others[own.name]
        own.symlink_to(tmp_path / "empty")
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    with storage.reserved(tmp_path / "run"):
        if not link:
            with pytest.raises(FileInUseError, match="by another process"), storage.reserved(tmp_path / "run"):
                pass
    assert {name: (tmp_path / name).read_bytes() for name in others} == others
    assert own.is_symlink() == link
    assert not link or (tmp_path / "empty").read_bytes() == b""


def test_a_name_in_no_folder_can_be_reserved(tmp_path):
    """Whoever writes there will say what is wrong."""
    with storage.reserved(tmp_path / "none" / "run"):
        pass


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_no_json_are_refused(tmp_path, number):
    """Python reads them; `save` never writes them."""
    path = tmp_path / "file"
    storage.save(path, "test", {"x": torch.zeros(3)}, {"number": 12345})
    content = path.read_bytes().replace(b"12345", number.encode())
    length = int.from_bytes(content[:8], "little") + len(number) - 5
    path.write_bytes(length.to_bytes(8, "little") + content[8:])
    with pytest.raises(FileFormatError, match="not a deepbasis file"):
        storage.load(path, "test")
