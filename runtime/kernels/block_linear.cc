// BlockLinear: y = cap((x W^T + bias) * factor) + residual, of one or several matrices side by side.
//
// Inputs: x [S, K] float32; bias [N] float32, optional; residual [S, N] float32, optional; one or
// more matrices as tiles, uint8. Output [S, N]. Attributes: `formats`, names of formats separated
// by spaces; `columns`, the rows of each matrix, of which N is the sum; `factor`; `soft_cap`
// (0: none).
#include "matrices.h"

namespace edgespec {
namespace {

class BlockLinear : public Operator {
 public:
  explicit BlockLinear(const Attributes& attributes)
      : matrices_(matrices_of(attributes)),
        factor_(attributes.real("factor", 1.0f)),
        soft_cap_(attributes.real("soft_cap", 0.0f)) {
    for (const Matrix& each : matrices_) total_ += each.columns;
  }

  void compute(const Call& call) override {
    const Tensor x = call.input(0), bias = call.input(1), residual = call.input(2);
    if (x.type != F32 || x.rank < 1) refuse("x must be float32 with a dimension");
    const int64_t width = x.dims[x.rank - 1], rows = rows_of(x);
    if (width < 1 || width > MostWidth) refuse("x has rows of %lld", (long long)width);
    if (bias) bias.check("bias", F32, {total_});
    if (residual) residual.check("residual", F32, {rows, total_});
    check_matrices(call, 3, matrices_, width);
    float* out = call.output(0, {rows, total_});
    if (!rows) return;

    Product product;
    product.x = x.as<float>();
    product.width = width;
    product.rows = rows;
    product.targets = nullptr;
    product.stride = total_;
    product.factor = factor_;
    product.soft_cap = soft_cap_;
    Space space(Scratch::Shared, bytes_of_rounded(rows, width));
    product.rounded = take_rounded(space, rows, width);
    if (has_integers(matrices_))
      call.each(rows, [&](int64_t r) {
        kernels().round_row(product.x + r * width, width, product.rounded, r);
      });

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
      Piece& piece = pieces[i];
      piece.product = product;
      piece.product.format = format;
      piece.product.tiles = tiles.as<uint8_t>();
      piece.product.units = units_of(format, width);
      piece.product.columns = columns;
      piece.product.out = out + column;
      piece.product.bias = bias ? bias.as<float>() + column : nullptr;
      piece.product.residual = residual ? residual.as<float>() + column : nullptr;
      piece.tiles = matrices_[i].tiles();
      piece.parts = matrices_[i].parts(width);
      piece.before = parts;
      parts += piece.parts;
      column += columns;
    }
    call.parallel(parts, [&](int64_t part) {
      size_t i = matrices_.size() - 1;
      while (pieces[i].before > part) --i;
      const Piece& piece = pieces[i];
      const int64_t own = part - piece.before;
      kernels().product(piece.product, piece.tiles * own / piece.parts,
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
