// TreeAttention: rotates queries and keys, writes keys and values to free slots of the pool, and
// attends: a row sees its sequence's committed slots in order, then its ancestors in the call.
//
// Inputs, with S rows, B sequences and a pool of C slots, whose rows have D = head_dim, rounded up
// to a multiple of 16 and filled with zeros:
//   0 qkv [S, heads * hd (twice if `gated`: each head's query, then its gate) + keys + values]
//   1 cos, 2 sin [S, rotated / 2] float32, optional: of the first `rotated` elements of a head
//   3 pool [2, kv_heads, C, D] float32, float16 or int8: written in place
//   4 scales [2, kv_heads, C] float32, of an int8 pool: written in place
//   5 write [S] int32: the slot of each row
//   6 parent [S] int32: the number of an earlier row of the call; -1: the sequence's last slot
//   7 sequence [S] int32: the row's sequence
//   8 context [P] int32: committed slots, sequence after sequence, each in order
//   9 starts [B + 1] int32: where each sequence begins in `context`, and the end
//   10 q_norm, 11 k_norm [hd] or [heads * hd] float32, optional; 12 sinks [heads] float32, optional
//   13 key_scale [kv_heads, hd] float32, optional: keys are kept times these powers of two, and
//     queries divided by them, where an int8 pool would lose small elements beside large ones
//   14 visibility [S] int32, optional: how many rows behind a row the one is whose slots it sees,
//     its own and its ancestors', instead of its own path; -1: it sees nothing, and is only written
//   15 slopes [heads] float32, optional: what is taken off a head's scores for each position
//     between query and key (ALiBi: Press et al., 2022)
//   16 nearness [heads, 2 * reach + 1] float32, optional: what is added to a head's scores of keys
//     from `reach` positions before the query to as many behind it; farther ones have the last of
//     these (T5's buckets, spread out: Raffel et al., 2020)
// Output [S, heads * hd]. Attributes: heads, kv_heads, head_dim, scale; soft_cap, window (0: none);
// chunked: texts are cut into chunks of `window` positions, and a row sees its own chunk alone;
// gated; q_eps, k_eps, v_eps (0: no norm); norm_after_rope; source: `own` keys and values, `keys`
// (which are the values, too, before norm and rotation), or `other` (another layer's, already in
// the pool).
//
// Milakov and Gimelshein, 2018 (online softmax); Miao et al., 2024 (trees of tokens in one pass).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "half.h"
#include "kernels.h"
#include "op.h"
#include "paths.h"
#include "weights.h"

namespace edgespec {
namespace {

constexpr int MostQueries = 64;  // of a part
// Parts where there are heads enough: each reads the keys again, so there are no more than keep some
// threads busy. What asks for their number may read a file.
const int64_t LeastParts = std::min(4u, std::thread::hardware_concurrency());

int64_t size_of(CacheType type) { return type == CacheType::F32 ? 4 : type == CacheType::F16 ? 2 : 1; }

struct Shape {
  int64_t heads, kv_heads, head_dim, dim;  // dim: of the pool's rows
  float scale, soft_cap;
  int64_t window;
  bool chunked, gated, norm_after_rope, writes, has_values;
  float q_eps, k_eps, v_eps;
};

// The slots that the rows of a call see. Rows that follow each other without a fork are a branch.
struct Paths : Ancestry {
  int32_t* depth;    // [S] ancestors in the call
  int32_t* branch;   // [S]
  int32_t* offset;   // [branches] of a branch's slots, from the sequence's end on
  int32_t* slots;
  const int32_t* visibility;  // null: each row sees its own path

