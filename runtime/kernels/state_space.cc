// StateSpace: a state space model along the paths of a tree, Mamba-2's, with the convolution before
// it and the gated norm behind it.
//
// Inputs, with S rows, B sequences, and sizes and pools as those of GatedDelta, see states.h; H are
// value heads, and keys are of groups of them:
//   0 x [S, H * value_size + channels + H] float32: gates; values, keys and queries before the
//     convolution; steps a
//   1 weight [size, channels] float32, that of the row itself last; 2 its bias [channels]
//   3 factor [H], 4 bias [H] float32: a head's step is softplus(a + bias), its decay is
//     exp(factor * step)
//   5 skip [H] float32, 6 norm [H * value_size] float32, optional
//   7 pool, 8 states: written in place
//   9 write, 10 parent, 11 sequence, 12 recent, 13 starts, 14 carry: like GatedDelta's
// Output [S, H * value_size]: norm(result * silu(gate)), where a norm is of a group's values side by
// side. Attributes: key_heads, value_heads, key_size, value_size; eps, of the norm.
//
// A state S becomes S decay + k (step v) by a row, and the row's result is its q times that, and
// skip v.
//
// Dao and Gu, 2024 (Mamba-2).
#include <cstring>

#include "kernels.h"
#include "recurrent.h"
#include "states.h"

namespace edgespec {
namespace {

class StateSpace : public Operator {
 public:
  explicit StateSpace(const Attributes& a) : sizes_(a), eps_(a.real("eps", 0.0f)) {
    if (sizes_.decay_size != 1) refuse("%lld decays of a head", (long long)sizes_.decay_size);
  }

  void compute(const Call& call) override {
    const int64_t heads = sizes_.value_heads, channels = sizes_.channels(), values = sizes_.values();
    const int64_t keys = sizes_.keys(), size = sizes_.value_size, padded = sizes_.padded();
    const Tensor x = call.input(0), shift = call.input(2), factor = call.input(3);
    const Tensor bias = call.input(4), skip = call.input(5), norm = call.input(6);
    const Tensor pool = call.input(7);
    const int64_t width = values + channels + heads;
    x.check("x", F32, {-1, width});
    shift.check("bias of the convolution", F32, {channels});
    factor.check("factor", F32, {heads});
    bias.check("bias", F32, {heads});
    skip.check("skip", F32, {heads});
    if (norm) norm.check("norm", F32, {values});
    const Convolution convolution = convolution_of(call.input(1), channels, pool, sizes_.numbers());
    const int64_t rows = x.dims[0];
    StateTree tree(call, 7, sizes_, rows);
    float* out = call.output(0, {rows, values});

    Space space(Scratch::Shared, Space::bytes_of<float>(rows * channels) +
                                     Space::bytes_of<float>(rows * heads) +
                                     Space::bytes_of<int32_t>(tree.places()));
    float* all_mixed = space.take<float>(rows * channels);
    float* all_steps = space.take<float>(rows * heads);
    tree.find(space.take<int32_t>(tree.places()));

    call.each(rows, [&](int64_t r) {
      std::memcpy(tree.slot_of(r), x.as<float>() + r * width + values,
                  sizeof(float) * size_t(channels));
    });
    call.each(rows, [&](int64_t r) {
      float* mixed = all_mixed + r * channels;
      float* steps = all_steps + r * heads;
      float* kept = tree.slot_of(r);
      convolution.apply(tree.ancestry(), r, shift.as<float>(), mixed);
      kernels().sigmoid_gate(mixed, mixed, channels);
      std::memcpy(kept + sizes_.key_at(), mixed + values, sizeof(float) * size_t(keys));
      kernels().decays(x.as<float>() + r * width + values + channels, bias.as<float>(),
                       factor.as<float>(), kept + sizes_.decay_at(), steps, heads);
      float* added = kept + sizes_.added_at();
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < padded; ++i)
          added[h * padded + i] = i < size ? steps[h] * mixed[h * size + i] : 0.0f;
    });
    tree.run(
        call,
        [&](int64_t r, int64_t h, int64_t, const DeltaStep& step, float* result) {
          const float* queries = all_mixed + r * channels + values + keys;
          kernels().state_row(step, queries + sizes_.key_head(h) * sizes_.key_size, result);
        },
        [&](int64_t r, int64_t h, const float* result) {
          const float* v = all_mixed + r * channels + h * size;
          float* to = out + r * values + h * size;
          for (int64_t i = 0; i < size; ++i) to[i] = result[i] + skip.as<float>()[h] * v[i];
        });
    call.each(rows, [&](int64_t r) {
      float* row = out + r * values;
      const int64_t group = values / sizes_.key_heads;
      kernels().gate({Gate::Silu, 1.0f, 0.0f}, x.as<float>() + r * width, row, row, values);
      for (int64_t i = 0; norm && i < values; i += group)
        kernels().norm(row + i, norm.as<float>() + i, eps_, row + i, group);
    });
  }

 private:
  StateSizes sizes_;
  float eps_;
};

}  // namespace

Definition& state_space() {
  static Definition definition("StateSpace",
                               {{F32}, {F32}, {F32}, {F32}, {F32}, {F32}, {F32, Optional}, {F32},
                                {F32}, {I32}, {I32}, {I32}, {I32}, {I32}, {I32}},
                               [](const Attributes& a) -> Operator* { return new StateSpace(a); });
  return definition;
}

}  // namespace edgespec
