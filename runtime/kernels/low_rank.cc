// LowRank: y + the sum over a row's adapters of scale B(A x), for some of the columns of y.
//
// Inputs: y [S, N] float32; x [S, K] float32; adapters [S, T] int32, the number of each adapter of a
// row, or -1; scales [S, T] float32; then for each range of columns of y that adapters add to two
// matrices, A and B, uint8: the tiles of all adapters one behind the other. Output [S, N].
// Attributes: `adapters`, how many there are; `formats` and `columns` of the matrices like
// BlockLinear's, of A the rank, of B those of the range; `starts`, the first column of each range.
//
// Rows of a sequence lie together and have the same adapters. So a call has a few runs of rows, each
// of which is a product with A and one with B.
#include <cstring>

#include "matrices.h"

namespace edgespec {
namespace {

class LowRank : public Operator {
 public:
  explicit LowRank(const Attributes& attributes)
      : matrices_(matrices_of(attributes)),
        starts_(attributes.integers("starts")),
        adapters_(attributes.integer("adapters", 0)) {
    if (adapters_ < 1 || adapters_ > MostAdapters)
      refuse("adapters is %lld", (long long)adapters_);
    if (matrices_.size() != 2 * starts_.size())
      refuse("there are %d matrices for %d ranges", int(matrices_.size()), int(starts_.size()));
    for (size_t i = 0; i < starts_.size(); ++i) ranks_ += rank(i);
  }

  void compute(const Call& call) override {
    const Tensor y = call.input(0), x = call.input(1);
    const Tensor adapters = call.input(2), scales = call.input(3);
    y.check("y", F32, {-1, -1});
    const int64_t rows = y.dims[0], total = y.dims[1];
    x.check("x", F32, {rows, -1});
    adapters.check("adapters", I32, {rows, -1});
    scales.check("scales", F32, {rows, adapters.dims[1]});
    const int64_t width = x.dims[1], top = adapters.dims[1];
    if (width < 1 || width > MostWidth) refuse("x has rows of %lld", (long long)width);
    check(call, width, total);
    float* out = call.output(0, {rows, total});
    if (!rows) return;
    std::memcpy(out, y.as<float>(), sizeof(float) * size_t(rows * total));
    Space space(Scratch::Shared, Space::bytes_of<float>(rows * ranks_));
    float* inner = space.take<float>(rows * ranks_);
    for (int64_t t = 0; t < top; ++t)
      for (int64_t begin = 0, end; begin < rows; begin = end) {
        const auto of = [&](int64_t row) { return adapters.as<int32_t>()[row * top + t]; };
        const auto scale = [&](int64_t row) { return scales.as<float>()[row * top + t]; };
        for (end = begin + 1; end < rows && of(end) == of(begin) && scale(end) == scale(begin);) ++end;
        if (of(begin) < -1 || of(begin) >= adapters_)
          refuse("adapter %d is not one of %lld", of(begin), (long long)adapters_);
        if (of(begin) < 0) continue;
        Product product{};
        product.rows = end - begin;
        product.factor = 1.0f;
        product.x = x.as<float>() + begin * width;
        product.width = width;
        multiply(call, product, of(begin), inner, out + begin * total, total, scale(begin));
      }
  }

 private:
  static constexpr int64_t MostAdapters = 1 << 10;

  int64_t rank(size_t range) const { return matrices_[2 * range].columns; }

  // Checks inputs before anything is allocated by what attributes say.
  void check(const Call& call, int64_t width, int64_t total) const {
    const int given = call.inputs() - 4, count = int(matrices_.size());
    if (given != count) refuse("%d matrices are given instead of %d", given, count);
    for (int i = 0; i < count; ++i) {
      const auto [format, columns] = matrices_[i];
      if (!is_float(format)) refuse("adapters have matrices of floats alone");
      check_tiles(call.input(4 + i), format, columns, i % 2 ? rank(i / 2) : width, adapters_);
      if (i % 2 && (starts_[i / 2] < 0 || starts_[i / 2] > total - columns))
        refuse("columns from %lld on are not in y", (long long)starts_[i / 2]);
    }
  }

  // Adds to rows of `out` what an adapter makes of rows of x, which `by_a` names.
  void multiply(const Call& call, const Product& by_a, int64_t adapter, float* inner, float* out,
                int64_t total, float scale) const {
    const int64_t rows = by_a.rows;
    std::vector<Product> products;
    for (size_t i = 0, before = 0; i < starts_.size(); before += rank(i++)) {
      Product a = of_matrix(call, by_a, 2 * i, adapter);
      a.out = inner + before * rows;
      a.stride = rank(i);
      products.push_back(a);
    }
    run(call, products, 0);
    for (size_t i = 0; i < starts_.size(); ++i) {
      Product b = products[i];
      b.x = products[i].out;
      b.width = rank(i);
      b.factor = scale;
      b = of_matrix(call, b, 2 * i + 1, adapter);
      b.out = out + starts_[i];
      b.stride = total;
      b.residual = b.out;
      products[i] = b;
    }
    run(call, products, 1);
  }

  Product of_matrix(const Call& call, Product product, size_t number, int64_t adapter) const {
    const auto [format, columns] = matrices_[number];
    product.format = format;
    product.columns = columns;
    product.units = units_of(format, product.width);
    product.tiles = call.input(4 + int(number)).as<uint8_t>() +
                    adapter * bytes_of(format, columns, product.width);
    return product;
  }

  // Makes the products with the first or second matrix of each range, in parts that threads take.
  void run(const Call& call, const std::vector<Product>& products, size_t which) const {
    std::vector<int64_t> before{0};
    for (size_t i = 0; i < products.size(); ++i)
      before.push_back(before[i] + matrices_[2 * i + which].parts(products[i].width));
    call.parallel(before.back(), [&](int64_t part) {
      const size_t i = std::upper_bound(before.begin(), before.end(), part) - before.begin() - 1;
      const int64_t parts = before[i + 1] - before[i], own = part - before[i];
      const int64_t tiles = matrices_[2 * i + which].tiles();
      kernels().product(products[i], tiles * own / parts, tiles * (own + 1) / parts);
    });
  }

  std::vector<Matrix> matrices_;
  std::vector<int64_t> starts_;
  int64_t adapters_, ranks_ = 0;
};

}  // namespace

Definition& low_rank() {
  static Definition definition(
      "LowRank", {{F32}, {F32}, {I32}, {F32}, {U8, Variadic}},
      [](const Attributes& attributes) -> Operator* { return new LowRank(attributes); });
  return definition;
}

}  // namespace edgespec