  int64_t position(int64_t row) const { return length(row) + depth[row]; }
  const int32_t* committed(int64_t row) const { return context + starts[sequence[row]]; }
  const int32_t* behind(int64_t row) const { return slots + offset[branch[row]]; }
  // The row whose path a row sees, and the position behind the last one of it.
  int64_t seen(int64_t row) const {
    return visibility && visibility[row] > 0 ? row + visibility[row] : row;
  }
  int64_t end(int64_t row) const {
    return visibility && visibility[row] < 0 ? 0 : position(seen(row)) + 1;
  }
};

// Writes depths and branches; returns how many slots all branches have together.
int64_t find_branches(Paths& paths, int32_t* extended) {
  int64_t slots = 0, count = 0;
  for (int64_t r = 0; r < paths.rows; ++r) {
    const int32_t p = paths.parent[r];
    paths.depth[r] = p < 0 ? 0 : paths.depth[p] + 1;
    extended[r] = 0;
    if (p >= 0 && !extended[p]) {
      extended[p] = 1;
      paths.branch[r] = paths.branch[p];
    } else {
      paths.branch[r] = int32_t(count);
      paths.offset[count++] = paths.depth[r];
    }
    paths.offset[paths.branch[r]] = std::max(paths.offset[paths.branch[r]], paths.depth[r]);
  }
  for (int64_t b = 0; b < count; ++b) {
    const int64_t length = paths.offset[b] + 1;
    paths.offset[b] = int32_t(slots);
    slots += length;
  }
  if (slots > INT32_MAX) refuse("the rows' ancestors are too many");
  return slots;
}

void fill_branches(const Paths& paths) {
  for (int64_t r = 0; r < paths.rows; ++r) {
    const int32_t p = paths.parent[r];
    int32_t* own = paths.slots + paths.offset[paths.branch[r]];
    if (p >= 0 && paths.branch[p] != paths.branch[r])
      std::memcpy(own, paths.behind(p), sizeof(int32_t) * size_t(paths.depth[r]));
    own[paths.depth[r]] = paths.write[r];
  }
}

void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t d = 0; d < half; ++d) {
    const float a = x[d], b = x[d + half];
    x[d] = a * cos[d] - b * sin[d];
    x[d + half] = b * cos[d] + a * sin[d];
  }
}

// Queries or keys of a row, normalized and rotated in place.
struct NormRope {
  const float* weight;  // null: ones
  float eps;            // 0: no norm
  bool whole;           // all heads as one vector
  const float* cos;
  const float* sin;
  int64_t half;

  void norms(float* x, int64_t heads, int64_t dim) const {
    if (eps == 0.0f) return;
    if (whole) return kernels().norm(x, weight, eps, x, heads * dim);
    for (int64_t h = 0; h < heads; ++h) kernels().norm(x + h * dim, weight, eps, x + h * dim, dim);
  }
  void apply(float* x, int64_t heads, int64_t dim, bool norm_last) const {
    if (!norm_last) norms(x, heads, dim);
    if (cos)
      for (int64_t h = 0; h < heads; ++h) rotate(x + h * dim, cos, sin, half);
    if (norm_last) norms(x, heads, dim);
  }
};

// What scores get by the positions of query and key.
struct Distances {
  const float* slopes;    // [heads]; null: nothing is taken off
  const float* nearness;  // [heads, 2 * reach + 1]; null: nothing is added
  int64_t reach;
};

// The caches of one layer.
struct Pool {
  CacheType type;
  uint8_t* rows;
  float* scales;
  int64_t heads, slots, dim;

  int64_t number(int64_t plane, int64_t head, int64_t slot) const {
    return (plane * heads + head) * slots + slot;
  }
  const void* row(int64_t number) const { return rows + number * dim * size_of(type); }

