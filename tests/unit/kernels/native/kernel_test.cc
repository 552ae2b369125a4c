// Compares every table of kernels that this processor can run with plain C++, bit for bit.
//
// Prints the names of the tables and a number that follows from all results of plain C++, which is
// the same on every processor. Ends with 1 where a table differs.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "half.h"
#include "kernels.cc"

namespace edgespec {
namespace {

constexpr int MostReported = 20;

// Vigna, 2015 (SplitMix64): the same numbers with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int below(int limit) { return int(bits() % uint64_t(limit)); }
  bool one_in(int count) { return below(count) == 0; }
  // From -scale to scale.
  float real(float scale = 1.0f) {
    return scale * (float(int64_t(bits() >> 40)) / 8388608.0f - 1.0f);
  }
  std::vector<float> reals(int64_t count, float scale = 1.0f) {
    std::vector<float> found(static_cast<size_t>(count));
    for (float& each : found) each = real(scale);
    return found;
  }

 private:
  uint64_t state_;
};

// What a table computes for one case, to be compared and to be summed up.
struct Results {
  std::vector<uint32_t> bits;

  void add(const float* x, size_t count) {
    for (size_t i = 0; i < count; ++i) bits.push_back(bits_of_float(x[i]));
  }
  void add(const std::vector<float>& x) { add(x.data(), x.size()); }
  void add(const std::vector<int32_t>& x) { bits.insert(bits.end(), x.begin(), x.end()); }
  void add(const std::vector<int8_t>& x) { bits.insert(bits.end(), x.begin(), x.end()); }
};

class Comparison {
 public:
  // Runs `compute(table, results)` for all tables. It must draw no numbers.
  template <class Compute>
  void run(const std::string& name, const Compute& compute) {
    Results expected;
    compute(plain_kernels, expected);
    for (const uint32_t each : expected.bits) sum_ = (sum_ ^ each) * 0x100000001b3;
    for (const Choice& choice : choices()) {
      if (!choice.usable || choice.kernels == &plain_kernels) continue;
      Results found;
      compute(*choice.kernels, found);
      report(name, choice.kernels->name, found.bits, expected.bits);
    }
  }
  int finish() const {
    std::printf("%s\n%016llx\n", names_of_kernels(), (unsigned long long)sum_);
    if (different_) std::printf("%d differences\n", different_);
    return different_ ? 1 : 0;
  }

 private:
  void report(const std::string& name, const char* table, const std::vector<uint32_t>& found,
              const std::vector<uint32_t>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (found[i] == expected[i]) continue;
      if (++different_ <= MostReported)
        std::printf("%s, %s: value %d is %08x (%g) instead of %08x (%g)\n", table, name.c_str(),
                    int(i), found[i], double(float_of_bits(found[i])), expected[i],
                    double(float_of_bits(expected[i])));
      return;
    }
  }

  uint64_t sum_ = 0xcbf29ce484222325;
  int different_ = 0;
};

std::string named(const char* what, std::initializer_list<int> numbers) {
  std::string name = what;
  for (const int each : numbers) name += " " + std::to_string(each);
  return name;
}

// Whether a unit begins with sixteen floats.
bool has_floats(Format format) {
  return format == Format::F32 || format == Format::NVFP4;
}

// Halves in front of the levels of a unit, by format.
int halves_of(Format format) {
  if (has_floats(format)) return 0;
  switch (format) {
    case Format::MXFP4: return 0;
    case Format::F16: case Format::BF16: case Format::Q4_0: case Format::Q4_Z: case Format::Q5_0:
    case Format::Q8_0: case Format::Q8_Z: case Format::IQ4_NL: case Format::Q3_K:
    case Format::Q6_K: case Format::IQ4_XS: case Format::Q1_0: case Format::TQ2_0: case Format::IQ1_S:
    case Format::IQ1_M: case Format::IQ2_XXS: case Format::IQ2_S: case Format::IQ3_XXS:
    case Format::IQ3_S: return 16;
    default: return 32;
  }
}

