// Which rows a row of a call follows: what attention and recurrent layers are told of it.
#pragma once

#include <algorithm>

#include "op.h"

namespace edgespec {

// Inputs of a call with S rows of B sequences, which lie together.
struct Ancestry {
  const int32_t* write;     // [S] the slot that each row is written to
  const int32_t* parent;    // [S] an earlier row of the call; -1: the sequence's last slot
  const int32_t* sequence;  // [S]
  const int32_t* context;   // [P] committed slots, sequence after sequence, each in order
  const int32_t* starts;    // [B + 1] where each sequence begins in `context`, and the end
  int64_t rows, sequences;

  int64_t length(int64_t row) const { return starts[sequence[row] + 1] - starts[sequence[row]]; }

  // The slots of a row's last `count` - 1 ancestors and its own, which is the last; -1: none.
  void trail(int64_t row, int64_t count, int64_t* slots) const {
    const int32_t begin = starts[sequence[row]];
    int32_t next = starts[sequence[row] + 1];
    while (count > 0 && row >= 0) slots[--count] = write[row], row = parent[row];
    while (count > 0) slots[--count] = next > begin ? context[--next] : -1;
  }
};

inline void check_slots(const char* name, const int32_t* slots, int64_t count, int64_t pool) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, uint32_t(slots[i]));
  if (count && largest >= uint32_t(pool))
    refuse("%s has slot %d of a pool of %lld", name, int32_t(largest), (long long)pool);
}

// Checks inputs `first` (write) to `first` + 4 (starts), for some rows and a pool of some slots.
inline Ancestry ancestry_of(const Call& call, int first, int64_t rows, int64_t slots) {
  const Tensor write = call.input(first), parent = call.input(first + 1);
  const Tensor sequence = call.input(first + 2), context = call.input(first + 3);
  const Tensor starts = call.input(first + 4);
  write.check("write", I32, {rows});
  parent.check("parent", I32, {rows});
  sequence.check("sequence", I32, {rows});
  context.check("context", I32, {-1});
  starts.check("starts", I32, {-1});
  if (slots < 1 || slots > INT32_MAX) refuse("pool has %lld slots", (long long)slots);
  check_slots("write", write.as<int32_t>(), rows, slots);
  check_slots("context", context.as<int32_t>(), context.dims[0], slots);
  const Ancestry found{write.as<int32_t>(),   parent.as<int32_t>(), sequence.as<int32_t>(),
                       context.as<int32_t>(), starts.as<int32_t>(), rows,
                       starts.dims[0] - 1};
  if (found.sequences < 0 || found.starts[0] != 0 || found.starts[found.sequences] != context.dims[0])
    refuse("starts must go from 0 to %lld", (long long)context.dims[0]);
  for (int64_t i = 0; i < found.sequences; ++i)
    if (found.starts[i] > found.starts[i + 1]) refuse("starts must ascend");
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t p = found.parent[r], s = found.sequence[r];
    if (s < 0 || s >= found.sequences)
      refuse("row %lld is of sequence %d of %lld", (long long)r, s, (long long)found.sequences);
    if (p < -1 || p >= r) refuse("row %lld has parent %d", (long long)r, p);
    if (p >= 0 && found.sequence[p] != s)
      refuse("rows %d and %lld are of different sequences", p, (long long)r);
  }
  return found;
}

}  // namespace edgespec