  void put(int64_t number, const float* x, int64_t size) const {
    uint8_t* to = rows + number * dim * size_of(type);
    std::memset(to, 0, size_t(dim * size_of(type)));
    if (type == CacheType::F32) {
      std::memcpy(to, x, size_t(size) * 4);
    } else if (type == CacheType::F16) {
      for (int64_t d = 0; d < size; ++d) reinterpret_cast<uint16_t*>(to)[d] = to_half(x[d]);
    } else {
      float largest = 0.0f;
      for (int64_t d = 0; d < size; ++d) largest = std::max(largest, std::fabs(x[d]));
      const bool some = largest >= 1e-30f;
      const float inverse = some ? 127.0f / largest : 0.0f;
      scales[number] = some ? largest / 127.0f : 0.0f;
      for (int64_t d = 0; d < size; ++d)
        reinterpret_cast<int8_t*>(to)[d] =
            int8_t(std::nearbyint(std::max(-127.0f, std::min(127.0f, x[d] * inverse))));
    }
  }
};

// A part of the work: some queries of some rows of a sequence, with one key head.
class Part {
 public:
  Part(const Shape& shape, const Pool& pool, const Paths& paths, int64_t key_head)
      : shape_(shape), pool_(pool), paths_(paths), key_head_(key_head) {}

  // Attends for rows first to last, all of one sequence, and heads from..to of the key head's.
  void attend(int64_t first, int64_t last, int64_t from, int64_t to, const float* queries,
              const float* sinks, const Distances& distances, float* out) {
    const float *slopes = distances.slopes, *nearness = distances.nearness;
    const int64_t reach = distances.reach;
    const int64_t dim = shape_.dim, group = shape_.heads / shape_.kv_heads;
    const int64_t each = to - from, count = (last - first) * each;
    Space space(Scratch::Own,
                Space::bytes_of<float>(2 * BlockPositions * dim + BlockPositions * count) +
                    Space::bytes_of<float>(count * dim));
    block_.scratch = space.take<float>(2 * BlockPositions * dim + BlockPositions * count);
    float* sums = space.take<float>(count * dim);
    std::memset(sums, 0, sizeof(float) * size_t(count * dim));
    for (int64_t r = first; r < last; ++r)
      for (int64_t h = 0; h < each; ++h) {
        const int64_t i = (r - first) * each + h, head = key_head_ * group + from + h;
        all_query_[i] = queries + (r * shape_.heads + head) * dim;
        all_sums_[i] = sums + i * dim;
        all_slopes_[i] = slopes ? slopes[head] : 0.0f;
        all_nearness_[i] = nearness ? nearness + head * (2 * reach + 1) + reach : nullptr;
        states_[i] = sinks ? Softmax{sinks[head], 1.0f} : Softmax{-INFINITY, 0.0f};
      }
    first_ = first;
    each_ = each;
    block_.type = pool_.type;
    block_.dim = dim;
    block_.soft_cap = shape_.soft_cap;
    block_.query = query_;
    block_.first = from_;
    block_.last = to_;
    block_.slope = slopes ? slopes_ : nullptr;
    block_.nearness = nearness ? nearness_ : nullptr;
    block_.reach = int32_t(reach);
    block_.place = places_;
    block_.softmax = softmax_;
    block_.sums = own_sums_;

    int64_t end = 0, begin = INT64_MAX;
    for (int64_t r = first; r < last; ++r) {
      end = std::max(end, paths_.end(r));
      begin = std::min(begin, least(r));
    }
    const int64_t committed = paths_.length(first);
    for (int64_t p = begin / BlockPositions * BlockPositions; p < end; p += BlockPositions) {
      if (p + BlockPositions <= committed) {
        block(p, first, last, -1);
      } else {  // rows of a branch see the same slots
        for (int64_t r = first; r < last; ++r) {
          const int32_t branch = paths_.branch[paths_.seen(r)];
          bool new_branch = true;
          for (int64_t s = first; s < r; ++s) new_branch &= paths_.branch[paths_.seen(s)] != branch;
          if (new_branch) block(p, r, last, branch);
        }
      }
    }
    for (int64_t r = first; r < last; ++r)
      for (int64_t h = 0; h < each; ++h) {
        const int64_t i = (r - first) * each + h;
        const float total = states_[i].total, inverse = total > 0.0f ? 1.0f / total : 0.0f;
        float* to_row = out + (r * shape_.heads + key_head_ * group + from + h) * shape_.head_dim;
        for (int64_t d = 0; d < shape_.head_dim; ++d) to_row[d] = all_sums_[i][d] * inverse;
      }
  }

