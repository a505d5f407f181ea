#!/usr/bin/env python3
"""Shows that the tests on the simulated device see a mistake in each place where Trireme orders streams, keeps memory or waits.

Each mutation leaves one statement out. All are built in at once, behind an environment variable, and the sources are put back at the end.

  tests/sim_device/mutations.py              # some minutes on 2 cores
  tests/sim_device/mutations.py send_ready   # some of them
  tests/sim_device/mutations.py --check      # only whether each has its place in the sources, as ./test does
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"
GUARD = "TRIREME_MUTATION"
STAGED = ("sim_device_staged_test", "SimDeviceStreamsTest.*:*shm2Ranks")
ENGINE = ("sim_device_engine_test", "All/SimDeviceEngineTest.IsEqualToTheCpu/zero3:SimDeviceTwoEngines.BatchesAndScalars*")
OFFLOAD = ("sim_device_offload_test", "All/SimDeviceOffloadTest.*/zero0_fp32:*/zero2_bf16:*/parameters_fp32:*/parameters_in_files_fp32:SimDeviceMoves.*:SimDeviceShards.*:All/SimDeviceDelayedTest.*/zero0")
PLACEMENTS = (OFFLOAD[0], "All/SimDevicePlacementsTest.*/zero3_1ranks*")

COPIES = "trireme/comm/staged/copies.cpp"
POOL = "trireme/device/host_buffer.cpp"
UPLOAD = "trireme/device/upload.cpp"
SCALARS = "trireme/device/host_scalars.cpp"
GRADIENTS = "trireme/shards/bucket/host_gradients.cpp"
SHARDS = "trireme/shards/bucket/parameter_shards.cpp"
RETURNS = "trireme/optim/parameters_to_device.cpp"
GATHER = "trireme/shards/zero/gather_bucket.cpp"
FILES = "trireme/memory/offload/disk_store.cpp"

# Name, file, text before the statement (to find it), the statement, tests that have to fail.
LEFT_OUT = [
    ("collective_starts_after_the_stream", COPIES, "  if (launched_ == 0) {\n    ", "ready_.block(stream);", STAGED),
    ("collective_records_its_input", COPIES, "", "device::record_stream(steps_.in.flat, shared_->to_host.on(device_));", STAGED),
    ("collective_records_its_output", COPIES, "", "device::record_stream(steps_.out.flat, shared_->to_device.on(device_));", STAGED),
    ("collective_waits_for_the_copy_to_the_host", COPIES, "Piece& piece = under_way_[static_cast<size_t>(begun_ - done_)];\n  ", "shared_->await(*piece.arrived);", STAGED),
    ("collective_memory_is_lent_after_the_copy_back", COPIES, "", "(steps_.apart ? piece.out : piece.in)->used_until(copied);", STAGED),
    ("collective_marks_its_end", COPIES, "", "course_->end(shared_->to_device.on(device_));", STAGED),
    ("collective_orders_the_stream", COPIES, "void Collective::order_current_stream() const {\n  ", "course_->event().block(device::current_stream(device_));", STAGED),
    ("receive_records_its_tensor", COPIES, "", "device::record_stream(flat_, shared_->to_device.on(device_));", STAGED),
    ("receive_copies_after_the_stream", COPIES, "  const device::OnStream current(stream);\n  ", "ready_.block(stream);\n  for", STAGED),
    ("receive_memory_is_lent_after_the_copy", COPIES, "", "piece.loan->used_until(copied);", STAGED),
    ("receive_orders_the_stream", COPIES, "    copy_arrived();\n  }\n  ", "course_->event().block(device::current_stream(device_));", STAGED),
    ("send_records_its_tensor", COPIES, "", "device::record_stream(flat_, stream);", STAGED),
    ("send_waits_for_the_copy", COPIES, "for (Piece& piece : pieces_) {\n    ", "shared_->await(*piece.arrived);", STAGED),
    ("send_orders_the_stream", COPIES, "", "copied_->block(device::current_stream(device_));", STAGED),
    ("upload_is_marked", UPLOAD, "", "copied.record(own);", ENGINE),
    ("upload_orders_the_stream", UPLOAD, "", "copied.block(current);", ENGINE),
    ("upload_records_its_tensor", UPLOAD, "", "record_stream(there, current);", ENGINE),
    ("scalars_are_waited_for", SCALARS, "", "copied_->synchronize();", ENGINE),
    ("gradients_are_recorded", GRADIENTS, "", "device::record_stream(values, own);", OFFLOAD),
    ("gradients_are_waited_for", GRADIENTS, "!arrived->done()) {\n    ", "arrived->synchronize();", OFFLOAD),
    ("gradients_mark_their_arrival", GRADIENTS, "", "arrived->record(own);", OFFLOAD),
    ("gradients_are_read_before_the_next", GRADIENTS, "", "last_.block(device::current_stream(options_.device));", OFFLOAD),
    ("parameters_order_the_stream", RETURNS, "", "sent->block(current);", OFFLOAD),
    ("returned_memory_is_waited_for", RETURNS, "", "piece.wait_until_idle();", OFFLOAD),
    ("shards_are_read_before_they_change", SHARDS, "", "use->second.done->synchronize();", OFFLOAD),
    ("shards_in_files_are_read_before_their_memory_is_another", FILES, "finish(slot);\n  ", "slot.memory.wait_until_idle();", OFFLOAD),
    ("shards_are_stepped_when_they_have_come", SHARDS, "", "came.block(current);", OFFLOAD),
    ("shards_are_gathered_when_they_have_returned", SHARDS, "", "use->second.done->block(current);", OFFLOAD),
    ("shards_return_before_their_memory_is_another", SHARDS, "", "one.done->block(coming_stream());", OFFLOAD),
    ("shards_return_before_they_are_written", FILES, "slot->is_modified, false)) {\n    ", "slot->memory.wait_until_idle();", OFFLOAD),
    ("shards_order_the_stream", GATHER, "", "copied->block(device::current_stream(device));", OFFLOAD),
]
# Name, file, text before the expression (to find it), the expression, what takes its place, tests that have to fail.
REPLACED = [
    ("send_copies_after_the_stream", COPIES, "OnStream current(stream, ", "device::current_stream(device)", "stream", STAGED),
    ("gradients_leave_after_the_stream", GRADIENTS, "OnStream on(own, ", "device::current_stream(options_.device)", "own", OFFLOAD),
    ("parameters_return_after_the_stream", RETURNS, "OnStream on(own, ", "current", "own", OFFLOAD),
    ("shards_return_when_they_are_stepped", SHARDS, "OnStream on(returning, ", "current", "returning", OFFLOAD),
    ("shards_come_after_the_stream", GATHER, "OnStream on(own, ", "device::current_stream(device)", "own", OFFLOAD),
    ("pool_asks_whether_memory_is_free", POOL, "", "spare.second->is_idle()", "true", STAGED),
    ("batches_are_uploaded", UPLOAD, "", "device_.is_cpu() || !tensor.defined() || !tensor.is_cpu()", "true", ENGINE),
    ("gradients_arrive_before_they_are_written", GRADIENTS, "", "options_.store->keep_until(set.in_store, b, arrived)", "true", PLACEMENTS),
    ("upload_pins", UPLOAD, "", "tensor.contiguous().pin_memory()", "tensor.contiguous()", ENGINE),
]


def anywhere(code):
    """A pattern of this code, wherever its lines are broken."""
    return "".join(re.escape(token) + r"\s*" for token in re.findall(r"\w+|\S", code))


def mutated(texts):
    def is_on(name):
        return f'(::getenv("{GUARD}") != nullptr && std::string(::getenv("{GUARD}")) == "{name}")'

    def replace(file, before, old, new, name):
        pattern = f"({anywhere(before)})({anywhere(old)})" if before else f"()({anywhere(old)})"
        found = list(re.finditer(pattern, texts[file]))
        if len(found) != 1:
            sys.exit(f"{name}: {file} has this {len(found)} times: {before + old!r}. Change the list in {__file__}.")
        texts[file] = texts[file][:found[0].start(2)] + new(found[0][2]) + texts[file][found[0].end(2):]

    for name, file, before, statement, _ in LEFT_OUT:
        replace(file, before, statement, lambda found, name=name: f"if (!{is_on(name)}) {found}", name)
    for name, file, before, old, new, _ in REPLACED:
        replace(file, before, old, lambda found, name=name, new=new: f"({is_on(name)} ? ({new}) : ({found}))", name)
    return {file: "#include <cstdlib>\n#include <string>\n" + text for file, text in texts.items()}


def passes(program, tests, name):
    environment = dict(os.environ, **{GUARD: name})
    try:
        return subprocess.run([BUILD / "tests/sim_device" / program, f"--gtest_filter={tests}"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=300, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main():
    wanted = sys.argv[1:]
    files = sorted({one[1] for one in LEFT_OUT + REPLACED})
    before = {file: (ROOT / file).read_text() for file in files}
    if wanted == ["--check"]:
        mutated(dict(before))
        return
    missed = []
    try:
        for file, text in mutated(dict(before)).items():
            (ROOT / file).write_text(text)
        subprocess.run(["ninja", "-C", BUILD, STAGED[0], ENGINE[0], OFFLOAD[0]], check=True)
        for program, tests in (STAGED, ENGINE, OFFLOAD, PLACEMENTS):
            if not passes(program, tests, "none"):
                sys.exit(f"{program} {tests} fails without a mutation")
        for name, *_, (program, tests) in LEFT_OUT + REPLACED:
            if not wanted or name in wanted:
                seen = not passes(program, tests, name)
                print("seen  " if seen else "MISSED", name, flush=True)
                missed += [] if seen else [name]
    finally:
        for file, text in before.items():
            (ROOT / file).write_text(text)
    sys.exit(f"missed: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
