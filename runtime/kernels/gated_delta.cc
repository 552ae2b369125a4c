// GatedDelta: linear attention by the gated delta rule along the paths of a tree, with the
// convolution before it and the gated norm behind it.
//
// Inputs, with S rows, B sequences, a pool of C slots for rows and one of N slots for states. With
// H value heads, channels are 2 * key_heads * key_size + H * value_size; strips are 16 columns of a
// state, ceil(value_size / 16); a row of the pool has channels + key_heads * key_size + H +
// H * strips * 16 numbers.
//   0 x [S, channels + H * value_size + 2 * H] float32: queries, keys and values before the
//     convolution; gates; rates b; decays a
//   1 weight [size, channels] float32, that of the row itself last
//   2 factor [H], 3 bias [H] float32: a head's decay is exp(factor * softplus(a + bias))
//   4 norm [value_size] float32
//   5 pool [C, numbers] float32: written in place
//   6 states [N, H, strips, key_size, 16] float32: written in place
//   7 write, 8 parent, 9 sequence, 10 recent, 11 starts: int32, like TreeAttention's, with slots of
//     this pool; `recent` has a sequence's last committed rows
//   12 carry [B, 4] int32: of each sequence `from`, `to`, `held` and `certain`, see below
// Output [S, H * value_size]: norm(result) * silu(gate). Attributes: key_heads, value_heads,
// key_size, value_size; eps, of the norm.
//
// A state S becomes S decay + k added by a row, where added = rate (v - k S decay), and the row's
// result is its q times that. A row is computed from its parent's state, and nothing else, always by
// the same operations; so its bits are the same wherever states were stored between.
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
// Yang et al., 2025 (the gated delta rule); Wu et al., 2025 (recurrent layers over trees).
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "recurrent.h"
#include "weights.h"

namespace edgespec {
namespace {

constexpr float UnitEps = 1e-6f;  // of the normalization of queries and keys

struct Sizes {
  int64_t key_heads, value_heads, key_size, value_size;

  int64_t keys() const { return key_heads * key_size; }
  int64_t values() const { return value_heads * value_size; }
  int64_t channels() const { return 2 * keys() + values(); }
  int64_t strips() const { return (value_size + 15) / 16; }
  int64_t strip() const { return key_size * 16; }
  // Where parts of a row of the pool begin, behind the channels.
  int64_t key_at() const { return channels(); }
  int64_t decay_at() const { return channels() + keys(); }
  int64_t added_at() const { return decay_at() + value_heads; }
  int64_t numbers() const { return added_at() + value_heads * strips() * 16; }
};

struct Carry {
  int32_t from, to, held, certain;
};

// A call's rows, and what is computed of them before states.
struct Rows {
  Ancestry ancestry;
  const Carry* carry;
  float* pool;
  float* states;
  float* mixed;         // [S, channels] convolved; queries and keys of unit length
  float* rates;         // [S, value heads]
  float* likeness;      // [S, key heads] of query and key
  int32_t* first;       // [B] rows of each sequence
  int32_t* last;        // [B]
  int32_t* last_child;  // [S] -1: none
  int32_t* home;        // [S] number of the memory for a row's state
  int32_t* homes;       // [B] how many of them there are
};

class GatedDelta : public Operator {
 public:
  explicit GatedDelta(const Attributes& a)
      : sizes_{a.integer("key_heads", 0), a.integer("value_heads", 0), a.integer("key_size", 0),
               a.integer("value_size", 0)},
        eps_(a.real("eps", 0.0f)) {
    const auto [key_heads, heads, key_size, value_size] = sizes_;
    if (key_heads < 1 || heads < 1 || heads > 4096 || heads % key_heads || key_size < 1 ||
        key_size > MostSize || value_size < 1 || value_size > MostSize)
      refuse("%lld heads of %lld with %lld key heads of %lld", (long long)heads,
             (long long)value_size, (long long)key_heads, (long long)key_size);
  }

