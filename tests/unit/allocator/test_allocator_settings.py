"""PYTORCH_ALLOC_CONF, as c10/core/AllocatorConfig.cpp reads it. Rounding is tested in test_rounding.py."""

from pathlib import Path

import pytest

from snapconv.allocator.allocator_settings import MIB, AllocatorSettings, require_taken
from snapconv.errors import SettingError
from snapconv.snapshot.readers.containers import read_raw

REAL_SNAPSHOTS = Path(__file__).parents[4] / "shared" / "snapshots"
FILES = sorted(path for path in REAL_SNAPSHOTS.glob("*.pickle") if path.stat().st_size < 4 * MIB)
CONF = "PYTORCH_CUDA_ALLOC_CONF"


def settings_of(path):
    """The settings in a file; empty where it has none."""
    raw, *_ = read_raw(path)
    return raw.get("allocator_settings", {}) if isinstance(raw, dict) else {}


def test_divisions_named_by_size_hold_below_the_first_and_above_the_last():
    settings = AllocatorSettings.from_conf("roundup_power2_divisions:[64:8,128:2,512:4,>:1]")
    table = dict(zip([1 << i for i in range(16)], settings.roundup_power2_divisions, strict=True))
    assert (table[1], table[32], table[64], table[128], table[256], table[512]) == (
        8,
        8,
        8,
        2,
        0,
        4,
    )
    assert table[1024] == table[32768] == 1
    assert settings.round_size(100 * MIB + 1) == 104 * MIB
    assert settings.round_size(1000 * MIB + 1) == 1024 * MIB
    assert settings.as_snapshot()["roundup_power2_divisions"]["128"] == 2


def test_the_least_size_of_large_segments_is_11_mib():
    assert AllocatorSettings.from_conf("large_segment_size_mb:11").large_segment_bytes == 11 * MIB


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        ("[>:4]", (0, *[4] * 15)),
        ("[65536:8]", (8,) * 16),
        ("[32768:8,>:2]", (8,) * 16),
        ("[1:4]", (4, *[0] * 15)),
        ("[2:8,8:4]", (8, 8, 0, 4, *[0] * 12)),
    ],
)
def test_divisions_may_be_named_for_some_sizes_alone(text, divisions):
    found = AllocatorSettings.from_conf(f"roundup_power2_divisions:{text}")
    assert found.roundup_power2_divisions == divisions


def test_no_max_split_size_is_written_as_torch_writes_it():
    assert AllocatorSettings().as_snapshot()["max_split_size"] == -1
    assert (
        AllocatorSettings.from_conf("max_split_size_mb:64").as_snapshot()["max_split_size"]
        == 64 * MIB
    )