 private:
  // The first position that a row sees.
  int64_t least(int64_t row) const {
    const int64_t own = paths_.position(row);
    if (!shape_.window) return 0;
    return shape_.chunked ? own - own % shape_.window
                          : std::max<int64_t>(0, own - shape_.window + 1);
  }

  // The block of positions from p on, for rows of a branch (-1: all rows; p's block is committed).
  void block(int64_t p, int64_t first, int64_t last, int32_t branch) {
    int64_t count = 0, begin = BlockPositions, end = 0, example = first;
    for (int64_t r = first; r < last; ++r) {
      if (branch >= 0 && paths_.branch[paths_.seen(r)] != branch) continue;
      const int64_t from = std::max<int64_t>(least(r) - p, 0);
      const int64_t to = std::min<int64_t>(paths_.end(r) - p, BlockPositions);
      if (from >= to) continue;
      if (to > end) example = paths_.seen(r);
      begin = std::min(begin, from);
      end = std::max(end, to);
      for (int64_t h = 0; h < each_; ++h, ++count) {
        const int64_t i = (r - first_) * each_ + h;
        query_[count] = all_query_[i];
        own_sums_[count] = all_sums_[i];
        slopes_[count] = all_slopes_[i];
        nearness_[count] = all_nearness_[i];
        places_[count] = int32_t(paths_.position(r) - p);
        softmax_[count] = &states_[i];
        from_[count] = uint8_t(from);
        to_[count] = uint8_t(to);
      }
    }
    if (!count) return;
    const int64_t committed = paths_.length(example);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t slot = p + i < committed ? paths_.committed(example)[p + i]
                                             : paths_.behind(example)[p + i - committed];
      const int64_t key = pool_.number(0, key_head_, slot), value = pool_.number(1, key_head_, slot);
      block_.keys[i] = pool_.row(key);
      block_.values[i] = pool_.row(value);
      if (pool_.type == CacheType::I8) {
        block_.key_scales[i] = pool_.scales[key];
        block_.value_scales[i] = pool_.scales[value];
      }
    }
    block_.begin = begin;
    block_.end = end;
    block_.queries = count;
    kernels().attend(block_);
  }

  const Shape& shape_;
  const Pool& pool_;
  const Paths& paths_;
  int64_t key_head_, first_ = 0, each_ = 0;
  AttendBlock block_;
  const float* all_query_[MostQueries];
  float* all_sums_[MostQueries];
  float all_slopes_[MostQueries];
  const float* all_nearness_[MostQueries];
  Softmax states_[MostQueries];
  const float* query_[MostQueries];
  float* own_sums_[MostQueries];
  float slopes_[MostQueries];
  const float* nearness_[MostQueries];
  int32_t places_[MostQueries];
  Softmax* softmax_[MostQueries];
  uint8_t from_[MostQueries], to_[MostQueries];
};

