// What BlockLinear and ExpertLinear have in common: matrices side by side, and rounded rows.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "op.h"
#include "weights.h"

namespace edgespec {

// Threads take parts of a matrix in turn. They are small, so that nobody waits long for the last one
// of a slow core: `benchmarks/unequal_cores.py` says what that costs.
constexpr int64_t PartBytes = 1 << 14;  // of weights, that a part reads at least
constexpr int64_t MostParts = 256;
constexpr int MostMatrices = 8;

struct Matrix {
  Format format;
  int64_t columns;

  int64_t tiles() const { return (columns + 15) / 16; }
  // Into how many parts the work of a product is cut.
  int64_t parts(int64_t width) const {
    const int64_t found = bytes_of(format, columns, width) / PartBytes;
    return std::clamp<int64_t>(found, 1, std::min(MostParts, tiles()));
  }
};

// The matrices that the attributes `formats` and `columns` name.
inline std::vector<Matrix> matrices_of(const Attributes& attributes) {
  std::vector<Matrix> found;
  const std::string names = attributes.text("formats") + " ";
  const std::vector<int64_t> columns = attributes.integers("columns");
  for (size_t start = 0, end; (end = names.find(' ', start)) != std::string::npos; start = end + 1) {
    if (found.size() == columns.size() || found.size() == MostMatrices)
      refuse("there are too many formats");
    const int64_t count = columns[found.size()];
    if (count < 1 || count > MostColumns) refuse("columns is %lld", (long long)count);
    found.push_back({format_named(names.substr(start, end - start)), count});
  }
  if (found.empty() || found.size() != columns.size())
    refuse("there are %d formats and %d columns", int(found.size()), int(columns.size()));
  return found;
}

// Checks inputs from `first` on, before anything is allocated by what attributes say.
inline void check_matrices(const Call& call, int first, const std::vector<Matrix>& matrices,
                           int64_t width, int64_t experts = 1) {
  const int given = call.inputs() - first, count = int(matrices.size());
  if (given != count) refuse("%d matrices are given instead of %d", given, count);
  for (int i = 0; i < count; ++i)
    check_tiles(call.input(first + i), matrices[i].format, matrices[i].columns, width, experts);
}

inline size_t bytes_of_rounded(int64_t rows, int64_t width) {
  const int64_t count = (width + 31) / 32 * rows;
  return Space::bytes_of<int8_t>(count * 32) + Space::bytes_of<float>(count) +
         Space::bytes_of<int32_t>(count * Sums) + Space::bytes_of<float>(count * Sums);
}

inline bool has_integers(const std::vector<Matrix>& matrices) {
  return std::any_of(matrices.begin(), matrices.end(),
                     [](const Matrix& each) { return !is_float(each.format); });
}

inline Rounded take_rounded(Space& space, int64_t rows, int64_t width) {
  Rounded found;
  found.blocks = (width + 31) / 32;
  found.rows = rows;
  const int64_t count = found.blocks * rows;
  found.levels = space.take<int8_t>(count * 32);
  found.scales = space.take<float>(count);
  found.negated = space.take<int32_t>(count * Sums);
  found.weighted = space.take<float>(count * Sums);
  return found;
}

}  // namespace edgespec
