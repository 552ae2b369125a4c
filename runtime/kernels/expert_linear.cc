// ExpertLinear: products of rows with the matrices of the experts that each row chose.
//
// Inputs: x [S, K] or, a row for each choice, [S * T, K] float32; experts [S, T] int32 or int64;
// bias [experts, N] float32, optional; shares [S, T] float32, optional; one or more matrices of each
// expert, uint8: the tiles of all experts one behind the other. Output [S * T, N]: row s * T + t is
// that of choice t of row s; with `shares`, [S, N]: the sum over t from 0 up, each times its share.
// Attributes: `experts`, how many there are; `formats` and `columns` like BlockLinear's.
//
// Rows are sorted by expert, so that each matrix is read once, and not at all if no row chose it.
#include <cstring>

#include "matrices.h"

namespace edgespec {
namespace {

class ExpertLinear : public Operator {
 public:
  explicit ExpertLinear(const Attributes& attributes)
      : matrices_(matrices_of(attributes)), experts_(attributes.integer("experts", 0)) {
    if (experts_ < 1 || experts_ > MostExperts) refuse("experts is %lld", (long long)experts_);
    for (const Matrix& each : matrices_) total_ += each.columns;
  }

  void compute(const Call& call) override {
    const Tensor x = call.input(0), experts = call.input(1), bias = call.input(2);
    const Tensor shares = call.input(3);
    if (experts.rank != 2) refuse("experts must be of two dimensions");
    const int64_t rows = experts.dims[0], top = experts.dims[1], pairs = rows * top;
    if (top < 1 || pairs > INT32_MAX) refuse("experts is [%lld, %lld]", (long long)rows, (long long)top);
    x.check("x", F32, {-1, -1});
    const int64_t given = x.dims[0], width = x.dims[1];
    if (given != rows && given != pairs)
      refuse("x has %lld rows for %lld rows of %lld experts", (long long)given, (long long)rows,
             (long long)top);
    if (width < 1 || width > MostWidth) refuse("x has rows of %lld", (long long)width);
    if (bias) bias.check("bias", F32, {experts_, total_});
    if (shares) shares.check("shares", F32, {rows, top});
    const int count = int(matrices_.size());
    check_matrices(call, 4, matrices_, width, experts_);
    float* out = call.output(0, {shares ? rows : pairs, total_});
    if (!rows) return;

    const bool floats = std::any_of(matrices_.begin(), matrices_.end(), [](const Matrix& each) {
      return is_float(each.format);
    });
    Space space(Scratch::Shared, bytes_of_rounded(pairs, width) + Space::bytes_of<int32_t>(pairs) +
                                     Space::bytes_of<float>(floats ? pairs * width : 0) +
                                     Space::bytes_of<int32_t>(experts_) +
                                     Space::bytes_of<int32_t>(experts_ * count + 1) +
                                     Space::bytes_of<float>(shares ? pairs * total_ : 0));
    int32_t* order = space.take<int32_t>(pairs);
    int32_t* ends = space.take<int32_t>(experts_);
    int32_t* parts_before = space.take<int32_t>(experts_ * count + 1);
    float* products = shares ? space.take<float>(pairs * total_) : out;
    sort(experts, pairs, order, ends);

    Product product{};
    product.width = width;
    product.stride = total_;
    product.factor = 1.0f;
    const Rounded all = take_rounded(space, pairs, width);
    float* sorted = space.take<float>(floats ? pairs * width : 0);
    const auto first = [&](int64_t e) { return int64_t(e ? ends[e - 1] : 0); };
    const auto rounded = [&](int64_t e) {  // rows of an expert lie together
      const int64_t before = first(e) * all.blocks, count = ends[e] - first(e);
      return Rounded{all.levels + before * 32, all.scales + before, all.negated + before * Sums,
                     all.weighted + before * Sums, all.blocks, count};
    };
    call.each(experts_, [&](int64_t e) {
      for (int64_t i = first(e); i < ends[e]; ++i) {
        const float* row = x.as<float>() + order[i] / (given == pairs ? 1 : top) * width;
        if (floats) std::memcpy(sorted + i * width, row, sizeof(float) * size_t(width));
        if (has_integers(matrices_)) kernels().round_row(row, width, rounded(e), i - first(e));
      }
    });
    const uint8_t* tiles[MostMatrices];
    int64_t column[MostMatrices], next = 0;
    for (int m = 0; m < count; ++m) {
      const Tensor weights = call.input(4 + m);
      tiles[m] = weights.as<uint8_t>();
      column[m] = next;
      next += matrices_[m].columns;
    }
    parts_before[0] = 0;
    for (int64_t i = 0; i < experts_ * count; ++i) {
      const bool chosen = ends[i / count] > first(i / count);
      parts_before[i + 1] = parts_before[i] + int32_t(chosen ? matrices_[i % count].parts(width) : 0);
    }
    call.parallel(parts_before[experts_ * count], [&](int64_t part) {
      const int32_t* found = std::upper_bound(parts_before, parts_before + experts_ * count, part) - 1;
      const int64_t e = (found - parts_before) / count, m = (found - parts_before) % count;
      const Matrix& matrix = matrices_[m];
      Product own = product;
      own.format = matrix.format;
      own.tiles = tiles[m] + e * bytes_of(matrix.format, matrix.columns, width);
      own.units = units_of(matrix.format, width);
      own.columns = matrix.columns;
      own.x = sorted + first(e) * width;
      own.rounded = rounded(e);
      own.targets = order + first(e);
      own.rows = ends[e] - first(e);
      own.out = products + column[m];
      own.bias = bias ? bias.as<float>() + e * total_ + column[m] : nullptr;
      const int64_t parts = found[1] - found[0], number = part - found[0];
      kernels().product(own, matrix.tiles() * number / parts, matrix.tiles() * (number + 1) / parts);
    });
    if (shares) add(call, shares.as<float>(), products, rows, top, out);
  }

