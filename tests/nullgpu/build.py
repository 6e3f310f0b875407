"""Install torch's CUDA build into .cuda, and compile the null GPU's libraries for it.

    python tests/nullgpu/build.py           both
    python tests/nullgpu/build.py --wheel   torch alone

.cuda/site has torch alone (0.5 GB to download, 1.1 GB on disk). None of NVIDIA's libraries is needed: which functions
they must have is read from torch's own binaries, and the headers come with Triton. .cuda/lib gets one library for each
that torch is linked with. A function that torch may call and that nobody has written here leaves a violation in the
trace when it is called, so nothing passes because a stub kept silent.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import triton

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADERS = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
OURS = re.compile(r"lib(c10|torch|shm)|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp)\.so|ld-linux")
# library -> its source, and what to define for it
SOURCES = {
    "libcudart.so.13": ("runtime.cpp", ""),
    "libcuda.so.1": ("driver.cpp", ""),
    "libcublas.so.13": ("libraries.cpp", "CUBLAS"),
    "libcublasLt.so.13": ("libraries.cpp", "CUBLASLT"),
    "libcusolver.so.12": ("libraries.cpp", "CUSOLVER"),
    "libnvrtc.so.13": ("libraries.cpp", "NVRTC"),
    "libcudnn.so.9": ("cudnn.cpp", ""),
    "libnvidia-ml.so.1": ("nvml.cpp", ""),
}
# symbols without a version: by how they begin
PREFIXES = {"cuFile": "libcufile.so.0", "cusparseLt": "libcusparseLt.so.0", "nccl": "libnccl.so.2"}
PREFIXES |= {"nvshmem": "libnvshmem_host.so.3", "cu": "libcuda.so.1"}


def output(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def install_torch(site: Path) -> None:
    """The CUDA build alone: three equals signs refuse every local version, such as +cpu."""
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    if (site / f"torch-{pinned[1]}.dist-info" / "RECORD").exists():
        return
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-compile",
    ]
    subprocess.run([*pip, "--target", str(site), f"torch==={pinned[1]}"], check=True)


def undefined(site: Path) -> tuple[set[str], dict[str, set[str]]]:
    """The libraries that torch needs of NVIDIA's, and the functions of each that it calls."""
    needed: set[str] = set()
    called: dict[str, set[str]] = {}
    for library in sorted((site / "torch" / "lib").glob("*.so")):
        needed |= set(re.findall(r"NEEDED\s+(\S+)", output("objdump", "-p", library)))
        for symbol in re.findall(r" [UwW] (\S+)", output("nm", "-D", "--undefined-only", library)):
            name, _, version = symbol.partition("@")
            home = version.lstrip("@")
            if home not in needed:
                home = next((lib for start, lib in PREFIXES.items() if re.match(rf"{start}[A-Z_mix]", name)), "")
            if home:
                called.setdefault(home, set()).add(name)
    return {name for name in needed if not OURS.match(name)} | {"libnvidia-ml.so.1"}, called


def rest(library: str, names: list[str]) -> str:
    """Functions that nobody has written: cuBLAS and cuSOLVER compute on a handle's stream; others are violations."""
    lines = ['#include "nullgpu.h"', 'extern "C" {', "int nullgpu_handle_launch(void*, const char*);"]
    for name in names:
        computes = re.match(r"cublas[SDCZI]|cublas(Dot|Nrm2|Scal|Axpy)Ex|cusolverDn[SDCZX](?!\w*_bufferSize)", name)
        if computes and library != "libcublasLt.so.13":
            lines.append(f'int {name}(void* handle, ...) {{ return nullgpu_handle_launch(handle, "{name}"); }}')
        else:
            lines.append(f'int {name}() {{ nullgpu_violation("not written: {name}"); return 1; }}')
    return "\n".join([*lines, "}"])


def build(library: str, names: set[str], folder: Path) -> None:
    """One shared library; its functions carry its name as their version, as NVIDIA's do."""
    work = folder / "build"
    work.mkdir(parents=True, exist_ok=True)
    compiler = ["g++", "-O1", "-fPIC", "-std=c++17", "-w", f"-I{HEADERS}", f"-I{HERE}"]
    objects = []
    if library in SOURCES:
        source, define = SOURCES[library]
        objects.append(work / f"{library}.o")
        defines = [f"-D{define}"] if define else []
        subprocess.run([*compiler, *defines, "-c", HERE / source, "-o", objects[0]], check=True)
        names = names - set(re.findall(r" T (\S+)", output("nm", objects[0])))
    text = work / f"{library}.rest.cpp"
    text.write_text(rest(library, sorted(names)))
    objects.append(work / f"{library}.rest.o")
    subprocess.run([*compiler, "-c", text, "-o", objects[-1]], check=True)
    script = work / f"{library}.map"
    script.write_text(f"{'NVSHMEM' if 'nvshmem' in library else library} {{ global: *; }};\n")
    versioned = [] if library in ("libcuda.so.1", "libnvidia-ml.so.1") else [f"-Wl,--version-script={script}"]
    runtime = [] if library == "libcudart.so.13" else [f"-L{folder}", "-l:libcudart.so.13"]
    new = work / library
    link = ["g++", "-shared", f"-Wl,-soname,{library}", *versioned, "-o", new, *objects, *runtime, "-ldl"]
    subprocess.run(link, check=True)
    new.replace(folder / library)  # a process that has the old one open keeps it


def main() -> None:
    folder = ROOT / ".cuda"
    install_torch(folder / "site")
    if "--wheel" in sys.argv:
        return
    needed, called = undefined(folder / "site")
    driver = set(re.findall(r"\bcu[A-Z]\w+(?=\()", (HEADERS / "cuda.h").read_text()))
    called.setdefault("libcuda.so.1", set()).update(driver)
    for library in sorted(needed, key=lambda name: name != "libcudart.so.13"):  # the others are linked with it
        build(library, called.get(library, set()), folder / "lib")


if __name__ == "__main__":
    main()
