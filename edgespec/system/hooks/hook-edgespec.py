"""Modules of edgespec that are imported by name, its data, and its operators."""

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, collect_submodules

hiddenimports = collect_submodules("edgespec")
datas = collect_data_files("edgespec")
binaries = collect_dynamic_libs("edgespec")
excludedimports = ["torch", "transformers"]  # only training needs them