std::vector<uint8_t> random_tiles(Format format, int64_t tiles, int64_t units, Random& random) {
  const Layout& layout = layout_of(format);
  std::vector<uint8_t> found(size_t(tiles * units * layout.unit_bytes));
  const size_t first_tile = found.size() / size_t(tiles);
  for (size_t i = 0; i < found.size(); ++i)  // the first tile has the largest levels
    found[i] = i < first_tile ? 255 : uint8_t(random.bits());
  for (int64_t u = 0; u < tiles * units; ++u) {
    uint8_t* unit = found.data() + u * layout.unit_bytes;
    for (int i = 0; i < 16 && has_floats(format); ++i) {
      const float x = random.real();
      std::memcpy(unit + 4 * i, &x, 4);
    }
    for (int i = 0; i < halves_of(format); ++i) {
      const float x = random.one_in(16) ? random.real(1e-6f) : random.real();  // some subnormal
      const uint16_t half = format == Format::BF16 ? uint16_t(bits_of_float(x) >> 16) : to_half(x);
      std::memcpy(unit + 2 * i, &half, 2);
    }
    for (int i = 0; i < 16 && format == Format::MXFP4; ++i)
      unit[i] = uint8_t(random.one_in(8) ? random.below(4) : 100 + random.below(40));
  }
  return found;
}

// Rows of which the first has the largest levels, and some parts are zero, tiny or huge.
std::vector<float> random_rows(int64_t rows, int64_t width, Random& random) {
  constexpr float Factors[4] = {0.0f, 1e-33f, 1e-28f, 1e30f};
  std::vector<float> x = random.reals(rows * width, 3.0f);
  for (size_t k = 0; k < size_t(width); ++k) x[k] = 2.0f;
  for (size_t i = size_t(width); i + 32 <= x.size(); i += 32)
    if (const int kind = random.below(16); kind < 4)
      for (size_t k = i; k < i + 32; ++k) x[k] *= Factors[kind];
  return x;
}

struct RoundedRows {
  std::vector<int8_t> levels;
  std::vector<float> scales, weighted;
  std::vector<int32_t> negated;
  Rounded rounded;

  RoundedRows(const Kernels& table, const std::vector<float>& x, int64_t rows, int64_t width) {
    const int64_t blocks = (width + 31) / 32, count = blocks * rows;
    levels.resize(size_t(count * 32));
    scales.resize(size_t(count));
    negated.resize(size_t(count * Sums));
    weighted.resize(size_t(count * Sums));
    rounded = {levels.data(), scales.data(), negated.data(), weighted.data(), blocks, rows};
    for (int64_t row = 0; row < rows; ++row)
      table.round_row(x.data() + row * width, width, rounded, row);
  }
};

void test_rounding(Comparison& compared) {
  Random random(1);
  for (const int width : {1, 31, 32, 33, 160, 223}) {
    const std::vector<float> x = random_rows(5, width, random);
    compared.run(named("round_row", {width}), [&](const Kernels& table, Results& results) {
      const RoundedRows found(table, x, 5, width);
      results.add(found.levels);
      results.add(found.scales);
      results.add(found.negated);
      results.add(found.weighted);
    });
  }
}