def test_what_is_not_modelled_is_written_with_the_defaults_of_torch():
    written = AllocatorSettings().as_snapshot()
    off = {
        *("expandable_segments", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register"),
        "graph_capture_record_stream_reuse",
    }
    assert {key for key, value in written.items() if value is False} == off
    assert written["pinned_num_register_threads"] == 1


@pytest.mark.parametrize(("n_bytes", "rounded"), [(700_000, 786_432), (5 * MIB - 1, 5 * MIB)])
def test_the_divisions_of_the_first_interval_are_those_of_all_that_is_smaller(n_bytes, rounded):
    """Quarters between 512 KiB and 1 MiB are 128 KiB apart; from 2 MiB on there are none."""
    found = AllocatorSettings.from_conf("roundup_power2_divisions:[1:4,>:1]")
    assert found.round_size(n_bytes) == rounded


def test_the_space_that_is_not_split_off_follows_the_size_of_large_segments_unless_it_is_set():
    large = AllocatorSettings.from_conf("large_segment_size_mb:40")
    assert large.max_non_split_rounding_bytes == 40 * MIB
    assert large.changed("max_split_size_mb:64").max_non_split_rounding_bytes == 40 * MIB
    own = AllocatorSettings.from_conf("large_segment_size_mb:40,max_non_split_rounding_mb:50")
    assert own.max_non_split_rounding_bytes == 50 * MIB
    assert (
        AllocatorSettings().changed("max_split_size_mb:64").max_non_split_rounding_bytes == 20 * MIB
    )


def test_a_change_keeps_the_own_text_and_the_last_of_two_values_counts():
    own = AllocatorSettings.from_conf("max_split_size_mb:64, pinned_use_background_threads:True")
    assert own.conf_with("max_split_size_mb:128,expandable_segments:True") == (
        "pinned_use_background_threads:True,max_split_size_mb:128,expandable_segments:True"
    )
    assert AllocatorSettings().conf_with("expandable_segments:True") == "expandable_segments:True"


def test_a_changed_list_of_divisions_keeps_the_own_ones_that_it_does_not_name():
    own = AllocatorSettings.from_conf("roundup_power2_divisions:4")
    conf = own.conf_with("roundup_power2_divisions:[1:8]")
    divisions = AllocatorSettings.from_conf(conf).roundup_power2_divisions
    assert divisions == (8, *[4] * 15) == own.changed(conf).roundup_power2_divisions
    assert own.conf_with("roundup_power2_divisions:2") == "roundup_power2_divisions:2"


@pytest.mark.parametrize(
    "conf", ["max_split_size_mb:\u0666\u0664", "expandable_segments:True\x1c", "\xa0"]
)
def test_only_what_is_a_digit_or_a_space_to_c_is_one(conf):
    with pytest.raises(SettingError):
        require_taken(conf, "2.15.0")


def test_a_number_of_more_digits_than_python_converts_is_refused():
    with pytest.raises(SettingError, match="must be an integer"):
        AllocatorSettings.from_conf("max_split_size_mb:" + "9" * 5000)


def test_zeros_before_a_number_are_as_many_as_somebody_likes():
    settings = AllocatorSettings.from_conf(f"max_split_size_mb:{'0' * 9000}64")
    assert settings.max_split_size_bytes == 64 * MIB


def test_options_for_other_things_are_skipped():
    settings = AllocatorSettings.from_conf(
        "backend:native, max_split_size_mb:128 ,expandable_segments:True"
    )
    assert settings.max_split_size_bytes == 128 * MIB
    assert settings.expandable_segments


@pytest.mark.parametrize(
    "conf",
    [
        "max_split_size_mb:19",
        "max_split_size_mb:x",
        "max_split_size_mb:",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:5",
        "roundup_power2_divisions:-4",
        "large_segment_size_mb:10",
        "roundup_power2_divisions:[256:-1]",
        "expandable_segments",
        "expandable_segments:",
    ],
)
def test_a_setting_that_torch_refuses_is_refused(conf):
    with pytest.raises(SettingError, match="allocator settings"):
        AllocatorSettings.from_conf(conf)


@pytest.mark.parametrize(("text", "divisions"), [("1", 1), ("8", 8)])
def test_one_number_of_divisions_is_that_of_all_sizes(text, divisions):
    written = AllocatorSettings.from_conf(f"roundup_power2_divisions:{text}").as_snapshot()
    assert set(written["roundup_power2_divisions"].values()) == {divisions}
    assert len(written["roundup_power2_divisions"]) == 16


def test_sizes_beyond_the_last_interval_have_its_divisions():
    settings = AllocatorSettings.from_conf("roundup_power2_divisions:[256:0,32768:2]")
    gib = 1024 * MIB
    assert [settings.round_size(n * gib + 1) for n in (33, 65, 130)] == [
        48 * gib,
        96 * gib,
        192 * gib,
    ]
    assert settings.round_size(17 * gib + 1) == 17 * gib + 512


def test_what_nobody_set_is_as_in_real_snapshots_of_programs_that_set_nothing():
    found = [settings for path in FILES if (settings := settings_of(path)).get(CONF) == ""]
    if not found:
        pytest.skip("no real snapshots with settings in ../shared/snapshots")
    ours = AllocatorSettings().as_snapshot()
    shared = {key for settings in found for key in settings if key in ours}
    assert {"pinned_num_register_threads", "release_lock_on_cudamalloc", "max_split_size"} <= shared
    for settings in found:
        assert {key: ours[key] for key in settings if key in ours} == {
            key: settings[key] for key in settings if key in ours
        }


@pytest.mark.parametrize("text", ["1.5", "-0.1", "half", "nan", "1e999", "0x1p9999"])
@pytest.mark.parametrize(
    ("name", "range_"),
    [
        ("per_process_memory_fraction", "from 0 to 1"),
        ("garbage_collection_threshold", "above 0 and below 1"),
    ],
)
def test_a_part_outside_of_0_to_1_is_refused(name, range_, text):
    with pytest.raises(SettingError, match=f"{name} must be {range_}"):
        AllocatorSettings.from_conf(f"{name}:{text}")


def test_a_threshold_of_1_is_refused_and_a_fraction_of_1_is_not():
    with pytest.raises(SettingError, match="below 1"):
        AllocatorSettings.from_conf("garbage_collection_threshold:1")
    assert AllocatorSettings.from_conf("per_process_memory_fraction:1").memory_fraction == 1


def test_an_exponent_beyond_those_of_decimal_numbers_is_refused_as_too_small():
    with pytest.raises(SettingError, match="must be a larger number"):
        AllocatorSettings.from_conf("garbage_collection_threshold:1e-99999999999999999999")
