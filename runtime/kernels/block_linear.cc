// BlockLinear: y = cap((x W^T + bias) * factor) + residual, of one or several matrices side by side.
//
// Inputs: x [S, K] float32; bias [N] float32, optional; residual [S, N] float32, optional; one or
// more matrices as tiles, uint8. Output [S, N]. Attributes: `formats`, names of formats separated
// by spaces; `columns`, the rows of each matrix, of which N is the sum; `factor`; `soft_cap`, 0: none.
#include <algorithm>
#include <memory>

#include "kernels.h"
#include "op.h"
#include "weights.h"

namespace edgespec {
namespace {

constexpr int64_t PartBytes = 1 << 16;  // of weights, that a part of the work reads at least

constexpr int MostMatrices = 8;

struct Matrix {
  Format format;
  int64_t columns;
};

std::vector<Matrix> matrices_of(const Attributes& attributes) {
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

class BlockLinear : public Operator {
 public:
  explicit BlockLinear(const Attributes& attributes)
      : matrices_(matrices_of(attributes)), factor_(attributes.real("factor", 1.0f)), soft_cap_(attributes.real("soft_cap", 0.0f)) {
    for (const Matrix& each : matrices_) total_ += each.columns;
  }

  void compute(const Call& call) override {
    const Tensor x = call.input(0), bias = call.input(1), residual = call.input(2);
    if (x.type != F32 || x.rank < 1) refuse("x must be float32 with a dimension");
    const int64_t width = x.dims[x.rank - 1], rows = rows_of(x);
    if (width < 1 || width > MostWidth) refuse("x has rows of %lld", (long long)width);
    if (bias) bias.check("bias", F32, {total_});
    if (residual) residual.check("residual", F32, {rows, total_});
    if (call.inputs() != 3 + int(matrices_.size()))
      refuse("%d matrices are given instead of %d", call.inputs() - 3, int(matrices_.size()));
    float* out = call.output(0, {rows, total_});
    if (!rows) return;

    Product product;
    product.x = x.as<float>();
    product.width = width;
    product.first_row = 0;
    product.rows = rows;
    product.targets = nullptr;
    product.stride = total_;
    product.factor = factor_;
    product.soft_cap = soft_cap_;
    const Kernels& kernel = kernels();
    if (std::any_of(matrices_.begin(), matrices_.end(),
                    [](const Matrix& each) { return !is_float(each.format); })) {
      Rounded& rounded = product.rounded;
      rounded = rounded_rows(rows, width);
      const int64_t parts = rows < 8 ? 1 : 8;
      call.parallel(parts, [&](int64_t part) {
        for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; ++r)
          kernel.round_row(product.x + r * width, width, rounded, r);
      });
    }

    // All matrices are cut into parts of about the same bytes, which threads take in turn.
    struct Piece {
      Product product;
      int64_t tiles, parts, before;
    };
    Piece pieces[MostMatrices];
    int64_t parts = 0, column = 0;
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const auto [format, columns] = matrices_[i];
      const Tensor tiles = call.input(3 + int(i));
      check_tiles(tiles, format, columns, width);
      if (layout_of(format).unit == 256 && width % 256)
        refuse("%s needs rows of a multiple of 256 instead of %lld", layout_of(format).name,
               (long long)width);
      Piece& piece = pieces[i];
      piece.product = product;
      piece.product.format = format;
      piece.product.tiles = tiles.as<uint8_t>();
      piece.product.units = units_of(format, width);
      piece.product.columns = columns;
      piece.product.out = out + column;
      piece.product.bias = bias ? bias.as<float>() + column : nullptr;
      piece.product.residual = residual ? residual.as<float>() + column : nullptr;
      piece.tiles = (columns + 15) / 16;
      piece.parts = std::clamp<int64_t>(tiles.size() / PartBytes, 1, std::min<int64_t>(64, piece.tiles));
      piece.before = parts;
      parts += piece.parts;
      column += columns;
    }
    call.parallel(parts, [&](int64_t part) {
      size_t i = matrices_.size() - 1;
      while (pieces[i].before > part) --i;
      const Piece& piece = pieces[i];
      const int64_t own = part - piece.before;
      kernel.product(piece.product, piece.tiles * own / piece.parts,
                     piece.tiles * (own + 1) / piece.parts);
    });
  }

 private:
  std::vector<Matrix> matrices_;
  int64_t total_ = 0;
  float factor_, soft_cap_;
};

}  // namespace

Definition& block_linear() {
  static Definition definition(
      "BlockLinear", {{F32}, {F32, Optional}, {F32, Optional}, {U8, Variadic}},
      [](const Attributes& attributes) -> Operator* { return new BlockLinear(attributes); });
  return definition;
}

}  // namespace edgespec
