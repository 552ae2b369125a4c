"""Which devices there are, what is said of those that are missing, and what `gpu` stands for."""

from __future__ import annotations

import ctypes
import json
import logging
import sys
from dataclasses import replace
from importlib import import_module

import pytest
from commandline import PROMPT, fails
from cuts import EMBEDDED, Gpu, with_gpu, without_gpu

from edgespec import LLM
from edgespec.bundle import TARGET
from edgespec.errors import DeviceError
from edgespec.runtime import engines
from edgespec.runtime.deployment import device_names
from edgespec.runtime.deployment.demands import MIB
from edgespec.runtime.deployment.deployment import deploy
from edgespec.runtime.deployment.devices import Device
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.engines import GPU_ENGINES, CallSizes, best_gpu, distributions, engine
from edgespec.runtime.engines.portable import cuda_driver
from edgespec.runtime.execution.sizes import stage_sizes
from edgespec.runtime.kernels import kernel_name, missing_kernels
from edgespec.runtime.shapes import capacity_bucket

CPU = "onnxruntime:cpu"
PLACE = {"device": CPU, "draft": "none", "threads": 1}


# What gpu stands for


@pytest.fixture
def usable(monkeypatch):
    """Have these engines alone be usable."""

    def only(*names):
        def fake(name):
            if name not in names:
                raise DeviceError(f"no {name}")
            return Gpu()

        monkeypatch.setattr(engines, "engine", fake)
        best_gpu.cache_clear()
        return best_gpu()

    yield only
    best_gpu.cache_clear()


def test_gpu_is_the_best_engine_that_is_usable(usable, monkeypatch):
    for count in range(len(GPU_ENGINES)):
        monkeypatch.setattr(Gpu, "name", GPU_ENGINES[count])
        assert usable(*GPU_ENGINES[count:]) == GPU_ENGINES[count]
    assert usable() is None
    assert GPU_ENGINES == ("cuda:0", "webgpu:0", "openvino:gpu")


@pytest.mark.parametrize("options", [{"device": "gpu"}, {"gpu_layers": 3}, {"place": "0-=gpu"}])
def test_without_a_gpu_the_cpu_is_used_with_one_warning(monkeypatch, caplog, options):
    without_gpu(monkeypatch)
    wanted = LLM(**PLACE).generate(PROMPT, max_new_tokens=8)
    with caplog.at_level(logging.WARNING, "edgespec"):
        llm = LLM(**{"device": "cpu", "draft": "none", "threads": 1, **options})
        result = llm.generate(PROMPT, max_new_tokens=8)
    [record] = caplog.records
    assert record.getMessage().startswith("no GPU can be used, so the CPU is used")
    assert result.engine in engines.CPU_ENGINES
    if result.engine == wanted.engine:
        assert result.tokens == wanted.tokens


def test_a_draft_on_gpu_goes_to_the_gpu(monkeypatch):
    with_gpu(monkeypatch, Gpu())
    found = deploy(EMBEDDED, LoadOptions(**{**PLACE, "draft": "model", "draft_device": "gpu"}))
    assert found.engines == {"target": (CPU,), "draft": ("fake:gpu",)}


def test_who_wants_no_gpu_has_none_looked_for(monkeypatch):
    monkeypatch.setattr(device_names, "best_gpu", None)
    assert deploy(EMBEDDED, LoadOptions(**PLACE)).fits


# What is missing


@pytest.fixture
def no_plugin(monkeypatch):
    """WebGPU as if nobody had asked for it in this process."""
    webgpu = pytest.importorskip("edgespec.runtime.engines.gpu.webgpu")
    portable = pytest.importorskip("edgespec.runtime.engines.portable.webgpu")
    uncached = portable.library.__wrapped__
    monkeypatch.setattr(webgpu, "_library", uncached)
    monkeypatch.setattr(portable, "library", uncached)
    return webgpu