void test_products(Comparison& compared, Format format) {
  Random random(100 + uint64_t(format));
  const int64_t width = layout_of(format).unit == 256 ? 512 : 101, columns = 40, tiles = 3;
  const int64_t units = units_of(format, width), stride = columns + 3;
  const std::vector<uint8_t> weights = random_tiles(format, tiles, units, random);
  const std::vector<float> bias = random.reals(columns), residual = random.reals(11 * stride);
  const std::vector<int32_t> targets = {7, 2, 9, 0, 4, 10, 1, 8, 3, 5, 6};
  for (int rows = 1; rows <= 9; ++rows) {
    const std::vector<float> x = random_rows(rows, width, random);
    const RoundedRows rounded(plain_kernels, x, rows, width);
    const std::string name = named(layout_of(format).name, {rows});
    compared.run("product " + name, [&](const Kernels& table, Results& results) {
      std::vector<float> out(size_t(11 * stride), 7.0f);
      Product p{format, weights.data(), units, columns, rounded.rounded, x.data(), width, rows,
                nullptr, out.data(), stride, nullptr, nullptr, 1.0f, 0.0f};
      table.product(p, 0, tiles);
      results.add(out);
      p.bias = bias.data();
      p.factor = 0.375f;
      table.product(p, 0, 2);
      p.residual = residual.data();
      p.soft_cap = rows % 2 ? 30.0f : 0.0f;
      p.targets = targets.data();
      table.product(p, 1, tiles);
      results.add(out);
    });
  }
}

// One cache of keys or values.
struct Cache {
  std::vector<float> floats, scales;
  std::vector<uint16_t> halves;
  std::vector<int8_t> bytes;

  Cache(int64_t dim, Random& random) : floats(random.reals(BlockPositions * dim, 2.0f)) {
    scales = random.reals(BlockPositions, 0.02f);
    for (const float each : floats) halves.push_back(to_half(each));
    for (size_t i = 0; i < floats.size(); ++i) bytes.push_back(int8_t(random.bits()));
  }
  const void* row(CacheType type, int64_t i, int64_t dim) const {
    if (type == CacheType::F32) return floats.data() + i * dim;
    if (type == CacheType::F16) return halves.data() + i * dim;
    return bytes.data() + i * dim;
  }
};

void test_attention(Comparison& compared, CacheType type, int64_t dim, int queries) {
  Random random(uint64_t(1000 + 100 * int(type) + dim + queries));
  const Cache keys(dim, random), values(dim, random);
  const std::vector<float> query = random.reals(queries * dim, 0.5f);
  const bool alike = random.one_in(2);
  const float soft_cap = random.one_in(2) ? 5.0f : 0.0f;
  std::vector<uint8_t> first, last;
  for (int q = 0; q < queries; ++q) {
    first.push_back(uint8_t(alike && q ? first[0] : random.one_in(2) ? 0 : random.below(64)));
    const int begin = first.back();
    last.push_back(uint8_t(alike && q ? last[0] : begin + 1 + random.below(64 - begin)));
  }
  const std::string name = named("attend", {int(type), int(dim), queries});
  compared.run(name, [&](const Kernels& table, Results& results) {
    AttendBlock block{};
    std::vector<Softmax> states(size_t(queries), Softmax{-INFINITY, 0.0f});
    std::vector<float> sums(size_t(queries * dim), 0.0f);
    std::vector<float> scratch(size_t(2 * BlockPositions * dim + BlockPositions * queries));
    std::vector<const float*> query_rows;
    std::vector<Softmax*> softmax;
    std::vector<float*> sum_rows;
    for (int q = 0; q < queries; ++q) {
      query_rows.push_back(query.data() + q * dim);
      softmax.push_back(&states[size_t(q)]);
      sum_rows.push_back(sums.data() + q * dim);
    }
    block.type = type;
    block.dim = dim;
    block.soft_cap = soft_cap;
    block.queries = queries;
    block.query = query_rows.data();
    block.softmax = softmax.data();
    block.sums = sum_rows.data();
    block.scratch = scratch.data();
    // The same rows in another order, of which all queries see all, are the block before.
    const std::vector<uint8_t> none(size_t(queries), 0), all(size_t(queries), BlockPositions);
    for (const int turn : {17, 0}) {
      for (int i = 0; i < BlockPositions; ++i) {
        const int at = (i + turn) % BlockPositions;
        block.keys[i] = keys.row(type, at, dim);
        block.values[i] = values.row(type, at, dim);
        block.key_scales[i] = keys.scales[size_t(at)];
        block.value_scales[i] = values.scales[size_t(at)];
      }
      block.first = turn ? none.data() : first.data();
      block.last = turn ? all.data() : last.data();
      block.begin = *std::min_element(block.first, block.first + queries);
      block.end = *std::max_element(block.last, block.last + queries);
      table.attend(block);
    }
    results.add(sums);
    for (const Softmax& each : states) results.add(&each.largest, 2);
  });
}

