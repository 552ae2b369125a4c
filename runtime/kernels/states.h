// What GatedDelta and StateSpace have in common: states of heads along the paths of a tree.
//
// A state has 16 columns a strip, [strips, key_size, 16] a head. A row multiplies it by a decay and
// adds k added, where added may depend on the state. What it adds lies in its slot of the pool, a row
// of channels + key_heads * key_size + value_heads * (decay_size + strips * 16) numbers: what a
// convolution reads, keys, decays, added. All keys of a head have one decay, or each has its own.
//
// A sequence's state is read from slot `from` (-1: zeros, a text begins). It has the sequence's
// committed rows up to the first `held` of `recent`. The others are added: what each adds lies in
// its slot. Then come the first `certain` rows of the sequence in the call, a chain, which are
// committed whatever the call finds: a prompt's rows, or a tree's root. The state behind them is
// written to slot `to`, which may be `from`; -1: it is not written.
//
// After the call, the sequence has the state in `to`, which has `certain` more rows than were
// committed before it; slots of accepted rows are added to its list, those of rejected ones are
// freed. `recent` must have the rows behind the state and the size - 1 before them; older slots may
// be freed. A sequence can be cut to any row behind its state by cutting the list. To be cut further
// back it needs a checkpoint: an earlier state's slot, made by giving another slot as `to`, with
// size - 1 slots of rows before it. A fork shares slots, and each side writes to another `to`.
//
// Wu et al., 2025 (recurrent layers over trees).
#pragma once

#include <cstring>

#include "kernels.h"
#include "op.h"
#include "paths.h"

namespace edgespec {

struct StateSizes {
  int64_t key_heads, value_heads, key_size, value_size, decay_size;

  explicit StateSizes(const Attributes& a)
      : key_heads(a.integer("key_heads", 0)),
        value_heads(a.integer("value_heads", 0)),
        key_size(a.integer("key_size", 0)),
        value_size(a.integer("value_size", 0)),
        decay_size(a.integer("decay_size", 1)) {
    if (key_heads < 1 || value_heads < 1 || value_heads > 4096 || value_heads % key_heads ||
        key_size < 1 || key_size > MostSize || value_size < 1 || value_size > MostSize)
      refuse("%lld heads of %lld with %lld key heads of %lld", (long long)value_heads,
             (long long)value_size, (long long)key_heads, (long long)key_size);
    if (decay_size != 1 && decay_size != key_size)
      refuse("%lld decays of %lld keys", (long long)decay_size, (long long)key_size);
  }

  int64_t keys() const { return key_heads * key_size; }
  int64_t values() const { return value_heads * value_size; }
  int64_t channels() const { return 2 * keys() + values(); }
  int64_t decays() const { return value_heads * decay_size; }
  int64_t key_head(int64_t head) const { return head * key_heads / value_heads; }
  int64_t strips() const { return (value_size + 15) / 16; }
  int64_t padded() const { return 16 * strips(); }
  int64_t strip() const { return key_size * 16; }
  // Where parts of a row of the pool begin, behind the channels.
  int64_t key_at() const { return channels(); }
  int64_t decay_at() const { return channels() + keys(); }
  int64_t added_at() const { return decay_at() + decays(); }
  int64_t numbers() const { return added_at() + value_heads * padded(); }

  static constexpr int64_t MostSize = 1024;
};

// The rows of a call, and the states that they are computed from.
class StateTree {
 public:
  // Of rows whose pool, states and places are inputs `at` to `at` + 7.
  StateTree(const Call& call, int at, const StateSizes& sizes, int64_t rows)
      : sizes_(sizes),
        pool_(call.input(at).as<float>()),
        ancestry_(ancestry_of(call, at + 2, rows, call.input(at).dims[0])) {
    const Tensor states = call.input(at + 1), carry = call.input(at + 7);
    states.check("states", F32, {-1, sizes.value_heads, sizes.strips(), sizes.key_size, 16});
    carry.check("carry", I32, {ancestry_.sequences, 4});
    states_ = states.as<float>();
    slots_ = states.dims[0];
    carry_ = carry.as<Carry>();
  }

  const Ancestry& ancestry() const { return ancestry_; }
  int64_t places() const { return 2 * ancestry_.rows + 3 * ancestry_.sequences; }
  float* slot_of(int64_t row) const { return slot(ancestry_.write[row]); }

  // Checks where rows belong; `memory` has `places()` numbers.
  void find(int32_t* memory) {
    last_child_ = memory;
    home_ = last_child_ + ancestry_.rows;
    first_ = home_ + ancestry_.rows;
    last_ = first_ + ancestry_.sequences;
    homes_ = last_ + ancestry_.sequences;
    find_rows();
    check_carry();
    find_homes();
  }

  // Computes all states. row(r, h, s, step, result) is what row r does with strip s of head h: it
  // fills `result` [16], and makes the step. finish(r, h, result) has the head's results.
  template <class Row, class Finish>
  void run(const Call& call, const Row& row, const Finish& finish) const {
    call.parallel(ancestry_.sequences * sizes_.value_heads, [&](int64_t part) {
      const int64_t b = part / sizes_.value_heads, h = part % sizes_.value_heads;
      const int64_t begin = first_[b], padded = sizes_.padded();
      const int64_t memory = (1 + homes_[b]) * sizes_.strip();
      const int64_t numbers = (last_[b] - begin) * padded;
      Space own(Scratch::Own, Space::bytes_of<float>(memory) + Space::bytes_of<float>(numbers));
      float* homes = own.take<float>(memory);
      float* results = own.take<float>(numbers);
      for (int64_t s = 0; s < sizes_.strips(); ++s)
        strip(b, h, s, homes, [&](int64_t r, const DeltaStep& step) {
          row(r, h, s, step, results + (r - begin) * padded + 16 * s);
        });
      for (int64_t r = begin; r < last_[b]; ++r) finish(r, h, results + (r - begin) * padded);
    });
  }

