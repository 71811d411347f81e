"""Every table of kernels against plain C, by a C program of the engine's: here, and for ARM under an emulator."""

import shutil
import subprocess
from pathlib import Path

import pytest

from engines import HERE

ROOT = Path(__file__).parent.parent
ARM_COMPILER, EMULATOR, ARM_ROOT = "aarch64-linux-gnu-gcc", "qemu-aarch64", Path("/usr/aarch64-linux-gnu")
ARM = [
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
    f"-DCMAKE_C_COMPILER={ARM_COMPILER}",
]
needs_cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")
needs_arm = pytest.mark.skipif(
    not (shutil.which(ARM_COMPILER) and shutil.which(EMULATOR) and (ARM_ROOT / "include/stdio.h").exists()),
    reason=f"{ARM_COMPILER}, its C library or {EMULATOR} is not installed",
)


def build(source, folder, *options):
    configure = ["cmake", "-S", source, "-B", folder, "-DONEBIT_BINDING=OFF", *options]
    make = ["cmake", "--build", folder, "--parallel", "2", "--target", "agreement", "guard_pages", "teams"]
    for command in (configure, make):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def said_by(*command):
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


@needs_cmake
@pytest.mark.skipif(HERE == ["scalar"], reason="this machine can run plain C only")
def test_tables_of_this_machine_and_one_that_is_wrong(tmp_path):
    shutil.copytree(ROOT / "native", tmp_path / "native")
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    build(tmp_path, tmp_path / "build")
    code, lines = said_by(tmp_path / "build/agreement", "1", "700")
    others = [isa for isa in HERE if isa != "scalar"]
    assert lines[0] == "seed 1"
    assert sorted(lines[1:-1]) == sorted(others)
    assert (code, lines[-1]) == (0, f"{len(others) * 776} passed, 0 failed")
    code, lines = said_by(tmp_path / "build/teams", "3000")
    assert (code, lines) == (0, ["4530 passed, 0 failed"])
    code, lines = said_by(tmp_path / "build/guard_pages", "1", "200")
    assert (code, lines[-1]) == (0, "200 passed, 0 failed")

    broken = tmp_path / "native/src/kernels_scalar.c"
    loop = "for (int32_t dx = 0; dx < window->kernel[1]; dx++) {"
    assert broken.read_text().count(loop) == 1
    broken.write_text(
        broken.read_text().replace(loop, loop + " if (dx == 2 && dy == 1) { kernel += words; continue; }")
    )
    build(tmp_path, tmp_path / "build")
    code, lines = said_by(tmp_path / "build/agreement", "1", "0")
    assert code == 1
    assert lines[-1].split(" passed, ")[0] != str(len(others) * 76)
    assert any("3 x 3 of 64 channels, width 8" in line for line in lines)


@needs_cmake
@needs_arm
def test_neon_under_an_emulator(tmp_path):
    build(ROOT, tmp_path, *ARM)
    emulator = (EMULATOR, "-L", ARM_ROOT)
    assert said_by(*emulator, tmp_path / "agreement", "1", "350") == (0, ["seed 1", "neon", "426 passed, 0 failed"])
    code, lines = said_by(*emulator, tmp_path / "teams", "100")
    assert (code, lines) == (0, ["151 passed, 0 failed"])
    code, lines = said_by(*emulator, tmp_path / "guard_pages", "1", "200")
    assert (code, lines[-1]) == (0, "200 passed, 0 failed")
