// A matrix of a graph: its format, and its tiles, checked against each other.
#pragma once

#include <string>

#include "kernels.h"
#include "op.h"

namespace edgespec {

inline Format format_named(const std::string& name) {
  for (int i = 0; i < Formats; ++i)
    if (name == layouts[i].name) return Format(i);
  refuse("format '%s' of weights is not known", name.c_str());
}

// Bytes of a matrix of `columns` rows of W and `width` k.
inline int64_t bytes_of(Format format, int64_t columns, int64_t width) {
  return (columns + 15) / 16 * units_of(format, width) * layout_of(format).unit_bytes;
}

// Checks the tiles of some matrices of one shape, one behind the other.
inline void check_tiles(const Tensor& tiles, Format format, int64_t columns, int64_t width,
                        int64_t count = 1) {
  const int64_t wanted = bytes_of(format, columns, width), given = tiles.size();
  if (tiles.type != U8) refuse("weights have elements of type %d instead of bytes", tiles.type);
  if (given / count != wanted || given % count)
    refuse("weights of %lld x %lld in %s have %lld bytes instead of %lld times %lld",
           (long long)columns, (long long)width, layout_of(format).name, (long long)given,
           (long long)count, (long long)wanted);
  if (layout_of(format).unit == 256 && width % 256)
    refuse("%s needs rows of a multiple of 256 instead of %lld", layout_of(format).name,
           (long long)width);
}

constexpr int64_t MostColumns = int64_t(1) << 31, MostWidth = int64_t(1) << 24;

// Rows of x: all dimensions but the last.
inline int64_t rows_of(const Tensor& x) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank; ++i) rows *= x.dims[i];
  return rows;
}

}  // namespace edgespec