  void compute(const Call& call) override {
    const int64_t heads = sizes_.value_heads, channels = sizes_.channels(), values = sizes_.values();
    const Tensor x = call.input(0), factor = call.input(2), bias = call.input(3);
    const Tensor norm = call.input(4), pool = call.input(5), states = call.input(6);
    const Tensor carry = call.input(12);
    const int64_t width = channels + values + 2 * heads;
    x.check("x", F32, {-1, width});
    factor.check("factor", F32, {heads});
    bias.check("bias", F32, {heads});
    norm.check("norm", F32, {sizes_.value_size});
    states.check("states", F32, {-1, heads, sizes_.strips(), sizes_.key_size, 16});
    const Convolution convolution = convolution_of(call.input(1), channels, pool, sizes_.numbers());
    const int64_t rows = x.dims[0];
    Rows all{};
    all.ancestry = ancestry_of(call, 7, rows, pool.dims[0]);
    const int64_t sequences = all.ancestry.sequences;
    carry.check("carry", I32, {sequences, 4});
    all.carry = carry.as<Carry>();
    all.pool = pool.as<float>();
    all.states = states.as<float>();
    float* out = call.output(0, {rows, values});

    Space space(Scratch::Shared, Space::bytes_of<float>(rows * channels) +
                                     Space::bytes_of<float>(rows * heads) +
                                     Space::bytes_of<float>(rows * sizes_.key_heads) +
                                     Space::bytes_of<int32_t>(2 * rows + 3 * sequences));
    all.mixed = space.take<float>(rows * channels);
    all.rates = space.take<float>(rows * heads);
    all.likeness = space.take<float>(rows * sizes_.key_heads);
    all.last_child = space.take<int32_t>(2 * rows + 3 * sequences);
    all.home = all.last_child + rows;
    all.first = all.home + rows;
    all.last = all.first + sequences;
    all.homes = all.last + sequences;
    find_rows(all);
    check_carry(all, states.dims[0]);
    find_homes(all);

    call.each(rows, [&](int64_t r) {
      std::memcpy(slot(all, all.ancestry.write[r]), x.as<float>() + r * width,
                  sizeof(float) * size_t(channels));
    });
    call.each(rows, [&](int64_t r) {
      const float* gates = x.as<float>() + r * width + channels + values;
      convolution.apply(all.ancestry, r, all.mixed + r * channels);
      prepare(all, r);
      float* rates = all.rates + r * heads;
      std::fill_n(rates, heads, 1.0f);
      kernels().sigmoid_gate(gates, rates, heads);
      kernels().decays(gates + heads, bias.as<float>(), factor.as<float>(),
                       slot(all, all.ancestry.write[r]) + sizes_.decay_at(), heads);
    });
    call.parallel(sequences * heads, [&](int64_t part) {
      const int64_t b = part / heads, h = part % heads, size = sizes_.value_size;
      const int64_t first = all.first[b], count = all.last[b] - first, padded = sizes_.strips() * 16;
      const int64_t memory = (1 + all.homes[b]) * sizes_.strip();
      Space own(Scratch::Own, Space::bytes_of<float>(memory) + Space::bytes_of<float>(count * padded));
      float* homes = own.take<float>(memory);
      float* results = own.take<float>(count * padded);
      for (int64_t s = 0; s < sizes_.strips(); ++s) strip(all, b, h, s, homes, results);
      for (int64_t r = first; r < first + count; ++r) {
        float* result = results + (r - first) * padded;
        const float* gate = x.as<float>() + r * width + channels + h * size;
        kernels().norm(result, norm.as<float>(), eps_, result, size);
        kernels().gate({Gate::Silu, 1.0f, 0.0f}, gate, result, out + r * values + h * size, size);
      }
    });
  }

 private:
  static constexpr int64_t MostSize = 1024;

  float* slot(const Rows& all, int64_t number) const { return all.pool + number * sizes_.numbers(); }

  static void find_rows(const Rows& all) {
    const Ancestry& a = all.ancestry;
    for (int64_t b = 0; b < a.sequences; ++b) all.first[b] = all.last[b] = 0;
    for (int64_t r = 0; r < a.rows; ++r) {
      const int32_t b = a.sequence[r];
      if (!all.last[b]) all.first[b] = int32_t(r);
      else if (all.last[b] != r) refuse("rows of sequence %d do not lie together", b);
      all.last[b] = int32_t(r) + 1;
    }
  }

  static void check_carry(const Rows& all, int64_t slots) {
    const Ancestry& a = all.ancestry;
    for (int64_t b = 0; b < a.sequences; ++b) {
      const auto [from, to, held, certain] = all.carry[b];
      const int64_t first = all.first[b], trunk = first + certain;
      if (from < -1 || from >= slots || to < -1 || to >= slots)
        refuse("sequence %lld has states %d and %d of %lld", (long long)b, from, to, (long long)slots);
      if (held < 0 || held > a.starts[b + 1] - a.starts[b] || (from < 0 && held))
        refuse("the state of sequence %lld has %d of its rows", (long long)b, held);
      if (certain < 0 || trunk > all.last[b])
        refuse("%d rows of sequence %lld are certain", certain, (long long)b);
      for (int64_t r = first; certain && r < all.last[b]; ++r) {
        const int64_t parent = r == first ? -1 : std::min(r, trunk) - 1;
        if (r < trunk ? a.parent[r] != parent : a.parent[r] < parent)
          refuse("row %lld must follow the certain rows of its sequence", (long long)r);
      }
      for (int64_t other = 0; to >= 0 && other < a.sequences; ++other)
        if (other != b && (all.carry[other].from == to || all.carry[other].to == to))
          refuse("sequences %lld and %lld have state %d", (long long)b, (long long)other, to);
    }
  }