def test_a_package_that_is_not_installed(no_plugin, monkeypatch, cli):
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", None)
    found = cli("run", PROMPT, "--device", "webgpu:0")
    fails(found, 'webgpu:0: onnxruntime-ep-webgpu is not installed: pip install "edgespec[webgpu]"')
    assert len(found.err.splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system brings it along")
def test_a_vulkan_loader_that_is_missing(no_plugin, monkeypatch):
    pytest.importorskip("onnxruntime_ep_webgpu")
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(
        DeviceError, match=r"the Vulkan library is missing .*it is gone.*: install its driver"
    ):
        engine("webgpu:0")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere drivers are found in other ways")
def test_a_driver_that_is_missing(start):
    """Nothing but this one line, whatever libraries would like to say."""
    pytest.importorskip("onnxruntime_ep_webgpu")
    process = start("run", PROMPT, "--device", "webgpu:0", VK_DRIVER_FILES="/nowhere.json")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    [line] = err.decode().splitlines()
    assert line.startswith("edgespec: device webgpu:0: no")
    assert "install its driver" in line


def test_a_gpu_that_the_plugin_cannot_choose():
    with pytest.raises(DeviceError, match=r"device webgpu:1: .* use webgpu:0"):
        engine("webgpu:1")


def missing(name, *_):
    raise OSError(f"{name}: it is gone")


def test_a_driver_of_nvidia_that_is_missing(monkeypatch, cli):
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", missing)
    found = cli("run", PROMPT, "--device", "cuda:0")
    fails(found, "device cuda:0: no NVIDIA driver", "it is gone", "install NVIDIA's driver")


def test_libraries_of_nvidia_that_are_missing(monkeypatch):
    cuda = pytest.importorskip("edgespec.runtime.engines.portable.cuda")
    monkeypatch.setattr(cuda.ort, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(cuda.ort, "preload_dlls", lambda: print("not to be seen"))
    monkeypatch.setattr(cuda.ctypes, "CDLL", missing)
    with pytest.raises(DeviceError, match=r'it is gone\): pip install "edgespec\[cuda\]"$'):
        cuda.require_libraries()
    monkeypatch.setattr(cuda.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match=r"this build of ONNX Runtime .* has no CUDA"):
        cuda.require_libraries()


class FakeDriver:
    """NVIDIA's driver with two GPUs, as far as it is called."""

    def __init__(self):
        self.contexts = 0

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device, number):  # noqa: N802
        device._obj.value = 10 + number
        return 0

    def cuDeviceGetName(self, name, size, device):  # noqa: N802
        name.value = f"GPU {device.value}".encode()[:size]
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):  # noqa: N802
        self.contexts += 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device):  # noqa: N802
        self.contexts -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context):  # noqa: N802
        return 0

    cuCtxPopCurrent_v2 = cuCtxPushCurrent_v2  # noqa: N815

    def cuMemGetInfo_v2(self, free, total):  # noqa: N802
        assert self.contexts == 1
        free._obj.value, total._obj.value = 3 << 30, 8 << 30
        return 0


def test_what_the_driver_tells_of_a_gpu(monkeypatch):
    driver = FakeDriver()
    found = cuda_driver.describe(driver, 1)
    assert found == cuda_driver.CudaGpu("GPU 11", 8 << 30, 3 << 30)
    assert driver.contexts == 0
    with pytest.raises(DeviceError, match="device cuda:2: this machine has 2"):
        cuda_driver.describe(driver, 2)
    monkeypatch.setattr(driver, "cuMemGetInfo_v2", lambda free, total: 999)
    with pytest.raises(DeviceError, match="error 999"):
        cuda_driver.describe(driver, 0)
    assert driver.contexts == 0