class TreeAttention : public Operator {
 public:
  explicit TreeAttention(const Attributes& a) {
    shape_.heads = a.integer("heads", 0);
    shape_.kv_heads = a.integer("kv_heads", 0);
    shape_.head_dim = a.integer("head_dim", 0);
    shape_.dim = (shape_.head_dim + 15) / 16 * 16;
    shape_.scale = a.real("scale", 1.0f);
    shape_.soft_cap = a.real("soft_cap", 0.0f);
    shape_.window = a.integer("window", 0);
    shape_.chunked = a.integer("chunked", 0) != 0;
    shape_.gated = a.integer("gated", 0) != 0;
    shape_.norm_after_rope = a.integer("norm_after_rope", 0) != 0;
    shape_.q_eps = a.real("q_eps", 0.0f);
    shape_.k_eps = a.real("k_eps", 0.0f);
    shape_.v_eps = a.real("v_eps", 0.0f);
    const std::string source = a.text("source");
    if (source != "own" && source != "keys" && source != "other")
      refuse("source '%s' is not known", source.c_str());
    shape_.writes = source != "other";
    shape_.has_values = source == "own";
    if (shape_.head_dim < 1 || shape_.dim > MostHeadDim || shape_.kv_heads < 1 ||
        shape_.heads < 1 || shape_.heads > 4096 || shape_.heads % shape_.kv_heads)
      refuse("%lld heads of %lld with %lld key heads", (long long)shape_.heads,
             (long long)shape_.head_dim, (long long)shape_.kv_heads);
    if (shape_.window < 0) refuse("window is %lld", (long long)shape_.window);
  }