  // A row's last child takes over the memory of the row's state, which no other row needs then.
  static void find_homes(const Rows& all) {
    const Ancestry& a = all.ancestry;
    for (int64_t r = 0; r < a.rows; ++r) {
      all.last_child[r] = -1;
      if (a.parent[r] >= 0) all.last_child[a.parent[r]] = int32_t(r);
    }
    for (int64_t b = 0; b < a.sequences; ++b) {
      all.homes[b] = 0;
      const int64_t trunk = all.first[b] + all.carry[b].certain;
      for (int64_t r = trunk; r < all.last[b]; ++r) {
        const int32_t p = a.parent[r];
        if (all.last_child[r] < 0) continue;
        all.home[r] = p >= trunk && all.last_child[p] == r ? all.home[p] : all.homes[b]++;
      }
    }
  }

  // Finishes a row's queries, keys and values; its keys go to its slot, too.
  void prepare(const Rows& all, int64_t row) const {
    const int64_t size = sizes_.key_size, keys = sizes_.keys();
    float* mixed = all.mixed + row * sizes_.channels();
    float* kept = slot(all, all.ancestry.write[row]) + sizes_.key_at();
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
      all.likeness[row * sizes_.key_heads + h] = total;
    }
  }

  // Computes the 16 columns from 16 * s on of head h of the state, for the rows of sequence b.
  void strip(const Rows& all, int64_t b, int64_t h, int64_t s, float* homes, float* results) const {
    const Ancestry& a = all.ancestry;
    const auto [from, to, held, certain] = all.carry[b];
    const int64_t strip = sizes_.strip(), strips = sizes_.strips(), padded = 16 * strips;
    const int64_t size = sizes_.value_size, count = std::min<int64_t>(16, size - 16 * s);
    const int64_t key_head = h * sizes_.key_heads / sizes_.value_heads;
    const auto stored = [&](int64_t n) {
      return all.states + ((n * sizes_.value_heads + h) * strips + s) * strip;
    };
    const auto step_of = [&](int64_t slot_, const float* before, float* after) {
      float* kept = slot(all, slot_);
      return DeltaStep{before, after, sizes_.key_size,
                       kept + sizes_.key_at() + key_head * sizes_.key_size,
                       kept[sizes_.decay_at() + h], kept + sizes_.added_at() + h * padded + 16 * s};
    };
    const auto row = [&](int64_t r, const float* before, float* after) {
      const float* mixed = all.mixed + r * sizes_.channels();
      float v[16] = {};
      std::memcpy(v, mixed + 2 * sizes_.keys() + h * size + 16 * s, sizeof(float) * size_t(count));
      kernels().delta_row(step_of(a.write[r], before, after),
                          {mixed + key_head * sizes_.key_size, v,
                           all.rates[r * sizes_.value_heads + h],
                           all.likeness[r * sizes_.key_heads + key_head],
                           results + (r - all.first[b]) * padded + 16 * s});
    };

    float* after = to < 0 ? homes : stored(to);
    const float* state = from < 0 ? homes : stored(from);
    if (from < 0) std::memset(homes, 0, sizeof(float) * size_t(strip));
    for (int64_t i = a.starts[b] + held; i < a.starts[b + 1]; ++i) {
      kernels().delta_step(step_of(a.context[i], state, after));
      state = after;
    }
    const int64_t trunk = all.first[b] + certain;
    for (int64_t r = all.first[b]; r < trunk; ++r) {
      row(r, state, after);
      state = after;
    }
    if (to >= 0 && state != after) std::memcpy(after, state, sizeof(float) * size_t(strip));
    for (int64_t r = trunk; r < all.last[b]; ++r) {
      const int32_t p = a.parent[r];
      row(r, p < trunk ? state : homes + (1 + all.home[p]) * strip,
          all.last_child[r] < 0 ? nullptr : homes + (1 + all.home[r]) * strip);
    }
  }

  Sizes sizes_;
  float eps_;
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
