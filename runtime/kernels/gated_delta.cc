// GatedDelta: linear attention by the gated delta rule along the paths of a tree, with the
// convolution before it and the gated norm behind it.
//
// Inputs, with S rows, B sequences, a pool of C slots for rows and one of N slots for states. With
// H value heads, channels are 2 * key_heads * key_size + H * value_size; strips are 16 columns of a
// state, ceil(value_size / 16); D are decays, H * decay_size; a row of the pool has channels +
// key_heads * key_size + D + H * strips * 16 numbers.
//   0 x [S, channels + H * value_size + H + D] float32: queries, keys and values before the
//     convolution; gates; rates b; decays a
//   1 weight [size, channels] float32, that of the row itself last
//   2 factor [D], 3 bias [D] float32: a decay is exp(factor * softplus(a + bias))
//   4 norm [value_size] float32
//   5 pool [C, numbers] float32: written in place
//   6 states [N, H, strips, key_size, 16] float32: written in place
//   7 write, 8 parent, 9 sequence, 10 recent, 11 starts: int32, like TreeAttention's, with slots of
//     this pool; `recent` has a sequence's last committed rows
//   12 carry [B, 4] int32: of each sequence `from`, `to`, `held` and `certain`, see states.h
// Output [S, H * value_size]: norm(result) * activation(gate). Attributes: key_heads, value_heads,
// key_size, value_size; decay_size, 1 or key_size, 1 if there is none; activation, silu if there is
// none, or sigmoid; eps, of the norm.
//
// A state S becomes S decay + k added by a row, where added = rate (v - k S decay), and the row's
// result is its q times that. Where keys have decays of their own, each row of S is multiplied by its
// own. A row is computed from its parent's state, and nothing else, always by the same operations; so
// its bits are the same wherever states were stored between.
//
// Yang et al., 2025; Kimi Team, 2025 (decays of keys).
#include <cmath>
#include <cstring>
#include <string>

#include "kernels.h"
#include "recurrent.h"
#include "states.h"

namespace edgespec {
namespace {

constexpr float UnitEps = 1e-6f;  // of the normalization of queries and keys

class GatedDelta : public Operator {
 public:
  explicit GatedDelta(const Attributes& a) : sizes_(a), eps_(a.real("eps", 0.0f)) {
    const std::string activation = a.text("activation");
    sigmoid_ = activation == "sigmoid";
    if (!sigmoid_ && activation != "silu" && !activation.empty())
      refuse("activation '%s' is not known", activation.c_str());
  }

  void compute(const Call& call) override {
    const int64_t heads = sizes_.value_heads, channels = sizes_.channels(), values = sizes_.values();
    const int64_t key_heads = sizes_.key_heads, size = sizes_.value_size;
    const Tensor x = call.input(0), factor = call.input(2), bias = call.input(3);
    const Tensor norm = call.input(4), pool = call.input(5);
    const int64_t decays = sizes_.decays(), width = channels + values + heads + decays;
    x.check("x", F32, {-1, width});
    factor.check("factor", F32, {decays});
    bias.check("bias", F32, {decays});
    norm.check("norm", F32, {size});
    const Convolution convolution = convolution_of(call.input(1), channels, pool, sizes_.numbers());
    const int64_t rows = x.dims[0];
    StateTree tree(call, 5, sizes_, rows);
    float* out = call.output(0, {rows, values});

    Space space(Scratch::Shared, Space::bytes_of<float>(rows * channels) +
                                     Space::bytes_of<float>(rows * heads) +
                                     Space::bytes_of<float>(rows * key_heads) +
                                     Space::bytes_of<int32_t>(tree.places()));
    float* all_mixed = space.take<float>(rows * channels);  // queries and keys of unit length
    float* all_rates = space.take<float>(rows * heads);
    float* likeness = space.take<float>(rows * key_heads);  // of query and key
    tree.find(space.take<int32_t>(tree.places()));

    call.each(rows, [&](int64_t r) {
      std::memcpy(tree.slot_of(r), x.as<float>() + r * width, sizeof(float) * size_t(channels));
    });
    call.each(rows, [&](int64_t r) {
      const float* gates = x.as<float>() + r * width + channels + values;
      float* mixed = all_mixed + r * channels;
      float* rates = all_rates + r * heads;
      float* kept = tree.slot_of(r);
      convolution.apply(tree.ancestry(), r, nullptr, mixed);
      prepare(mixed, kept + sizes_.key_at(), likeness + r * key_heads);
      std::fill_n(rates, heads, 1.0f);
      kernels().sigmoid_gate(gates, rates, heads);
      kernels().decays(gates + heads, bias.as<float>(), factor.as<float>(),
                       kept + sizes_.decay_at(), nullptr, decays);
    });
    tree.run(
        call,
        [&](int64_t r, int64_t h, int64_t s, const DeltaStep& step, float* result) {
          const float* mixed = all_mixed + r * channels;
          const int64_t key_head = sizes_.key_head(h), count = std::min<int64_t>(16, size - 16 * s);
          float v[16] = {};
          std::memcpy(v, mixed + 2 * sizes_.keys() + h * size + 16 * s,
                      sizeof(float) * size_t(count));
          kernels().delta_row(step, {mixed + key_head * sizes_.key_size, v, all_rates[r * heads + h],
                                     likeness[r * key_heads + key_head], result});
        },
        [&](int64_t r, int64_t h, float* result) {
          const float* gate = x.as<float>() + r * width + channels + h * size;
          float* to = out + r * values + h * size;
          kernels().norm(result, norm.as<float>(), eps_, to, size);
          if (sigmoid_) kernels().sigmoid_gate(gate, to, size);
          else kernels().gate({Gate::Silu, 1.0f, 0.0f}, gate, to, to, size);
        });
  }

 private:
  // Finishes a row's queries, keys and values; its keys go to `kept`, too.
  void prepare(float* mixed, float* kept, float* likeness) const {
    const int64_t size = sizes_.key_size, keys = sizes_.keys();
    const float length = 1.0f / std::sqrt(float(size));
    kernels().sigmoid_gate(mixed, mixed, sizes_.channels());
    for (int64_t h = 0; h < sizes_.key_heads; ++h) {
      float* q = mixed + h * size;
      float* k = q + keys;
      float lanes[16] = {};
      kernels().norm(q, nullptr, UnitEps / float(size), q, size);
      kernels().norm(k, nullptr, UnitEps / float(size), k, size);
      for (int64_t i = 0; i < size; ++i) {
        q[i] *= length * length;
        kept[h * size + i] = k[i] *= length;
        lanes[i % 16] += q[i] * k[i];
      }
      float total = 0.0f;
      for (float each : lanes) total += each;
      likeness[h] = total;
    }
  }

  StateSizes sizes_;
  float eps_;
  bool sigmoid_;  // whether gates are, and not SiLUs
};

}  // namespace

Definition& gated_delta() {
  static Definition definition(
      "GatedDelta",
      {{F32}, {F32}, {F32}, {F32}, {F32}, {F32}, {F32}, {I32}, {I32}, {I32}, {I32}, {I32}, {I32}},
      [](const Attributes& attributes) -> Operator* { return new GatedDelta(attributes); });
  return definition;
}

}  // namespace edgespec
