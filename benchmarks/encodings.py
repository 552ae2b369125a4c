r"""Prints the bits of a weight of each encoding of GGUF files, in the file and in a bundle.

    python benchmarks/encodings.py

Nothing is measured: both follow from the sizes of blocks and units.
"""

from __future__ import annotations

import argparse

from common import print_result, print_table

from edgespec.export.formats.gguf_tiles import tile_format
from edgespec.models.formats.gguf.encodings import ENCODINGS


def main() -> None:
    """Prints the table, and one line of JSON."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    found = dict[str, tuple[float, float]]()
    for each in ENCODINGS.values():
        kind = tile_format(each.name.lower())
        if kind is not None and each.block > 1:
            found[each.name] = 8 * each.nbytes / each.block, kind.weight_bits
    rows = [
        (name, f"{file:.2f}", f"{tiles:.2f}", f"{tiles - file:+.2f}")
        for name, (file, tiles) in sorted(found.items(), key=lambda each: each[1])
    ]
    print_table(("encoding", "bits in files", "in tiles", "more"), rows)
    print_result("encodings", {"bits": found})


if __name__ == "__main__":
    main()
