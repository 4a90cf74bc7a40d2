"""Readers of formats that contain the types of their columns: Parquet and ORC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow
from pyarrow import dataset, fs

from pykaproducer._load.reader import FilePart, FileReader, Read

#: Maximum rows of a batch, and approximate bytes of the file that a batch covers.
_ROWS = 65_536
_SHARE = 8 << 20


class _Columnar(FileReader):
    """A columnar file, which contains the types of its columns."""

    format: ClassVar[Any]

    def _read_schema(self) -> Any:
        return self._fragment().physical_schema.remove_metadata()

    def _read(self, schema: Any, part: FilePart) -> Iterator[Read]:
        fragment = self._fragment()
        rows = fragment.count_rows()
        if not schema.names:  # no column is needed, only the number of rows
            yield from self._without_columns(rows)
            return
        at_once = min(_ROWS, max(256, rows * _SHARE // max(self.size, 1)))
        done = 0
        batches = fragment.to_batches(
            schema=schema,
            columns=[name for name in schema.names if name in self.schema.names],
            batch_size=at_once,
            batch_readahead=2,
        )
        for batch in batches:
            done += batch.num_rows
            yield Read(batch, self.size * done // max(rows, 1))

    def _without_columns(self, rows: int) -> Iterator[Read]:
        for start in range(0, rows, _ROWS):
            count = min(_ROWS, rows - start)
            one = pyarrow.RecordBatch.from_arrays([pyarrow.nulls(count)], ["none"])
            yield Read(one, self.size * (start + count) // rows)

    def _fragment(self) -> Any:
        return self.format.make_fragment(self.path, fs.LocalFileSystem())


class ParquetReader(_Columnar):
    """A Parquet file."""

    advice = "is it a complete Parquet file? (for another format, use --format)"
    format = dataset.ParquetFileFormat()


class OrcReader(_Columnar):
    """An ORC file."""

    advice = "is it a complete ORC file? (for another format, use --format)"

    def _fragment(self) -> Any:
        # Created on demand, because some builds of pyarrow lack ORC.
        return dataset.OrcFileFormat().make_fragment(self.path, fs.LocalFileSystem())
