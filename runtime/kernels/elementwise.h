// Functions of single values, and of a row. Included behind sixteen lanes.
#pragma once

#include <cmath>

#include "kernels.h"

namespace edgespec {
namespace {

// exp(x): 2^n e^f with f within ln 2 / 2, by Taylor's series of degree 7. What is below -87
// becomes 0 and what is above 88 becomes exp(88), so that no result is subnormal or infinite.
inline F exp_of(F x) {
  const F n = round(mul(max(min(x, set(88.0f)), set(-88.0f)), set(1.44269504f)));
  F f = fma(n, set(-0.693145752f), max(min(x, set(88.0f)), set(-88.0f)));
  f = fma(n, set(-1.42860677e-6f), f);
  F y = set(1.0f / 5040);
  y = fma(y, f, set(1.0f / 720));
  y = fma(y, f, set(1.0f / 120));
  y = fma(y, f, set(1.0f / 24));
  y = fma(y, f, set(1.0f / 6));
  y = fma(y, f, set(0.5f));
  y = fma(y, f, set(1.0f));
  y = fma(y, f, set(1.0f));
  return zero_below(x, -87.0f, mul(y, power_of_two(max(n, set(-126.0f)))));
}

inline F sigmoid_of(F x) {
  return div(set(1.0f), add(set(1.0f), exp_of(sub(set(0.0f), x))));
}

// tanh(x) = 1 - 2 / (exp(2x) + 1); near 0, where that cancels, by Taylor's series.
inline F tanh_of(F x) {
  const F far = sub(set(1.0f), div(set(2.0f), add(exp_of(add(x, x)), set(1.0f))));
  const F s = mul(x, x);
  F y = set(-1382.0f / 155925);
  y = fma(y, s, set(62.0f / 2835));
  y = fma(y, s, set(-17.0f / 315));
  y = fma(y, s, set(2.0f / 15));
  y = fma(y, s, set(-1.0f / 3));
  y = fma(mul(x, s), y, x);
  return near_zero(x, 0.25f, y, far);
}

void gate(const Gate& g, const float* x, const float* up, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    float rest[2][16] = {};
    const bool whole = i + 16 <= n;
    for (int64_t j = i; j < n && !whole; ++j) rest[0][j - i] = x[j], rest[1][j - i] = up[j];
    F a = load(whole ? x + i : rest[0]), b = load(whole ? up + i : rest[1]);
    if (g.kind == Gate::Silu) {
      a = mul(a, sigmoid_of(a));
    } else if (g.kind == Gate::GeluTanh) {
      const F inner = mul(set(0.797884561f), fma(mul(mul(a, a), a), set(0.044715f), a));
      a = mul(mul(set(0.5f), a), add(set(1.0f), tanh_of(inner)));
    } else {
      a = min(a, set(g.limit));
      b = add(min(max(b, set(-g.limit)), set(g.limit)), set(1.0f));
      a = mul(a, sigmoid_of(mul(a, set(g.alpha))));
    }
    a = mul(a, b);
    store(whole ? out + i : rest[0], a);
    for (int64_t j = i; j < n && !whole; ++j) out[j] = rest[0][j - i];
  }
}

void sigmoid_gate(const float* gates, float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    float rest[2][16] = {};
    const bool whole = i + 16 <= n;
    for (int64_t j = i; j < n && !whole; ++j) rest[0][j - i] = gates[j], rest[1][j - i] = x[j];
    const F y = mul(load(whole ? x + i : rest[1]), sigmoid_of(load(whole ? gates + i : rest[0])));
    store(whole ? x + i : rest[0], y);
    for (int64_t j = i; j < n && !whole; ++j) x[j] = rest[0][j - i];
  }
}

void norm(const float* x, const float* weight, float eps, float* out, int64_t n) {
  F squares = set(0.0f);
  float rest[16] = {};
  const int64_t whole = n / 16 * 16;
  for (int64_t i = whole; i < n; ++i) rest[i - whole] = x[i];
  for (int64_t i = 0; i < whole; i += 16) squares = fma(load(x + i), load(x + i), squares);
  if (whole < n) squares = fma(load(rest), load(rest), squares);
  const float root = 1.0f / std::sqrt(sum_of(squares) / float(n) + eps);
  for (int64_t i = 0; i < whole; i += 16) {
    const F y = mul(load(x + i), set(root));
    store(out + i, weight ? mul(y, load(weight + i)) : y);
  }
  for (int64_t i = whole; i < n; ++i) {
    const float y = x[i] * root;
    out[i] = weight ? y * weight[i] : y;
  }
}

void moments(const float* x, int64_t n, float* mean, float* variance) {
  float rest[16] = {};
  const int64_t whole = n / 16 * 16;
  for (int64_t i = whole; i < n; ++i) rest[i - whole] = x[i];
  F total = load(rest);
  for (int64_t i = 0; i < whole; i += 16) total = add(total, load(x + i));
  *mean = sum_of(total) / float(n);
  for (int64_t i = n - whole; i < 16; ++i) rest[i] = *mean;  // which adds nothing
  const F middle = set(*mean);
  const F last = sub(load(rest), middle);
  F squares = mul(last, last);
  for (int64_t i = 0; i < whole; i += 16) {
    const F d = sub(load(x + i), middle);
    squares = fma(d, d, squares);
  }
  *variance = sum_of(squares) / float(n);
}

void softmax(const float* x, float* out, int64_t n) {
  float rest[16];
  const int64_t whole = n / 16 * 16;
  for (int64_t i = 0; i < 16; ++i) rest[i] = whole + i < n ? x[whole + i] : -INFINITY;
  F most = load(rest);
  for (int64_t i = 0; i < whole; i += 16) most = max(most, load(x + i));
  const F largest = set(max_of(most));
  F total = exp_of(sub(load(rest), largest));
  store(rest, total);
  for (int64_t i = 0; i < whole; i += 16) {
    const F share = exp_of(sub(load(x + i), largest));
    store(out + i, share);
    total = add(total, share);
  }
  for (int64_t i = whole; i < n; ++i) out[i] = rest[i - whole];
  const float sum = sum_of(total);
  for (int64_t i = 0; i < n; ++i) out[i] /= sum;
}

}  // namespace
}  // namespace edgespec