  void compute(const Call& call) override {
    const int64_t heads = shape_.heads, kv = shape_.kv_heads, hd = shape_.head_dim;
    const int64_t asked = heads * hd * (shape_.gated ? 2 : 1);
    const int64_t width = asked + (shape_.writes ? kv * hd : 0) + (shape_.has_values ? kv * hd : 0);
    const Tensor qkv = call.input(0), cos = call.input(1), sin = call.input(2);
    if (qkv.type != F32 || qkv.rank != 2 || qkv.dims[1] != width)
      refuse("qkv must be float32 with rows of %lld", (long long)width);
    const int64_t rows = qkv.dims[0];
    int64_t half = 0;
    if (cos || sin) {
      cos.check("cos", F32, {rows, -1});
      half = cos.dims[1];
      sin.check("sin", F32, {rows, half});
      if (2 * half > hd) refuse("cos has rows of %lld for heads of %lld", (long long)half, (long long)hd);
    }
    const Pool pool = pool_of(call);
    Paths paths{ancestry_of(call, 5, rows, pool.slots), nullptr, nullptr, nullptr, nullptr, nullptr};
    paths.visibility = visibility_of(call, paths);
    const Tensor sinks = call.input(12);
    if (sinks) sinks.check("sinks", F32, {heads});
    const Distances distances = distances_of(call);
    const Tensor scale = call.input(13);
    if (scale) scale.check("key_scale", F32, {kv, hd});
    const float* key_scale = scale ? scale.as<float>() : nullptr;
    const NormRope query_norm_rope = norm_rope(call.input(10), "q_norm", shape_.q_eps, heads, half);
    const NormRope key_norm_rope = norm_rope(call.input(11), "k_norm", shape_.k_eps, kv, half);
    float* out = call.output(0, {rows, heads * hd});
    if (!rows) return;

    std::vector<int32_t>& lists = lists_();
    if (lists.size() < size_t(4 * rows)) lists.resize(size_t(4 * rows));
    paths.depth = lists.data();
    paths.branch = paths.depth + rows;
    paths.offset = paths.branch + rows;
    const int64_t behind = find_branches(paths, paths.offset + rows);
    Space space(Scratch::Shared, Space::bytes_of<float>(rows * heads * shape_.dim) +
                                     Space::bytes_of<int32_t>(behind) +
                                     Space::bytes_of<float>(rows * (width + 1)));
    float* queries = space.take<float>(rows * heads * shape_.dim);
    paths.slots = space.take<int32_t>(behind);
    float* turned = space.take<float>(rows * (width + 1));
    fill_branches(paths);

    const int64_t few = rows < 8 ? 1 : 8;
    call.parallel(few, [&](int64_t part) {
      for (int64_t r = rows * part / few; r < rows * (part + 1) / few; ++r) {
        float* x = turned + r * width;
        std::memcpy(x, qkv.as<float>() + r * width, sizeof(float) * size_t(width));
        NormRope q = query_norm_rope, k = key_norm_rope;
        q.cos = k.cos = half ? cos.as<float>() + r * half : nullptr;
        q.sin = k.sin = half ? sin.as<float>() + r * half : nullptr;
        put_queries(x, q, key_scale, queries + r * heads * shape_.dim);
        if (shape_.writes) put_keys(x + asked, k, key_scale, pool, paths.write[r]);
      }
    });
    attend(call, pool, paths, rows, queries, sinks ? sinks.as<float>() : nullptr, distances, out);
    if (shape_.gated)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h)
          kernels().sigmoid_gate(qkv.as<float>() + r * width + (2 * h + 1) * hd,
                                 out + (r * heads + h) * hd, hd);
  }

 private:
  static std::vector<int32_t>& lists_() {
    static thread_local std::vector<int32_t> lists;
    return lists;
  }

  Pool pool_of(const Call& call) const {
    const Tensor pool = call.input(3), scales = call.input(4);
    if (pool.rank != 4 || pool.dims[0] != 2 || pool.dims[1] != shape_.kv_heads ||
        pool.dims[3] != shape_.dim)
      refuse("pool must be [2, %lld, slots, %lld]", (long long)shape_.kv_heads,
             (long long)shape_.dim);
    Pool found{CacheType::F32, pool.as<uint8_t>(), nullptr, shape_.kv_heads, pool.dims[2], shape_.dim};
    if (pool.type == F16) {
      found.type = CacheType::F16;
    } else if (pool.type == I8) {
      found.type = CacheType::I8;
      scales.check("scales", F32, {2, shape_.kv_heads, pool.dims[2]});
      found.scales = scales.as<float>();
    } else if (pool.type != F32) {
      refuse("pool has elements of type %d", pool.type);
    }
    return found;
  }

  Distances distances_of(const Call& call) const {
    const Tensor slopes = call.input(15), nearness = call.input(16);
    if (slopes) slopes.check("slopes", F32, {shape_.heads});
    Distances found{slopes ? slopes.as<float>() : nullptr, nullptr, 0};
    if (!nearness) return found;
    nearness.check("nearness", F32, {shape_.heads, -1});
    if (nearness.dims[1] % 2 == 0 || nearness.dims[1] > INT32_MAX)
      refuse("nearness has rows of %lld, without a middle", (long long)nearness.dims[1]);
    found.nearness = nearness.as<float>();
    found.reach = nearness.dims[1] / 2;
    return found;
  }

  static const int32_t* visibility_of(const Call& call, const Paths& paths) {
    const Tensor visibility = call.input(14);
    if (!visibility) return nullptr;
    visibility.check("visibility", I32, {paths.rows});
    const int32_t* found = visibility.as<int32_t>();
    for (int64_t r = 0; r < paths.rows; ++r)
      if (found[r] < -1 || found[r] >= paths.rows - r ||
          paths.sequence[r + std::max(found[r], 0)] != paths.sequence[r])
        refuse("row %lld has visibility %d", (long long)r, found[r]);
    return found;
  }

  NormRope norm_rope(const Tensor& weight, const char* name, float eps, int64_t heads,
                  int64_t half) const {
    NormRope found{nullptr, eps, false, nullptr, nullptr, half};
    if (!weight) return found;
    found.whole = weight.rank == 1 && weight.dims[0] != shape_.head_dim;
    weight.check(name, F32, {found.whole ? heads * shape_.head_dim : shape_.head_dim});
    found.weight = weight.as<float>();
    return found;
  }

  void put_queries(float* x, const NormRope& norm_rope, const float* key_scale,
                   float* queries) const {
    const int64_t hd = shape_.head_dim;
    if (shape_.gated)  // close the gaps of the gates
      for (int64_t h = 1; h < shape_.heads; ++h)
        std::memmove(x + h * hd, x + 2 * h * hd, sizeof(float) * size_t(hd));
    norm_rope.apply(x, shape_.heads, hd, shape_.norm_after_rope);
    std::memset(queries, 0, sizeof(float) * size_t(shape_.heads * shape_.dim));
    for (int64_t h = 0; h < shape_.heads; ++h) {
      const float* own = key_scale ? key_scale + h / (shape_.heads / shape_.kv_heads) * hd : nullptr;
      for (int64_t d = 0; d < hd; ++d) {
        const float q = x[h * hd + d] * shape_.scale;
        queries[h * shape_.dim + d] = own ? q / own[d] : q;
      }
    }
  }

  void put_keys(float* x, const NormRope& norm_rope, const float* key_scale, const Pool& pool,
                int32_t slot) const {
    const int64_t hd = shape_.head_dim, kv = shape_.kv_heads;
    float* values = shape_.has_values ? x + kv * hd : x;  // as they are before keys turn
    for (int64_t h = 0; h < kv; ++h) {
      float own[MostHeadDim];
      const float* value = values + h * hd;
      if (shape_.v_eps != 0.0f) {
        kernels().norm(value, nullptr, shape_.v_eps, own, hd);
        value = own;
      }
      pool.put(pool.number(1, h, slot), value, hd);
    }
    norm_rope.apply(x, kv, hd, shape_.norm_after_rope);
    for (int64_t i = 0; key_scale && i < kv * hd; ++i) x[i] *= key_scale[i];
    for (int64_t h = 0; h < kv; ++h) pool.put(pool.number(0, h, slot), x + h * hd, hd);
  }

  // Cuts the work into parts of rows, key heads, and where these are few, of the heads of a key.
  void attend(const Call& call, const Pool& pool, const Paths& paths, int64_t rows,
              const float* queries, const float* sinks, const Distances& distances,
              float* out) const {
    const int64_t group = shape_.heads / shape_.kv_heads;
    int64_t splits = (group + MostQueries - 1) / MostQueries;
    if (rows * shape_.kv_heads * splits < LeastParts)
      splits = std::min(group, (LeastParts + rows * shape_.kv_heads - 1) / (rows * shape_.kv_heads));
    const int64_t heads = (group + splits - 1) / splits;
    splits = (group + heads - 1) / heads;
    const int64_t most = std::max<int64_t>(1, MostQueries / heads);
    std::vector<int32_t>& lists = lists_();  // `extended` is not needed any more
    int32_t* begins = lists.data() + 3 * rows;
    int64_t tiles = 0;
    for (int64_t r = 0; r < rows; ++r)
      if (!r || paths.sequence[r] != paths.sequence[r - 1] || r - begins[tiles - 1] == most)
        begins[tiles++] = int32_t(r);
    const int64_t parts = tiles * shape_.kv_heads * splits;
    call.parallel(parts, [&](int64_t i) {
      // The last rows see most and come first, so that threads end together.
      const int64_t tile = tiles - 1 - i / (shape_.kv_heads * splits);
      const int64_t key_head = i / splits % shape_.kv_heads, from = i % splits * heads;
      const int64_t last = tile + 1 < tiles ? begins[tile + 1] : rows;
      Part part(shape_, pool, paths, key_head);
      part.attend(begins[tile], last, from, std::min(from + heads, group), queries, sinks,
                  distances, out);
    });
  }

  Shape shape_;
};

}  // namespace

Definition& tree_attention() {
  static Definition definition(
      "TreeAttention",
      {{F32}, {F32, Optional}, {F32, Optional}, {Any}, {F32, Optional}, {I32}, {I32}, {I32}, {I32},
       {I32}, {F32, Optional}, {F32, Optional}, {F32, Optional}, {F32, Optional}, {I32, Optional},
       {F32, Optional}, {F32, Optional}},
      [](const Attributes& attributes) -> Operator* { return new TreeAttention(attributes); });
  return definition;
}

}  // namespace edgespec
