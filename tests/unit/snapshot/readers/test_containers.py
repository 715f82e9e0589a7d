"""Every container that a snapshot comes in, and what is said of files that are something else."""

import base64
import gzip
import io
import json
import os
import pickle
import sqlite3
import zipfile
import zlib

import pytest

from snapconv.errors import (
    InputError,
    MalformedSnapshotError,
    NotASnapshotError,
    TruncatedFileError,
    UnsafePickleError,
)
from snapconv.snapshot.readers import containers
from snapconv.snapshot.readers.containers import as_snapshot_dict, read_raw
from tests.builders import TraceBuilder

SNAPSHOT = TraceBuilder().segment().alloc(512).free().snapshot()
PICKLE = pickle.dumps(SNAPSHOT, 4)
AS_JSON = json.loads(json.dumps(SNAPSHOT))


@pytest.fixture
def read(tmp_path):
    """Write bytes to a file and read the raw value back; the name never helps."""

    def read(content: bytes, progress=None):
        path = tmp_path / "snapshot.bin"
        path.write_bytes(content)
        return read_raw(path, progress)[:2]

    return read


def html(*pickles: bytes, newline: bytes = b"") -> bytes:
    """A page as torch.cuda._memory_viz writes it."""
    entries = [{"name": "snapshot", "base64": base64.b64encode(part).decode()} for part in pickles]
    text = json.dumps(entries).encode()
    return (
        b"<!DOCTYPE html>\n<script>init(" + text.replace(b"AAAA", newline + b"AAAA") + b")</script>"
    )


class TestPickle:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_every_protocol_is_read_and_reported(self, read, protocol):
        value, container = read(pickle.dumps(SNAPSHOT, protocol))
        assert value == SNAPSHOT
        assert (container.format, container.pickle_protocol, container.packing) == (
            "pickle",
            protocol,
            "",
        )

    def test_the_size_is_that_of_the_file(self, read):
        assert read(PICKLE + b"\0")[1].n_bytes == len(PICKLE) + 1

    @pytest.mark.parametrize("protocol", [0, 1, 6, 255])
    def test_another_protocol_after_the_magic_is_not_a_snapshot(self, read, protocol):
        with pytest.raises(NotASnapshotError, match=f"pickle protocol {protocol} is unknown"):
            read(b"\x80" + bytes([protocol]) + PICKLE[2:])

    @pytest.mark.parametrize("protocol", [0, 1])
    @pytest.mark.parametrize("value", [{"a": 1}, [1], SNAPSHOT], ids=["dict", "list", "snapshot"])
    def test_a_pickle_of_protocol_0_or_1_is_recognised(self, read, protocol, value):
        with pytest.raises(NotASnapshotError, match="protocol 0 or 1; dump it again"):
            read(pickle.dumps(value, protocol))

    @pytest.mark.parametrize("content", [b"", b"\x80"])
    def test_an_empty_file_and_one_byte_are_truncated(self, read, content):
        with pytest.raises(TruncatedFileError):
            read(content)

    def test_a_pickle_cut_anywhere_is_truncated(self, read):
        for n in range(1, len(PICKLE), 7):
            with pytest.raises(TruncatedFileError):
                read(PICKLE[:n])