 private:
  static constexpr int64_t MostExperts = 1 << 16;

  // Sorts pairs of a row and an expert by expert; those of expert e end before ends[e].
  void sort(const Tensor& experts, int64_t pairs, int32_t* order, int32_t* ends) const {
    if (experts.type != I32 && experts.type != I64)
      refuse("experts have elements of type %d", experts.type);
    const auto expert = [&](int64_t pair) {
      return experts.type == I32 ? int64_t(experts.as<int32_t>()[pair]) : experts.as<int64_t>()[pair];
    };
    std::memset(ends, 0, sizeof(int32_t) * size_t(experts_));
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t e = expert(i);
      if (e < 0 || e >= experts_)
        refuse("expert %lld is not one of %lld", (long long)e, (long long)experts_);
      ++ends[e];
    }
    int32_t before = 0;
    for (int64_t e = 0; e < experts_; ++e) {
      const int32_t own = ends[e];
      ends[e] = before;
      before += own;
    }
    for (int64_t i = 0; i < pairs; ++i) order[ends[expert(i)]++] = int32_t(i);
  }

  void add(const Call& call, const float* shares, const float* products, int64_t rows, int64_t top,
           float* out) const {
    call.each(rows, [&](int64_t r) {
      float* to = out + r * total_;
      for (int64_t t = 0; t < top; ++t) {
        const float share = shares[r * top + t];
        const float* from = products + (r * top + t) * total_;
        for (int64_t n = 0; n < total_; ++n) to[n] = t ? to[n] + share * from[n] : share * from[n];
      }
    });
  }

  std::vector<Matrix> matrices_;
  int64_t experts_, total_ = 0;
};

}  // namespace

Definition& expert_linear() {
  static Definition definition(
      "ExpertLinear", {{F32}, {Any}, {F32, Optional}, {F32, Optional}, {U8, Variadic}},
      [](const Attributes& attributes) -> Operator* { return new ExpertLinear(attributes); });
  return definition;
}

}  // namespace edgespec
