// Attention over a block of positions, for queries that see the same rows of keys and values.
// Included by each instruction set's file, behind its sixteen lanes.
#pragma once

#include <cstdlib>

#include "elementwise.h"
#include "inlined.h"
#include "kernels.h"

namespace edgespec {
namespace {

// Sixteen elements of a row of a cache, as floats.
template <CacheType Type>
INLINE F load_row(const void* row, int64_t d) {
  if constexpr (Type == CacheType::F32) return load(static_cast<const float*>(row) + d);
  else return load_f16(static_cast<const uint16_t*>(row) + d);
}

// A row of an int8 cache, as floats.
inline const float* widen_row(const void* row, float scale, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; d += 16)
    store(out + d, mul(load_i8(static_cast<const int8_t*>(row) + d), set(scale)));
  return out;
}

// Dot products of some queries and keys, before their lanes are added: out[4 * query + key].
template <CacheType Type, int Queries, int Keys>
INLINE void partial_scores(const float* const* query, const void* const* key, int64_t dim, F* out) {
  F sums[Queries][Keys];
  for (int q = 0; q < Queries; ++q)
    for (int k = 0; k < Keys; ++k) sums[q][k] = set(0.0f);
  for (int64_t d = 0; d < dim; d += 16) {
    F x[Queries];
    for (int q = 0; q < Queries; ++q) x[q] = load(query[q] + d);
    for (int k = 0; k < Keys; ++k) {
      const F y = load_row<Type>(key[k], d);
      for (int q = 0; q < Queries; ++q) sums[q][k] = fma(x[q], y, sums[q][k]);
    }
  }
  for (int q = 0; q < Queries; ++q)
    for (int k = 0; k < Keys; ++k) out[4 * q + k] = sums[q][k];
}

// Scores of 16 keys. Keys that no query sees are no rows, and repeat one that is.
template <CacheType Type, int Queries>
INLINE void scores_of_16(const float* const* query, const void* const* key, int64_t dim,
                         float* out) {
  constexpr int Keys = Many ? 4 : Queries == 1 ? 4 : 2;
  F fours[Queries][4];
  for (int k = 0; k < 4; ++k) {
    const void* const some[4] = {key[k], key[k + 4], key[k + 8], key[k + 12]};
    F partial[Queries * 4];
    unrolled<4 / Keys>([&](auto step) INLINED {
      constexpr int First = step * Keys;
      partial_scores<Type, Queries, Keys>(query, some + First, dim, partial + First);
    });
    for (int q = 0; q < Queries; ++q) fours[q][k] = four_of(partial + 4 * q);
  }
  for (int q = 0; q < Queries; ++q) store(out + q * BlockPositions, sums_of(fours[q]));
}

// Adds the values of positions first to last, each times its share, to sums of some queries.
template <CacheType Type, int Queries, int Parts>
INLINE void add_values(const void* const* value, const float* const* shares, int first, int last,
                       float* const* sums, int64_t d) {
  F total[Queries][Parts];
  for (int q = 0; q < Queries; ++q)
    for (int p = 0; p < Parts; ++p) total[q][p] = load(sums[q] + d + 16 * p);
  for (int i = first; i < last; ++i) {
    F y[Parts];
    for (int p = 0; p < Parts; ++p) y[p] = load_row<Type>(value[i], d + 16 * p);
    for (int q = 0; q < Queries; ++q) {
      const F share = set(shares[q][i]);
      for (int p = 0; p < Parts; ++p) total[q][p] = fma(share, y[p], total[q][p]);
    }
  }
  for (int q = 0; q < Queries; ++q)
    for (int p = 0; p < Parts; ++p) store(sums[q] + d + 16 * p, total[q][p]);
}

template <CacheType Type, int Queries>
INLINE void add_values(const void* const* value, const float* const* shares, int first, int last,
                       float* const* sums, int64_t d, int64_t dim) {
  constexpr int Parts = Many ? 4 : Queries == 1 ? 4 : 2;
  for (; d + 16 * Parts <= dim; d += 16 * Parts)
    add_values<Type, Queries, Parts>(value, shares, first, last, sums, d);
  for (; d < dim; d += 16) add_values<Type, Queries, 1>(value, shares, first, last, sums, d);
}

// Turns a query's scores into shares, in place, and scales what it has so far.
inline void to_shares(const AttendBlock& block, int64_t q, float* scores) {
  const int first = block.first[q], last = block.last[q];
  Softmax& state = *block.softmax[q];
  for (int i = 0; i < BlockPositions; i += 16) {
    F s = load(scores + i);
    if (block.soft_cap != 0.0f)
      s = mul(tanh_of(div(s, set(block.soft_cap))), set(block.soft_cap));
    if (block.slope) {
      float distances[16];
      for (int lane = 0; lane < 16; ++lane)
        distances[lane] = float(std::abs(i + lane - block.place[q]));
      s = fma(load(distances), set(-block.slope[q]), s);
    }
    if (block.nearness) {
      float added[16];
      for (int lane = 0; lane < 16; ++lane) {
        const int behind = i + lane - block.place[q], reach = block.reach;
        added[lane] = block.nearness[q][behind < -reach ? -reach : behind > reach ? reach : behind];
      }
      s = add(s, load(added));
    }
    store(scores + i, s);
  }
  for (int i = 0; i < first; ++i) scores[i] = -INFINITY;
  for (int i = last; i < BlockPositions; ++i) scores[i] = -INFINITY;
  F largest = load(scores);
  for (int i = 16; i < BlockPositions; i += 16) largest = max(largest, load(scores + i));
  const float found = max_of(largest), before = state.largest;
  const float now = found > before ? found : before;
  F total = set(0.0f);
  for (int i = 0; i < BlockPositions; i += 16) {
    const F share = exp_of(sub(load(scores + i), set(now)));
    store(scores + i, share);
    total = i ? add(total, share) : share;
  }
  const float added = sum_of(total);
  if (now == before) {
    state.total += added;
    return;
  }
  float factors[16];
  store(factors, exp_of(set(before - now)));
  state.largest = now;
  state.total = state.total * factors[0] + added;
  const F factor = set(factors[0]);
  float* sums = block.sums[q];
  for (int64_t d = 0; d < block.dim; d += 16) store(sums + d, mul(load(sums + d), factor));
}

template <CacheType Type>
void attend_rows(const AttendBlock& block) {
  const int64_t dim = block.dim, queries = block.queries;
  float* scores = block.scratch + 2 * BlockPositions * dim;
  constexpr int Together = Many ? 4 : 2;
  for (int64_t q = 0; q < queries; q += Together)
    at_most<Together>(queries - q, [&](auto count) INLINED {
      for (int64_t i = block.begin & ~15; i < block.end; i += 16)
        scores_of_16<Type, count>(block.query + q, block.keys + i, dim,
                                  scores + q * BlockPositions + i);
    });
  for (int64_t q = 0; q < queries; ++q) to_shares(block, q, scores + q * BlockPositions);
  for (int64_t q = 0; q < queries;) {
    const float* shares[Together];
    int64_t alike = 0;
    for (; alike < Together && q + alike < queries; ++alike) {
      if (block.first[q] != block.first[q + alike] || block.last[q] != block.last[q + alike]) break;
      shares[alike] = scores + (q + alike) * BlockPositions;
    }
    at_most<Together>(alike, [&](auto count) INLINED {
      add_values<Type, count>(block.values, shares, block.first[q], block.last[q], block.sums + q,
                              0, dim);
    });
    q += alike;
  }
}

void attend(AttendBlock& block) {
  const int64_t dim = block.dim;
  float *keys = block.scratch, *values = keys + BlockPositions * dim;
  if (block.type == CacheType::I8)
    for (int64_t i = block.begin; i < block.end; ++i) {
      block.keys[i] = widen_row(block.keys[i], block.key_scales[i], dim, keys + i * dim);
      block.values[i] = widen_row(block.values[i], block.value_scales[i], dim, values + i * dim);
    }
  for (int64_t i = 0; i < BlockPositions; ++i)
    if (i < block.begin || i >= block.end) block.keys[i] = block.keys[block.begin];
  if (block.type == CacheType::F16) attend_rows<CacheType::F16>(block);
  else attend_rows<CacheType::F32>(block);
}

}  // namespace
}  // namespace edgespec
