"""A plug-in of ONNX Runtime: its library, and its version, which we ask for."""

from PyInstaller.utils.hooks import collect_dynamic_libs, copy_metadata

datas = copy_metadata("onnxruntime-ep-webgpu")
binaries = collect_dynamic_libs("onnxruntime_ep_webgpu")