# Memory


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac's GPU has no memory of its own")
@pytest.mark.parametrize(
    ("kind", "vendor", "metadata", "size"),
    [
        ("CPU", 0x10DE, {"Discrete": "1"}, None),
        ("GPU", 0x8086, {}, None),
        ("GPU", 0x8086, {"Discrete": "0", "DxgiVideoMemory": "4096 MB"}, None),
        ("GPU", 0x8086, {"Discrete": "1"}, 2 << 30),
        ("GPU", 0x10DE, {}, 2 << 30),
        ("GPU", 0x10DE, {"Discrete": "1", "DxgiVideoMemory": "8192 MB"}, 8 << 30),
        ("GPU", 0x1002, {"card_idx": "1"}, 6 << 30),
        ("GPU", 0x1002, {"card_idx": "2"}, None),
        ("GPU", 0x1002, {"card_idx": "3"}, None),
    ],
)
def test_memory_of_a_gpu_as_far_as_the_system_tells(tmp_path, kind, vendor, metadata, size):
    webgpu = pytest.importorskip("edgespec.runtime.engines.gpu.webgpu")
    for card, total in ((1, 8 << 30), (2, 512 * MIB + (2 << 30))):
        folder = tmp_path / f"card{card}" / "device"
        folder.mkdir(parents=True)
        (folder / "mem_info_vram_total").write_text(f"{total}\n")
        (folder / "mem_info_vram_used").write_text(f"{2 << 30}\n")
    assert webgpu.own_memory(kind, vendor, metadata, tmp_path) == size


@pytest.mark.parametrize(
    ("module", "kind", "widens"),
    [("onnxruntime_gpu", "OnnxRuntimeGpu", True), ("openvino_gpu", "OpenVinoGpu", False)],
)
def test_a_gpu_takes_the_weights_and_more_for_larger_calls(module, kind, widens):
    """Arithmetic that needs no device."""
    footprint = getattr(import_module(f"edgespec.runtime.engines.gpu.{module}"), kind).footprint
    [stage] = stage_sizes(EMBEDDED, TARGET)
    taken = [
        footprint(None, stage, CallSizes(rows, capacity, rows))
        for rows, capacity in ((1, 256), (8, 256), (8, 2048), (128, 2048))
    ]
    stored = stage.matmul_bytes + stage.embedding_bytes
    assert stage.widening_bytes(stored) > 0
    assert {each.weights for each in taken} == {stored + widens * stage.widening_bytes(stored)}
    sizes = [each.logits + each.workspace + each.shared for each in taken]
    assert sizes == sorted(set(sizes))
    scores = 4 * stage.heads * 128 * (2048 + 128)
    assert sizes[-1] > scores


@pytest.mark.parametrize("smaller", sorted({capacity_bucket(rows) for rows in range(1, 9000)}))
def test_a_gpu_has_room_for_a_cache_that_grows_beside_the_smaller_one(smaller):
    module = import_module("edgespec.runtime.engines.gpu.onnxruntime_gpu")
    [stage] = stage_sizes(EMBEDDED, TARGET)
    calls = CallSizes(8, capacity_bucket(smaller + 1), 8)
    with_cache, without = (
        module.OnnxRuntimeGpu.footprint(None, each, calls).workspace
        for each in (stage, replace(stage, cache_groups=()))
    )
    [group] = stage.cache_groups
    assert with_cache - without >= smaller * group.row_bytes


# The command


def test_devices_as_a_table(cli):
    found = cli("devices")
    assert (found.code, found.err) == (0, "")
    for name in engines.CPU_ENGINES:
        assert f"│ {name}" in found.out
    for name in GPU_ENGINES:
        said = [line for line in found.out.splitlines() if name in line]
        usable = any(line.startswith(f"│ {name}") for line in said)
        reasons = [line for line in said if line.startswith(f"{name} cannot be used: ")]
        assert usable != bool(reasons)
    assert f"the device gpu means {best_gpu() or 'the cpu, since no GPU can be used'}" in found.out
    kernels = missing_kernels() or f"the cpu computes with kernels for {kernel_name()}"
    assert kernels in found.out.splitlines()


