"""Criteo click logs: the Kaggle challenge's, the Terabyte's, CSV and parquet.

    paths = find_files(Path("day_folder"))                         # or a single file
    data = preprocess(paths, Preprocessing(min_frequency=10), cache=Path("criteo_cache"))
    for batch in data.batches(2048):
        model(batch.dense_x, batch.lS_o, batch.lS_i)

Preprocessing is the usual one (facebookresearch/dlrm ``data_utils.py``): among the dense features gaps become
0, negative numbers 0, and x becomes log(x + 1). Each sparse feature gets rows of its own table, by a
vocabulary or by hashing. Memory holds a block of the input and one feature's vocabulary, whatever the size of
the input. The disk holds the columns, about as much as the input, until the cache is complete.

Legend: N rows of the input, B rows of a batch, D = 13 dense features, T = 26 sparse features.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow

from datasets import lines
from datasets.criteo.cache import describe, new_cache, open_cache, read_blocks, write_array
from datasets.criteo.parquet import is_parquet, read_parquet
from datasets.criteo.rows import MISSING, NUM_DENSE, NUM_SPARSE, BrokenLine, RawRows, ReadReport
from datasets.criteo.text import find_layout, open_text, read_text
from datasets.criteo.vocabulary import FIRST_ROW, count_values, encode
from datasets.errors import DataError

#: The number of values of a column in memory.
_BLOCK_ROWS = 1 << 18
_DAY = re.compile(r"day_([0-9]{1,6})(\.gz)?")


@dataclass(frozen=True)
class Preprocessing:
    """The way from sparse values to rows of a table.

    With `hash_size`, value v is row v mod hash_size, and a gap is row 0, as with the public `max_ind_range`.
    Without it each feature has a vocabulary. Row 0 is a gap, and row 1 a value outside the vocabulary. The
    values of the vocabulary follow in ascending order.

    Attributes:
        min_frequency: the least number of times that a value occurs in a feature to get a row of its own.
        hash_size: the number of rows of every table; None for vocabularies.
    """

    min_frequency: int = 1
    hash_size: int | None = None

    def __post_init__(self) -> None:
        if self.min_frequency < 1:
            raise DataError("min_frequency", self.min_frequency, "is below 1", "give at least 1")
        if self.hash_size is not None and not 1 <= self.hash_size <= 2**31:
            raise DataError("hash_size", self.hash_size, "is not 1..2**31", "give None for vocabularies")
        if self.hash_size is not None and self.min_frequency != 1:
            raise DataError(
                "min_frequency", self.min_frequency, "has no effect with hash_size", "give only one of them"
            )


@dataclass(frozen=True)
class CriteoBatch:
    """Input of ``DLRM_Net.forward``, in its names, and the labels.

    Attributes:
        dense_x: (B, 13) float32.
        lS_o: (26, B) int64, offsets: every bag has one index.
        lS_i: (26, B) int64, rows of the tables.
        labels: (B, 1) float32, 0 or 1.
    """

    dense_x: np.ndarray
    lS_o: np.ndarray
    lS_i: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class CriteoData:
    """Preprocessed rows.

    Attributes:
        labels_N: (N,) uint8.
        dense_ND: (N, 13) float32.
        sparse_TN: (26, N) int32, rows of the tables.
        table_sizes: rows of each of the 26 tables.
        vocabularies: each feature's values, ascending, int64; None with hashing. The first is row
            ``FIRST_ROW``.
        report: the account of the lines of the files.
    """

    labels_N: np.ndarray
    dense_ND: np.ndarray
    sparse_TN: np.ndarray
    table_sizes: tuple[int, ...]
    vocabularies: tuple[np.ndarray, ...] | None
    report: ReadReport

    def __len__(self) -> int:
        return self.labels_N.size

    def batch(self, rows: slice | np.ndarray) -> CriteoBatch:
        """Some rows, copied."""
        labels_B = np.array(self.labels_N[rows], dtype=np.float32)
        lS_o = np.tile(np.arange(labels_B.size, dtype=np.int64), (NUM_SPARSE, 1))
        lS_i = np.array(self.sparse_TN[:, rows], dtype=np.int64)
        return CriteoBatch(np.array(self.dense_ND[rows]), lS_o, lS_i, labels_B[:, None])

    def batches(self, batch_size: int) -> Iterator[CriteoBatch]:
        """All rows, in order; the last batch may be smaller."""
        if batch_size < 1:
            raise DataError("batch_size", batch_size, "is below 1", "give at least 1")
        for start in range(0, len(self), batch_size):
            yield self.batch(slice(start, start + batch_size))


def find_files(path: Path) -> list[Path]:
    """The files to read: ``path`` itself, or a folder's ``day_0``, ``day_1``... (or ``.gz``) by number.

    Raises:
        DataError: there is nothing to read, or a day is missing between others.
    """
    if path.is_file():
        return [path]
    days = [(int(match[1]), file) for file in path.glob("day_*") if (match := _DAY.fullmatch(file.name))]
    if not days:
        problem = "has no day_N" if path.is_dir() else "does not exist"
        raise DataError("data", str(path), problem, "give a file, or a folder with day_0, day_1...")
    numbers = [number for number, _ in days]
    if len(set(numbers)) != len(numbers):
        raise DataError("data", str(path), "has a day both packed and unpacked", "remove one of the two")
    gap = next((day for day in range(min(numbers), max(numbers)) if day not in numbers), None)
    if gap is not None:
        problem = f"has no day_{gap}, and has an earlier and a later day"
        raise DataError("data", str(path), problem, "add the day, or leave the later ones out")
    return [file for _, file in sorted(days)]


def read_rows(paths: Sequence[Path], report: ReadReport) -> Iterator[RawRows]:
    """Yields the rows of files of any format in bounded memory; the content of a file tells its format.

    Raises:
        DataError: a file cannot be read or has no known format; at the end, see `ReadReport.check`.
    """
    for path in paths:
        try:
            yield from read_parquet(path, report) if is_parquet(path) else read_text(path, report)
        except (OSError, EOFError, zlib.error, pyarrow.ArrowException) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            problem = f"cannot be read ({reason})"
            raise DataError("data", str(path), problem, "give Criteo files that are complete") from error
    report.check(paths)


def preprocess_dense(dense_BD: np.ndarray) -> np.ndarray:
    """Gaps and negative numbers become 0; x becomes log(x + 1), computed in float64, rounded to float32."""
    return np.log1p(np.maximum(np.nan_to_num(dense_BD, nan=0.0), 0.0)).astype(np.float32)


def counts_of(dense_BD: np.ndarray) -> np.ndarray:
    """The inverse of `preprocess_dense` for counts.

    Args:
        dense_BD: (B, D) float32 logarithms.

    Returns:
        (B, D) int64 counts whose logarithms, rounded to float32, are ``dense_BD``.

    Raises:
        DataError: a feature is the logarithm of no whole number.
    """
    counts_BD = np.rint(np.expm1(dense_BD.astype(np.float64))).astype(np.int64)
    changed = np.argwhere(preprocess_dense(counts_BD.astype(np.float64)) != dense_BD)
    if len(changed):
        row, feature = changed[0].tolist()
        value = float(np.expm1(float(dense_BD[row, feature])))
        raise DataError(
            f"data: I{feature + 1} of row {row + 1} in its batch", value, "is no whole number", "give counts"
        )
    return counts_BD


def check_features(path: Path, case: str, num_dense: int, num_tables: int) -> None:
    """Checks that a case takes the 13 dense and 26 sparse features of the Criteo data.

    Args:
        path: the data's path, for the message.
        case: the name of the case, for the message.
        num_dense: the number of dense features that the case takes.
        num_tables: the number of sparse features that the case takes.

    Raises:
        DataError: there is nothing to read, or the numbers differ.
    """
    find_files(path)
    if (num_dense, num_tables) != (NUM_DENSE, NUM_SPARSE):
        raise DataError(
            "data",
            str(path),
            f"has {NUM_DENSE} dense and {NUM_SPARSE} sparse features, and {case} takes {num_dense} and "
            f"{num_tables}",
            "use a case of the Criteo architectures",
        )


def fold_rows(rows_TB: np.ndarray, table_rows: Sequence[int]) -> np.ndarray:
    """Indices (T, B), modulo the rows of T tables: values share the rows of a smaller table."""
    return rows_TB % np.array(table_rows)[:, None]


def recognises(path: Path) -> bool:
    """Whether a file begins like one of the formats, or a folder has days of such files."""
    try:
        first = find_files(path)[0]
        if is_parquet(first):
            return True
        layout = find_layout(first)
        with open_text(first) as stream:
            # MovieLens has tabs, too.
            separators = stream.readline(lines.MAX_LINE_BYTES).count(layout.separator.encode())
            return separators == layout.num_fields - 1
    except (OSError, EOFError, zlib.error, DataError):
        return False


def preprocess(
    paths: Sequence[Path],
    spec: Preprocessing,
    cache: Path | None = None,
    max_broken: int = 0,
) -> CriteoData:
    """Reads and preprocesses files, or opens a cache of the same files and the same preprocessing.

    Args:
        paths: the files of one data set, in order; see `find_files`.
        spec: the preprocessing of sparse values.
        cache: a folder. It is written unless it belongs to the same files (by name, size and time of change)
            and the same preprocessing; its arrays are mapped. None: the result is in memory, and the system's
            folder for temporary files holds the columns during the work.
        max_broken: the largest number of broken lines that is no error; the result's report has them.

    Raises:
        DataError: see `read_rows`; or ``cache`` is something else, or cannot be read or written.
    """
    key = _key(paths, spec, max_broken)
    if cache is None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "criteo"
            _build(paths, spec, path, max_broken, key)
            return _load(path, np.array)
    if not cache.exists() or open_cache(cache)[0]["key"] != key:
        _build(paths, spec, cache, max_broken, key)
    return _load(cache)


def _key(paths: Sequence[Path], spec: Preprocessing, max_broken: int) -> str:
    try:
        files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise DataError("data", str(error.filename), problem, "give the path of a Criteo file") from error
    content = {"files": files, "spec": asdict(spec), "max_broken": max_broken}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _build(paths: Sequence[Path], spec: Preprocessing, path: Path, max_broken: int, key: str) -> None:
    report = ReadReport(max_broken)
    with new_cache(path) as folder, tempfile.TemporaryDirectory(dir=folder.parent) as raw_folder:
        raw = Path(raw_folder)
        features = [raw / f"sparse_{feature}" for feature in range(NUM_SPARSE)]
        with ExitStack() as stack:
            labels, dense, *sparse = (
                stack.enter_context(file.open("wb")) for file in (raw / "labels", raw / "dense", *features)
            )
            for rows in read_rows(paths, report):
                rows.labels_B.tofile(labels)
                preprocess_dense(rows.dense_BD).tofile(dense)
                for feature, stream in enumerate(sparse):
                    rows.sparse_BT[:, feature].tofile(stream)
        for name, dtype, shape in (("labels", np.uint8, ()), ("dense", np.float32, (NUM_DENSE,))):
            blocks = read_blocks(raw / name, dtype, _BLOCK_ROWS)
            write_array(folder / f"{name}.npy", dtype, (report.rows, *shape), blocks)
            (raw / name).unlink()
        table_sizes: list[int] = []
        encoded = _encode(features, spec, folder, table_sizes)
        write_array(folder / "sparse.npy", np.int32, (NUM_SPARSE, report.rows), encoded)
        about = {
            "key": key,
            "table_sizes": table_sizes,
            "vocabularies": spec.hash_size is None,
            "rows": report.rows,
            "max_broken": max_broken,
            "broken": [asdict(line) for line in report.broken],
        }
        describe(folder, about)


def _encode(
    features: Sequence[Path], spec: Preprocessing, folder: Path, table_sizes: list[int]
) -> Iterator[np.ndarray]:
    """Yields the table rows of all features, one after the other, in blocks; removes the read columns.

    Vocabularies become files in ``folder``; the sizes of the tables are appended to ``table_sizes``.
    """
    for feature, column in enumerate(features):
        if spec.hash_size is None:
            values, counts = count_values(read_blocks(column, np.int64, _BLOCK_ROWS))
            vocabulary = values[counts >= spec.min_frequency]
            del values, counts
            write_array(folder / f"vocabulary_{feature}.npy", np.int64, vocabulary.shape, [vocabulary])
            table_sizes.append(vocabulary.size + FIRST_ROW)
            for block in read_blocks(column, np.int64, _BLOCK_ROWS):
                yield encode(block, vocabulary)
        else:
            table_sizes.append(spec.hash_size)
            for block in read_blocks(column, np.int64, _BLOCK_ROWS):
                yield np.where(block == MISSING, 0, block % spec.hash_size)
        column.unlink()


def _load(path: Path, convert: Callable[[np.ndarray], np.ndarray] = lambda array: array) -> CriteoData:
    about, array = open_cache(path)
    vocabularies = (convert(array(f"vocabulary_{feature}")) for feature in range(NUM_SPARSE))
    broken = [BrokenLine(**line) for line in about["broken"]]
    return CriteoData(
        labels_N=convert(array("labels")),
        dense_ND=convert(array("dense")),
        sparse_TN=convert(array("sparse")),
        table_sizes=tuple(about["table_sizes"]),
        vocabularies=tuple(vocabularies) if about["vocabularies"] else None,
        report=ReadReport(about["max_broken"], about["rows"], broken),
    )