class TestGzip:
    def test_a_gzip_is_read_and_reported(self, read):
        value, container = read(gzip.compress(PICKLE))
        assert value == SNAPSHOT
        assert container.packing == "gzip"
        assert container.format == "pickle"
        assert container.n_bytes == len(gzip.compress(PICKLE))

    @pytest.mark.parametrize(
        "content", [json.dumps(SNAPSHOT).encode(), html(PICKLE)], ids=["json", "html"]
    )
    def test_the_gzip_of_another_container_is_read(self, read, content):
        value, container = read(gzip.compress(content))
        assert value in (SNAPSHOT, AS_JSON)
        assert container.packing == "gzip"

    @pytest.mark.parametrize("piece", [1, 2, 3, 17, 1000])
    def test_members_are_joined_wherever_the_reading_cuts_them(self, read, piece):
        members = [PICKLE[i : i + 100] for i in range(0, len(PICKLE), 100)]
        content = b"".join(gzip.compress(member) for member in members)
        # Members and pieces of the file meet at every offset.
        padded = gzip.compress(b"", mtime=0) * piece + content
        assert read(padded)[0] == SNAPSHOT

    def test_a_member_may_begin_at_the_last_byte_of_a_piece(self, read):
        piece, empty = 1 << 16, gzip.compress(b"")
        for overlap in range(4):
            # A comment in its header gives an empty member any length.
            comment = b"c" * (piece - overlap - len(empty) - 1)
            first = b"\x1f\x8b\x08\x10\0\0\0\0\0\xff" + comment + b"\0" + empty[10:]
            assert len(first) == piece - overlap
            assert read(first + gzip.compress(PICKLE))[0] == SNAPSHOT

    @pytest.mark.parametrize("padding", [b"\0", b"\0" * 100_000, b"garbage", b"\x1f"])
    def test_padding_after_the_last_member_is_ignored(self, read, padding):
        assert read(gzip.compress(PICKLE) + padding)[0] == SNAPSHOT

    def test_a_gzip_cut_anywhere_is_truncated(self, read):
        content = gzip.compress(PICKLE)
        for n in range(2, len(content), 5):
            with pytest.raises(TruncatedFileError, match=f"breaks off at byte {n}"):
                read(content[:n])

    def test_a_damaged_gzip_is_malformed(self, read):
        content = bytearray(gzip.compress(PICKLE))
        content[-6] ^= 1
        with pytest.raises(MalformedSnapshotError, match="gzip file is damaged"):
            read(bytes(content))

    def test_a_gzip_of_nothing_is_truncated(self, read):
        with pytest.raises(TruncatedFileError, match="0 bytes"):
            read(gzip.compress(b""))

    def test_a_gzip_of_a_gzip_is_refused_with_advice(self, read):
        with pytest.raises(NotASnapshotError, match="a gzip file in a gzip file: unpack it once"):
            read(gzip.compress(gzip.compress(PICKLE)))

    def test_a_bomb_is_refused(self, read, monkeypatch):
        monkeypatch.setattr(containers, "_MAX_FREE_BYTES", 1000)
        with pytest.raises(MalformedSnapshotError, match="more than 120 times its size"):
            read(gzip.compress(bytes(1_000_000)))

    def test_a_bomb_of_many_members_is_refused_too(self, read, monkeypatch):
        monkeypatch.setattr(containers, "_MAX_FREE_BYTES", 1000)
        with pytest.raises(MalformedSnapshotError, match="more than 120 times its size"):
            read(gzip.compress(bytes(100_000)) * 3)

    def test_zlib_without_the_gzip_header_is_not_a_snapshot(self, read):
        with pytest.raises(NotASnapshotError):
            read(zlib.compress(PICKLE))

    def test_progress_ends_at_the_files_size(self, read):
        seen = []
        read(gzip.compress(PICKLE), lambda *args: seen.append(args))
        n_bytes = len(gzip.compress(PICKLE))
        assert ("loading", n_bytes, n_bytes) in seen


class TestJson:
    @pytest.mark.parametrize("prefix", [b"", b" \n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"])
    def test_json_is_read_after_white_space_and_a_byte_order_mark(self, read, prefix):
        value, container = read(prefix + json.dumps(SNAPSHOT).encode())
        assert value == AS_JSON
        assert (container.format, container.pickle_protocol) == ("json", None)

    def test_utf_16_is_read(self, read):
        assert read(json.dumps(SNAPSHOT).encode("utf-16-le"))[0] == AS_JSON

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ('{"a": 18446744073709551615}', (1 << 64) - 1),
            ('{"a": 18446744073709551616}', 1 << 64),
            ('{"a": "\\ud800"}', "\ud800"),
            ('{"a": -Infinity}', float("-inf")),
            ('{"a": 1e400}', float("inf")),
        ],
    )
    def test_what_strict_json_does_not_know_is_read_all_the_same(self, read, text, value):
        assert read(text.encode())[0] == {"a": value}

    def test_nan_is_read_as_a_float(self, read):
        value = read(b'{"a": NaN}')[0]
        assert value["a"] != value["a"]

    @pytest.mark.parametrize(
        "text", ['{"a": ' + "9" * 5000 + "}", "[" * 100_000, '{"a":' * 5000, "[\xff]"]
    )
    def test_what_no_reader_takes_is_not_a_snapshot(self, read, text):
        with pytest.raises(InputError):
            read(text.encode("latin-1"))

    def test_json_cut_anywhere_is_truncated(self, read):
        content = json.dumps({"segments": [], "device_traces": [[{"action": "alloc"}]]}).encode()
        for n in range(1, len(content)):
            with pytest.raises(TruncatedFileError, match=f"breaks off at byte {n}"):
                read(content[:n])

    def test_what_only_begins_like_json_is_not_a_snapshot(self, read):
        with pytest.raises(
            NotASnapshotError,
            match=r"begins like JSON but is not: unexpected character, .* \(byte 1\)",
        ):
            read(b"{not: json at all, by any means}")


