// Steps of 16 columns of a state, of the gated delta rule and others, and decays. Included behind elementwise.h.
#pragma once

#include "elementwise.h"
#include "kernels.h"

namespace edgespec {
namespace {

// log(1 + exp(x)) = max(x, 0) + log(1 + y) with y = exp(-|x|), and log(1 + y) = 2 artanh(y / (2 + y)),
// by the series of degree 15.
inline F softplus_of(F x) {
  const F y = exp_of(sub(set(0.0f), abs(x)));
  const F s = div(y, add(set(2.0f), y)), square = mul(s, s);
  F sum = set(2.0f / 15);
  for (int n = 13; n > 0; n -= 2) sum = fma(sum, square, set(2.0f / float(n)));
  return fma(s, sum, max(x, set(0.0f)));
}

void decays(const float* x, const float* bias, const float* factor, float* out, float* steps,
            int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    float some[3][16] = {};
    for (int64_t j = i; j < n && j < i + 16; ++j)
      some[0][j - i] = x[j] + bias[j], some[1][j - i] = factor[j];
    const F step = softplus_of(load(some[0]));
    store(some[2], exp_of(mul(load(some[1]), step)));
    store(some[0], step);
    for (int64_t j = i; j < n && j < i + 16; ++j) {
      out[j] = some[2][j - i];
      if (steps) steps[j] = some[0][j - i];
    }
  }
}

// `Each`: every key has a decay of its own, else all have one.
template <bool Each>
void delta_step_of(const DeltaStep& step) {
  const auto [from, to, keys, k, decay, unused, given] = step;  // no store may change these
  const F added = load(given), all = set(decay[0]);
  for (int64_t i = 0; i < keys; ++i) {
    const F factor = Each ? set(decay[i]) : all;
    store(to + 16 * i, fma(set(k[i]), added, mul(factor, load(from + 16 * i))));
  }
}

void delta_step(const DeltaStep& step) {
  step.decays > 1 ? delta_step_of<true>(step) : delta_step_of<false>(step);
}

template <bool Each>
void delta_row_of(const DeltaStep& step, const DeltaRow& row) {
  F by_k[2] = {set(0.0f), set(0.0f)}, by_q[2] = {set(0.0f), set(0.0f)};
  int64_t i = 0;
  const auto add_key = [&](int part) {
    F s = load(step.from + 16 * i);
    if constexpr (Each) s = mul(set(step.decay[i]), s);
    by_k[part] = fma(set(step.k[i]), s, by_k[part]);
    by_q[part] = fma(set(row.q[i]), s, by_q[part]);
    ++i;
  };
  while (i + 2 <= step.keys) add_key(0), add_key(1);
  if (i < step.keys) add_key(0);
  F known = add(by_k[0], by_k[1]), asked = add(by_q[0], by_q[1]);
  if constexpr (!Each) {
    const F decay = set(step.decay[0]);
    known = mul(decay, known);
    asked = mul(decay, asked);
  }
  const F added = mul(set(row.rate), sub(load(row.v), known));
  store(step.added, added);
  store(row.result, fma(added, set(row.likeness), asked));
  if (step.to) delta_step_of<Each>(step);
}

void delta_row(const DeltaStep& step, const DeltaRow& row) {
  step.decays > 1 ? delta_row_of<true>(step, row) : delta_row_of<false>(step, row);
}

void state_row(const DeltaStep& step, const float* q, float* result) {
  const auto [from, to, keys, k, decay, unused, given] = step;
  const F added = load(given), factor = set(decay[0]);
  F by_q[2] = {set(0.0f), set(0.0f)};
  for (int64_t i = 0; i < keys; ++i) {
    const F after = fma(set(k[i]), added, mul(factor, load(from + 16 * i)));
    if (to) store(to + 16 * i, after);
    by_q[i % 2] = fma(set(q[i]), after, by_q[i % 2]);
  }
  store(result, add(by_q[0], by_q[1]));
}

}  // namespace
}  // namespace edgespec
