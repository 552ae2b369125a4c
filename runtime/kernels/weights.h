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

inline void check_tiles(const Tensor& tiles, Format format, int64_t columns, int64_t width) {
  const int64_t wanted = bytes_of(format, columns, width);
  if (tiles.type != U8) refuse("weights have elements of type %d instead of bytes", tiles.type);
  if (tiles.size() != wanted)
    refuse("weights of %lld x %lld in %s have %lld bytes instead of %lld", (long long)columns,
           (long long)width, layout_of(format).name, (long long)tiles.size(), (long long)wanted);
}

constexpr int64_t MostColumns = int64_t(1) << 31, MostWidth = int64_t(1) << 24;

// Room for rows of activations that are rounded, in this thread's memory for a call.
inline Rounded rounded_rows(int64_t rows, int64_t width) {
  Rounded found;
  found.blocks = (width + 31) / 32;
  found.rows = rows;
  const int64_t count = found.blocks * rows;
  Space space(Scratch::Shared,
              Space::bytes_of<int8_t>(count * 32) + Space::bytes_of<float>(count) +
                  Space::bytes_of<int32_t>(count * Sums) + Space::bytes_of<float>(count * Sums));
  found.levels = space.take<int8_t>(count * 32);
  found.scales = space.take<float>(count);
  found.negated = space.take<int32_t>(count * Sums);
  found.weighted = space.take<float>(count * Sums);
  return found;
}

// Rows of x: all dimensions but the last.
inline int64_t rows_of(const Tensor& x) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank; ++i) rows *= x.dims[i];
  return rows;
}

}  // namespace edgespec
