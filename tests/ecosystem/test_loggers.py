"""Figures of captures in the tools of a run, read back by their own libraries, offline."""

import csv
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import snapconv
from snapconv.integrations.loggers import RunLog, capture_figures
from tests.ecosystem.test_callbacks import LIGHTNING, TRANSFORMERS

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "fixtures" / "transformer.capture"
PEAK = "snapconv/device0/peak_bytes"


@pytest.fixture
def capture(tmp_path):
    link = tmp_path / "step-000007.capture"
    link.symlink_to(CAPTURE)
    return link


def expected_figures():
    """The same figures by the public methods of a session."""
    session = snapconv.load(CAPTURE)
    (state,) = session.at()
    (report,) = (session.report(),)
    assert report.peak.allocated_bytes == state.allocated_bytes
    rows = {row.category.replace(" ", "_"): row.block_bytes for row in state.summary_rows}
    return state.allocated_bytes, {name: n for name, n in rows.items() if n}


def test_the_categories_sum_to_the_peak_and_the_step_is_the_captures(capture):
    figures = capture_figures(capture)
    peak, categories = expected_figures()
    assert figures.step == 7
    assert figures.numbers[PEAK] == peak
    prefix = "snapconv/device0/peak/"
    logged = {
        name.removeprefix(prefix).removesuffix("_bytes"): number
        for name, number in figures.numbers.items()
        if name.startswith(prefix)
    }
    assert logged == categories
    assert sum(logged.values()) == peak
    assert figures.texts["snapconv/device0/verdict"]


def test_nothing_is_imported_for_a_run_without_tools(capture):
    program = (
        "import sys\nfrom pathlib import Path\nfrom snapconv.integrations.loggers import RunLog\n"
        f"RunLog().add([Path({str(capture)!r})])\n"
        "names = ('wandb', 'mlflow', 'tensorboard', 'transformers', 'lightning')\n"
        "assert [name for name in names if name in sys.modules] == []\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)


def test_a_capture_that_cannot_be_read_is_a_warning(tmp_path, caplog):
    RunLog().add([tmp_path / "absent.capture"])
    assert "no figures of" in caplog.text


def test_tensorboard_reads_them_back(capture, tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "runs")) as writer:
        RunLog(writers=[writer]).add([capture])
    events = reading.EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    peak, categories = expected_figures()
    (row,) = events.Scalars(PEAK)
    assert (row.step, row.value) == (7, pytest.approx(peak))
    assert {f"snapconv/device0/peak/{name}_bytes" for name in categories} < set(
        events.Tags()["scalars"]
    )
    assert "snapconv/device0/verdict/text_summary" in events.Tags()["tensors"]


def test_mlflow_reads_them_back_also_from_a_run_that_has_ended(capture, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its small package has no database
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        log = RunLog()
    log.add([capture])
    client = mlflow.MlflowClient()
    (row,) = client.get_metric_history(run.info.run_id, PEAK)
    peak, _ = expected_figures()
    assert (row.step, row.value) == (7, peak)
    tags = client.get_run(run.info.run_id).data.tags
    assert (
        tags["snapconv/device0/verdict"]
        == capture_figures(capture).texts["snapconv/device0/verdict"]
    )


def ran(folder, program):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_trainer_of_transformers_logs_to_what_it_reports_to(tmp_path):
    pytest.importorskip("transformers")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    program = TRANSFORMERS.replace('report_to="none"', 'report_to="tensorboard"')
    last = 'on_a_gpu(lambda: train(MemoryCallback("captures", steps=[1, 2], logs=True)), mib=200)'
    ran(tmp_path, f"{program}\n{last}\n")
    events = reading.EventAccumulator(str(tmp_path / "out" / "runs" / "snapconv"))
    events.Reload()
    assert [row.step for row in events.Scalars(PEAK)] == [1, 2]
    for row, path in zip(
        events.Scalars(PEAK), sorted((tmp_path / "captures").iterdir()), strict=True
    ):
        (state,) = snapconv.load(path).at()
        assert row.value == pytest.approx(state.allocated_bytes)


def test_lightnings_loggers_get_them(tmp_path):
    pytest.importorskip("lightning")
    program = LIGHTNING.replace(
        "logger=False", 'logger=lightning.pytorch.loggers.CSVLogger("logs")'
    )
    last = 'on_a_gpu(lambda: train(MemoryCallback("captures", steps=[2], logs=True)), mib=200)'
    ran(tmp_path, f"{program}\n{last}\n")
    (table,) = (tmp_path / "logs").rglob("metrics.csv")
    (capture,) = (tmp_path / "captures").iterdir()
    (state,) = snapconv.load(capture).at()
    rows = [row for row in csv.DictReader(table.read_text("utf-8").splitlines()) if row.get(PEAK)]
    assert [(int(row["step"]), float(row[PEAK])) for row in rows] == [(2, state.allocated_bytes)]


def log_records(content):
    """The records of a log of LevelDB, as the tool writes its runs: blocks of 32 KiB, of pieces."""
    position, record = 7, b""  # behind the tool's own mark
    while position + 7 <= len(content):
        if position % 32768 > 32768 - 7:  # no piece begins in so small a rest
            position += -position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def test_weights_and_biases_reads_them_back(capture, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    run = wandb.init(mode="offline", project="test", dir=str(tmp_path))
    run.log({"loss": 1.0}, step=100)  # the job is further than the capture
    RunLog().add([capture])
    summary = dict(run.summary)
    run.finish()
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    values = {}
    for data in log_records(written.read_bytes()):
        record = records.Record()
        record.ParseFromString(data)
        for item in record.history.item:
            values[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    peak, _ = expected_figures()
    assert values[PEAK] == peak
    assert values["snapconv/step"] == 7
    assert summary["snapconv/device0/verdict"]