HERE = [
    Device("onnxruntime:cpu", "Intel(R) Core(TM) Ultra 7 165H with a rather long name of its own, "
           "as some have", "1", "cpu", 123_456 * MIB),
    Device("cuda:0", reason='no driver (Cannot load "/usr/lib/python3/site-packages/'
           'a/library/somewhere/deep/libnothing.so": No such file or directory): install it '
           "(Debian, Ubuntu: apt-get install libnothing), or pip install --no-deps something-qnn"),
]  # fmt: skip


def test_devices_in_a_terminal_of_eighty_columns(cli, monkeypatch):
    monkeypatch.setattr("edgespec.runtime.deployment.devices.find_devices", lambda: HERE)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    lines = cli("devices", terminal=True).out.splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("the device gpu means "))
    table, reasons = lines[:end], lines[end + 1 :]
    assert all(len(line) <= 80 for line in table)
    assert sum("123,456 MiB" in line and "onnxruntime:cpu" in line for line in table) == 1
    assert reasons[0].startswith("cuda:0 cannot be used: no driver")
    assert all(line.startswith("  ") for line in reasons[1:])
    assert all(len(line) <= 80 or " " not in line.strip() for line in reasons)
    words = " ".join(line.strip() for line in reasons).split()
    assert words == f"cuda:0 cannot be used: {HERE[1].reason}".split()


TRIED = {"openvino:cpu-bf16", *engines.CPU_ENGINES, "qnn:emulated"}


def test_devices_that_never_ran_on_hardware_are_experimental(cli, monkeypatch):
    gpu = Device("cuda:0", "a GPU", "1", "gpu", 8 * MIB)
    monkeypatch.setattr("edgespec.runtime.deployment.devices.find_devices", lambda: [HERE[0], gpu])
    out = cli("devices").out
    assert "cuda:0 (experimental)" in out
    assert out.count("experimental") == 1


def test_devices_as_json(cli):
    found = json.loads(cli("devices", "--json").out)
    devices = {device["name"]: device for device in found["devices"]}
    assert devices.keys() >= {*engines.CPU_ENGINES, *GPU_ENGINES}
    for device in devices.values():
        usable = device["reason"] is None
        assert all((device[fact] is not None) == usable for fact in ("hardware", "free_bytes"))
        assert device["experimental"] == (device["name"] not in TRIED)
    assert devices[CPU]["hardware"] == engine(CPU).hardware
    assert devices[CPU]["free_bytes"] > MIB
    usable = [name for name in GPU_ENGINES if devices[name]["reason"] is None]
    assert found["gpu"] == (usable[0] if usable else None)
    assert found["kernels"] == kernel_name()


def test_all_gpus_of_a_kind_are_found(cli, monkeypatch):
    def fake(name):
        if name not in ("cuda:0", "cuda:1"):
            raise DeviceError(f"device {name}: it is missing: buy one")
        return Gpu()

    monkeypatch.setattr("edgespec.runtime.deployment.devices.engine", fake)
    found = json.loads(cli("devices", "--json").out)["devices"]
    assert [each["name"] for each in found if each["reason"] is None] == ["cuda:0", "cuda:1"]
    reasons = {each["reason"] for each in found if each["hardware"] is None}
    assert reasons == {"it is missing: buy one"}


def test_two_distributions_of_onnx_runtime_are_an_error(cli, monkeypatch):
    monkeypatch.setattr(
        distributions, "_is_installed", lambda name: name in ("onnxruntime", "onnxruntime-gpu")
    )
    message = "onnxruntime and onnxruntime-gpu are installed and overwrite each other's files: pip"
    fails(cli("devices"), message)
    fails(cli("run", PROMPT, "--device", CPU), message)


def test_one_distribution_is_installed():
    """Here too, or nothing else would be sure."""
    distributions.require_one_distribution()