void test_elements(Comparison& compared, int n) {
  Random random(uint64_t(2000 + n));
  const float scale = n % 3 ? 4.0f : 200.0f;
  const std::vector<float> x = random.reals(n, scale), up = random.reals(n), y = random.reals(n);
  std::vector<float> factors = random.reals(n);
  for (float& each : factors) each = -std::fabs(each);
  compared.run(named("elements", {n}), [&](const Kernels& table, Results& results) {
    std::vector<float> out(static_cast<size_t>(n));
    for (const Gate& gate : {Gate{Gate::Silu, 1.0f, 0.0f}, Gate{Gate::GeluTanh, 1.0f, 0.0f},
                             Gate{Gate::Clamped, 1.702f, 7.0f}}) {
      table.gate(gate, x.data(), up.data(), out.data(), n);
      results.add(out);
    }
    out = y;
    table.sigmoid_gate(x.data(), out.data(), n);
    results.add(out);
    table.norm(x.data(), nullptr, 1e-6f, out.data(), n);
    results.add(out);
    table.norm(x.data(), up.data(), 1e-6f, out.data(), n);
    results.add(out);
    float both[2];
    table.moments(x.data(), n, &both[0], &both[1]);
    results.add(both, 2);
    table.softmax(x.data(), out.data(), n);
    results.add(out);
    std::vector<float> steps(out.size());
    table.decays(x.data(), y.data(), factors.data(), out.data(), nullptr, n);
    results.add(out);
    table.decays(x.data(), y.data(), factors.data(), out.data(), steps.data(), n);
    results.add(out);
    results.add(steps);
  });
}

void test_states(Comparison& compared, int64_t keys, int64_t decays) {
  Random random(uint64_t(3000 + keys));
  const std::vector<float> from = random.reals(keys * 16), k = random.reals(keys);
  const std::vector<float> q = random.reals(keys), v = random.reals(16), before = random.reals(16);
  const std::vector<float> decay = random.reals(decays);
  compared.run(named("delta", {int(keys), int(decays)}), [&](const Kernels& table, Results& results) {
    std::vector<float> to(from.size()), added = before, result(16);
    const DeltaStep step{from.data(),  to.data(), keys,        k.data(),
                         decay.data(), decays,    added.data()};
    table.delta_step(step);
    results.add(to);
    const DeltaRow row{q.data(), v.data(), 0.7f, 0.3f, result.data()};
    for (float* target : {to.data(), static_cast<float*>(nullptr)}) {
      DeltaStep own = step;
      own.to = target;
      table.delta_row(own, row);
      results.add(to);
      results.add(added);
      results.add(result);
      if (decays > 1) continue;
      table.state_row(own, q.data(), result.data());
      results.add(to);
      results.add(result);
    }
  });
}

int test_all() {
  Comparison compared;
  test_rounding(compared);
  for (int format = 0; format < Formats; ++format) test_products(compared, Format(format));
  for (const CacheType type : {CacheType::F32, CacheType::F16, CacheType::I8})
    for (const int64_t dim : {16, 80, 128})
      for (const int queries : {1, 2, 3, 4, 5, 8}) test_attention(compared, type, dim, queries);
  for (int n = 1; n <= 50; ++n) test_elements(compared, n);
  for (const int64_t keys : {1, 2, 9, 64}) {
    test_states(compared, keys, 1);
    test_states(compared, keys, keys);
  }
  return compared.finish();
}

}  // namespace
}  // namespace edgespec

int main() { return edgespec::test_all(); }
