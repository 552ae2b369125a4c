"""Its devices, whose libraries it opens by name."""

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs

datas = collect_data_files("openvino", subdir="libs")
binaries = collect_dynamic_libs("openvino")
