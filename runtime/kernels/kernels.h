// What each instruction set implements: one table of functions, made of the same templates.
//
// Every table gives the same bits, and a row the same bits in any company, because the order of
// operations is fixed here, by positions alone:
//  * Products: the integer sum of a block of 32 k (16 in formats with scales of 16) is exact; blocks are
//    added from k = 0 up by fused multiply-adds, sum += float(block) * (weight scale * row scale),
//    and then where a format has minimums sum += minimum * (row scale * float(sum of levels)).
//    Products of floats are added from k = 0 up by fused multiply-adds.
//  * Sums over 16 lanes: lanes 8 apart are added first, then 4, 2 and 1 apart.
//  * Dot products of a head: lane i adds elements i, i + 16, i + 32, ... in this order by fused
//    multiply-adds; then the lanes.
//  * Attention: blocks of 64 positions, 0..63, 64..127, ... in this order. Within one, shares are
//    summed in four groups of 16 lanes, then the lanes; values are added position by position.
//  * States: a column of one is computed by itself. Its products with a key and a query are summed
//    over even and over odd numbers from 0 up by fused multiply-adds, and then both are added.
#pragma once

#include <cstdint>

#include "formats.h"

namespace edgespec {

// Rows of activations, rounded to 8 bits in blocks of 32. What a kernel reads of neighbouring rows
// lies together. `Sums` are of levels 0 to 15 and 16 to 31 of a block, and of all.
constexpr int Sums = 3;
struct Rounded {
  int8_t* levels;   // [blocks, rows, 32], from -127 to 127
  float* scales;    // [blocks, rows]
  int32_t* negated; // [blocks, Sums, rows]: sums of levels times -1
  float* weighted;  // [blocks, Sums, rows]: sums of levels times the scale
  int64_t blocks, rows;
};

// What a product reads and writes: out = cap((x W^T + bias) * factor) + residual.
struct Product {
  Format format;
  const uint8_t* tiles;
  int64_t units;    // of a tile
  int64_t columns;  // of W
  Rounded rounded;  // what formats of integers read
  const float* x;   // [rows, width], what formats of floats read
  int64_t width;
  int64_t rows;
  const int32_t* targets; // [rows of x] the row of out that each writes; null: its own number
  float* out;            // its first column
  int64_t stride;        // of out and residual
  const float* bias;     // [columns] or null
  const float* residual; // like out, or null
  float factor;
  float soft_cap;        // cap(y) is soft_cap * tanh(y / soft_cap); 0: none
};

struct Gate {
  enum Kind { Silu, GeluTanh, Clamped } kind;
  float alpha, limit;  // of Clamped
};

constexpr int MultipliedBlocks = 16;
constexpr int BlockPositions = 64;
constexpr int MostHeadDim = 640;

enum class CacheType : int { F32, F16, I8 };

// A query's running softmax: the largest score so far, the sum of shares, and the weighted values.
struct Softmax {
  float largest, total;
};

// Queries that see the same rows of keys and values, of a block of positions.
struct AttendBlock {
  CacheType type;
  int64_t dim;                            // a multiple of 16
  int64_t begin, end;                     // the first position that a query sees, behind the last
  const void* keys[BlockPositions];       // rows of these; `attend` overwrites both arrays
  const void* values[BlockPositions];
  float key_scales[BlockPositions];       // of int8
  float value_scales[BlockPositions];
  float soft_cap;                         // 0: none
  int64_t queries;
  const float* const* query;              // [queries] rows of dim
  const uint8_t* first;                   // [queries] the first position of the block it sees
  const uint8_t* last;                    // [queries] behind the last; never empty
  const float* slope;                     // [queries] taken off scores per position; null: none
  const float* const* nearness;           // [queries] added to scores, by place, of its own; null
  int32_t reach;                          // how far to both sides; farther places have the last
  const int32_t* place;                   // [queries] its position, from the block's first on
  Softmax* const* softmax;                // [queries]
  float* const* sums;                     // [queries] rows of dim
  float* scratch;                         // 2 * 64 * dim + 64 * queries floats
};

// What a row adds to 16 columns of a state [keys, 16]: to = from * decay + k added, where all keys
// have one decay, or each has its own.
struct DeltaStep {
  const float* from;
  float* to;  // may be `from`; null: only the row's result is wanted
  int64_t keys;
  const float* k;
  const float* decay;  // [decays]
  int64_t decays;      // 1, or as many as keys
  float* added;        // [16]
};

// added = rate (v - k (from decay)), result = q to, which is q (from decay) + likeness * added.
struct DeltaRow {
  const float* q;
  const float* v;   // [16]
  float rate;
  float likeness;   // q k
  float* result;    // [16]
};

struct Kernels {
  const char* name;
  // Rounds `width` floats to be a row of `rounded`; what lies behind them counts as zero.
  void (*round_row)(const float* x, int64_t width, const Rounded& rounded, int64_t row);
  // Computes tiles `first` up to `last`.
  void (*product)(const Product& product, int64_t first, int64_t last);
  // Multiplies as fast as this core can: `blocks` of 32 levels of 4 bits, which stay in registers,
  // by those of as many rows as a product takes at once, from the first cache: x has
  // `MultipliedBlocks` for each of up to eight rows. Returns the sum over 16 columns.
  int64_t (*multiply_add)(const uint8_t* planes, const int8_t* x, int64_t blocks);
  void (*attend)(AttendBlock& block);
  // out[i] = gate(x[i]) * up[i]
  void (*gate)(const Gate& gate, const float* x, const float* up, float* out, int64_t n);
  // x[i] *= sigmoid(gate[i])
  void (*sigmoid_gate)(const float* gate, float* x, int64_t n);
  // Divides x by the root of its mean square + eps, times weight (null: 1).
  void (*norm)(const float* x, const float* weight, float eps, float* out, int64_t n);
  // Writes the mean of x, and the mean square of x less it.
  void (*moments)(const float* x, int64_t n, float* mean, float* variance);
  // out = exp(x) / the sum of these
  void (*softmax)(const float* x, float* out, int64_t n);
  // out = exp(factor * softplus(x + bias)); factors are negative. steps (null: none) = softplus(...).
  void (*decays)(const float* x, const float* bias, const float* factor, float* out, float* steps,
                 int64_t n);
  void (*delta_step)(const DeltaStep& step);
  void (*delta_row)(const DeltaStep& step, const DeltaRow& row);
  // The step, of one decay, and result [16] = q to.
  void (*state_row)(const DeltaStep& step, const float* q, float* result);
};

// The table for this processor, or a lesser one that the variable EDGESPEC_KERNELS names.
const Kernels& kernels();
// Null where the variable names none of `names_of_kernels`; no operator is registered then.
const Kernels* kernels_or_none();
const char* names_of_kernels();

// Values of one row of W, as floats.
void read_column(Format format, const uint8_t* tiles, int64_t width, int64_t column, float* out);

}  // namespace edgespec