class TestHtml:
    def test_the_pickle_in_a_page_is_read(self, read):
        value, container = read(html(PICKLE))
        assert value == SNAPSHOT
        assert (container.format, container.pickle_protocol, container.n_embedded) == ("html", 4, 1)
        assert (container.n_bytes, container.n_unpacked_bytes) == (len(html(PICKLE)), len(PICKLE))

    @pytest.mark.parametrize("n_nuls", [1, 2, 3])
    def test_the_padding_of_torchs_viewer_is_ignored(self, read, n_nuls):
        assert read(html(PICKLE + bytes(n_nuls)))[0] == SNAPSHOT

    def test_line_breaks_in_the_text_are_ignored(self, read):
        assert read(html(PICKLE, newline=b"\\n"))[0] == SNAPSHOT

    def test_of_several_snapshots_the_first_is_read_and_all_are_counted(self, read):
        value, container = read(html(PICKLE, pickle.dumps([], 4)))
        assert value == SNAPSHOT
        assert container.n_embedded == 2

    def test_code_in_a_page_is_refused(self, read):
        with pytest.raises(UnsafePickleError, match=r"os\.system"):
            read(html(b"\x80\x02cos\nsystem\n."))

    def test_a_page_without_a_snapshot_is_not_one(self, read):
        with pytest.raises(NotASnapshotError, match="an HTML page with no snapshot embedded"):
            read(b"<html><img src='data:image/png;base64,AAAA'></html>")

    def test_text_that_is_no_base64_is_malformed(self, read):
        with pytest.raises(MalformedSnapshotError, match="embedded in the page is damaged"):
            read(b'<script>[{"base64": "gAR"}]</script>')

    @pytest.mark.parametrize("embedded", [b"", b"text"])
    def test_what_is_embedded_must_be_a_pickle(self, read, embedded):
        with pytest.raises(MalformedSnapshotError, match="is not a pickle"):
            read(html(embedded))

    def test_an_embedded_pickle_that_breaks_off_is_truncated(self, read):
        with pytest.raises(TruncatedFileError):
            read(html(PICKLE[:100]))


