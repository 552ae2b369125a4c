"""The table of symbols that latex2mathml reads."""

from PyInstaller.utils.hooks import collect_data_files

datas = collect_data_files("latex2mathml")