 private:
  struct Carry {
    int32_t from, to, held, certain;
  };

  float* slot(int64_t number) const { return pool_ + number * sizes_.numbers(); }

  void find_rows() const {
    const Ancestry& a = ancestry_;
    for (int64_t b = 0; b < a.sequences; ++b) first_[b] = last_[b] = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      const int32_t b = a.sequence[r];
      if (!last_[b]) first_[b] = int32_t(r);
      else if (last_[b] != r) refuse("rows of sequence %d do not lie together", b);
      last_[b] = int32_t(r) + 1;
    }
  }

  void check_carry() const {
    const Ancestry& a = ancestry_;
    for (int64_t b = 0; b < a.sequences; ++b) {
      const auto [from, to, held, certain] = carry_[b];
      const int64_t first = first_[b], trunk = first + certain;
      if (from < -1 || from >= slots_ || to < -1 || to >= slots_)
        refuse("sequence %lld has states %d and %d of %lld", (long long)b, from, to,
               (long long)slots_);
      if (held < 0 || held > a.starts[b + 1] - a.starts[b] || (from < 0 && held))
        refuse("the state of sequence %lld has %d of its rows", (long long)b, held);
      if (certain < 0 || trunk > last_[b])
        refuse("%d rows of sequence %lld are certain", certain, (long long)b);
      for (int64_t r = first; certain && r < last_[b]; ++r) {
        const int64_t parent = r == first ? -1 : std::min(r, trunk) - 1;
        if (r < trunk ? a.parent[r] != parent : a.parent[r] < parent)
          refuse("row %lld must follow the certain rows of its sequence", (long long)r);
      }
      for (int64_t other = 0; to >= 0 && other < a.sequences; ++other)
        if (other != b && (carry_[other].from == to || carry_[other].to == to))
          refuse("sequences %lld and %lld have state %d", (long long)b, (long long)other, to);
    }
  }

  // A row's last child takes over the memory of the row's state, which no other row needs then.
  void find_homes() const {
    const Ancestry& a = ancestry_;
    for (int64_t r = 0; r < a.rows; ++r) {
      last_child_[r] = -1;
      if (a.parent[r] >= 0) last_child_[a.parent[r]] = int32_t(r);
    }
    for (int64_t b = 0; b < a.sequences; ++b) {
      homes_[b] = 0;
      const int64_t trunk = first_[b] + carry_[b].certain;
      for (int64_t r = trunk; r < last_[b]; ++r) {
        const int32_t p = a.parent[r];
        if (last_child_[r] < 0) continue;
        home_[r] = p >= trunk && last_child_[p] == r ? home_[p] : homes_[b]++;
      }
    }
  }

  // Computes the 16 columns from 16 * s on of head h of the state, for the rows of sequence b.
  template <class Row>
  void strip(int64_t b, int64_t h, int64_t s, float* homes, const Row& row) const {
    const Ancestry& a = ancestry_;
    const auto [from, to, held, certain] = carry_[b];
    const int64_t strip = sizes_.strip(), strips = sizes_.strips();
    const auto stored = [&](int64_t n) {
      return states_ + ((n * sizes_.value_heads + h) * strips + s) * strip;
    };
    const auto step_of = [&](int64_t number, const float* before, float* after) {
      float* kept = slot(number);
      return DeltaStep{before, after, sizes_.key_size,
                       kept + sizes_.key_at() + sizes_.key_head(h) * sizes_.key_size,
                       kept + sizes_.decay_at() + h * sizes_.decay_size,
                       sizes_.decay_size,
                       kept + sizes_.added_at() + h * sizes_.padded() + 16 * s};
    };
    float* after = to < 0 ? homes : stored(to);
    const float* state = from < 0 ? homes : stored(from);
    if (from < 0) std::memset(homes, 0, sizeof(float) * size_t(strip));
    for (int64_t i = a.starts[b] + held; i < a.starts[b + 1]; ++i) {
      kernels().delta_step(step_of(a.context[i], state, after));
      state = after;
    }
    const int64_t trunk = first_[b] + certain;
    for (int64_t r = first_[b]; r < trunk; ++r) {
      row(r, step_of(a.write[r], state, after));
      state = after;
    }
    if (to >= 0 && state != after) std::memcpy(after, state, sizeof(float) * size_t(strip));
    for (int64_t r = trunk; r < last_[b]; ++r) {
      const int32_t p = a.parent[r];
      row(r, step_of(a.write[r], p < trunk ? state : homes + (1 + home_[p]) * strip,
                     last_child_[r] < 0 ? nullptr : homes + (1 + home_[r]) * strip));
    }
  }

  StateSizes sizes_;
  float* pool_;
  float* states_;
  int64_t slots_;
  Ancestry ancestry_;
  const Carry* carry_;
  int32_t* first_;       // [B] rows of each sequence
  int32_t* last_;        // [B]
  int32_t* last_child_;  // [S] -1: none
  int32_t* home_;        // [S] number of the memory for a row's state
  int32_t* homes_;       // [B] how many of them there are
};

}  // namespace edgespec