def zipped(files: dict[str, bytes], method=zipfile.ZIP_DEFLATED) -> bytes:
    """A zip as people and torch.save make one."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


FINDERS = {
    "run/": b"",
    "run/snapshot.pickle": PICKLE,
    "__MACOSX/run/._snapshot.pickle": b"x",
    "run/.DS_Store": b"",
}
SAVED = {
    "a/data.pkl": PICKLE,
    "a/version": b"3",
    "a/byteorder": b"little",
    "a/.data/serialization_id": b"1",
}


class TestZip:
    @pytest.mark.parametrize(
        "files",
        [{"a.pickle": PICKLE}, FINDERS, SAVED, {"a.json": json.dumps(SNAPSHOT).encode()}],
        ids=["one file", "a file manager's", "torch.save's", "json"],
    )
    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    def test_the_only_file_of_a_zip_is_read(self, read, files, method):
        value, container = read(zipped(files, method))
        assert json.loads(json.dumps(value)) == AS_JSON
        assert container.packing == "zip"

    def test_a_packed_file_in_a_zip_is_refused_with_advice(self, read):
        for inner, name in ((gzip.compress(PICKLE), "gzip"), (zipped({"a": PICKLE}), "zip")):
            with pytest.raises(
                NotASnapshotError, match=f"a {name} file in a zip file: unpack it once"
            ):
                read(zipped({"a": inner}))

    def test_of_several_files_none_is_read(self, read):
        with pytest.raises(
            NotASnapshotError, match=r"has 2 files, and one is expected.* job/rank0.pickle"
        ):
            read(zipped({f"job/rank{i}.pickle": PICKLE for i in range(2)}))

    @pytest.mark.parametrize("end", [40, -30, -1])
    def test_a_damaged_zip_is_malformed(self, read, end):
        with pytest.raises(MalformedSnapshotError, match="the zip file cannot be unpacked"):
            read(zipped({"snapshot.pickle": PICKLE})[:end])

    def test_a_changed_byte_is_found_by_the_checksum(self, read):
        whole = zipped({"snapshot.pickle": PICKLE}, zipfile.ZIP_STORED)
        with pytest.raises(MalformedSnapshotError, match="cannot be unpacked: Bad CRC-32"):
            read(whole.replace(PICKLE, PICKLE[:-9] + b"x" + PICKLE[-8:]))

    def test_another_method_or_a_password_is_not_tried(self, read):
        with pytest.raises(MalformedSnapshotError, match="packed in a rare way"):
            read(zipped({"snapshot.pickle": PICKLE}, zipfile.ZIP_LZMA))
        locked = bytearray(zipped({"a": PICKLE}))
        locked[locked.index(b"PK\x01\x02") + 8] |= 1
        with pytest.raises(MalformedSnapshotError, match="has a password"):
            read(bytes(locked))


class TestSeveralSnapshots:
    @pytest.mark.parametrize(
        "value",
        [
            {"snapshot": SNAPSHOT},
            {"rank": 3, "snapshot": SNAPSHOT, "s": 1.5},
            [SNAPSHOT],
            {3: SNAPSHOT},
        ],
    )
    def test_the_only_snapshot_in_a_value_is_the_one(self, value):
        assert as_snapshot_dict(value) == SNAPSHOT

    @pytest.mark.parametrize("value", [{0: SNAPSHOT, 1: SNAPSHOT}, [SNAPSHOT, SNAPSHOT]])
    def test_several_are_refused(self, value):
        with pytest.raises(
            NotASnapshotError, match=r"2 snapshots, as of several ranks: save each to a file"
        ):
            as_snapshot_dict(value)

    @pytest.mark.parametrize("value", [[1, 2], {}, {"a": [SNAPSHOT]}, 3, "text"])
    def test_strange_values_are_no_snapshots(self, value):
        with pytest.raises(NotASnapshotError, match="this is not a memory snapshot"):
            as_snapshot_dict(value)


class TestStrangers:
    @pytest.mark.parametrize(
        ("head", "said"),
        [
            (b"SQLite format 3\x00", "a SQLite database, perhaps a report"),
            (b"\x28\xb5\x2f\xfd", r"Zstandard: decompress it first \(zstd -d FILE\)"),
            (b"\xfd7zXZ\x00", r"xz: decompress it first \(xz -d FILE\)"),
            (b"BZh91AY", r"bzip2: decompress it first \(bzip2 -d FILE\)"),
            (b"PK\x05\x06" + bytes(18), "the zip file is empty"),
            (b"\x00\x01\x02\x03", "it begins with .*Expected a pickle"),
            (
                b"torch.OutOfMemoryError: CUDA out of memory. Tried",
                "a log; `snapconv oom --message FILE` expl",
            ),
            (
                b"Traceback (most recent call last):\n",
                "a log; `snapconv oom --message FILE` explains",
            ),
            (
                b"[rank3]: Traceback (most recent call last):\n",
                "a log; `snapconv oom --message FILE`",
            ),
            (
                b"[2026-03-03 03:03:03 TP0] Load weight end.\n",
                "a log; `snapconv oom --message FILE`",
            ),
            (b"[1, 2, oops]", "it begins like JSON but is not"),
            (b"Hello, World", "it begins with 'Hello, World'. Expected a pickle"),
            (b"   \n", "it begins with"),
        ],
    )
    def test_a_known_other_format_is_named_with_what_to_do(self, read, head, said):
        with pytest.raises(NotASnapshotError, match=said):
            read(head)

    def test_our_own_report_is_recognised(self, tmp_path):
        path = tmp_path / "report.sqlite"
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE t (x)")
        connection.close()
        with pytest.raises(NotASnapshotError, match="a SQLite database"):
            read_raw(path)

    @pytest.mark.parametrize("suffix", [".pickle", ".json", ".gz", ""])
    def test_the_name_does_not_matter(self, tmp_path, suffix):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(PICKLE)
        assert read_raw(path)[0] == SNAPSHOT


class TestFiles:
    def test_a_missing_file_is_an_input_error(self, tmp_path):
        with pytest.raises(InputError, match="No such file or directory; check the path"):
            read_raw(tmp_path / "missing.pickle")

    def test_a_similar_name_is_suggested(self, tmp_path):
        (tmp_path / "growing.pickle").write_bytes(PICKLE)
        with pytest.raises(InputError, match=r"did you mean .*growing\.pickle\?"):
            read_raw(tmp_path / "growin.pickle")

    def test_a_folder_is_an_input_error_with_advice(self, tmp_path):
        with pytest.raises(
            InputError, match=r"a folder without snapshot.pickle: name one of its files"
        ):
            read_raw(tmp_path)

    def test_a_file_that_may_not_be_read_is_an_input_error(self, tmp_path, monkeypatch):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(PICKLE)

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(InputError, match="Permission denied"):
            read_raw(path)

    def test_a_disk_that_fails_while_reading_is_an_input_error(self, tmp_path, monkeypatch):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(PICKLE)

        def fail(*_, **__):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(containers, "load_plain_pickle", fail)
        with pytest.raises(InputError, match="Input/output error"):
            read_raw(path)
