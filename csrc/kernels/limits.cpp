// The rates of the machine: multiply-adds, exponentials, reading memory, changing it in place.
#include "limits.h"

#include "../core/vec.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

// Enough independent sums to fill two units of four cycles' latency, and they fit into 16 registers.
constexpr int chains = 10;

void multiply_add(const void* arguments, std::int64_t begin, std::int64_t end, int) {
  const Limits& a = *static_cast<const Limits*>(arguments);
  for (std::int64_t task = begin; task < end; ++task) {
    const VecF factor = splat(a.data[0]);
    const VecF summand = splat(a.data[1]);
    VecF sums[chains];
    for (int i = 0; i < chains; ++i) sums[i] = splat(a.data[2 + i]);
    for (std::int64_t r = 0; r < a.repeats; ++r)
      LAVAGNA_UNROLL
      for (int i = 0; i < chains; ++i) sums[i] = sums[i] * factor + summand;
    for (int i = 1; i < chains; ++i) sums[0] += sums[i];
    a.sums[task] = sum<float>(sums[0]);
  }
}

void exponentials(const void* arguments, std::int64_t begin, std::int64_t end, int) {
  const Limits& a = *static_cast<const Limits*>(arguments);
  for (std::int64_t task = begin; task < end; ++task) {
    VecF sums[4] = {};
    for (std::int64_t r = 0; r < a.repeats; ++r)
      for (std::int64_t i = 0; i + 4 * lanes<float> <= a.count; i += 4 * lanes<float>)
        LAVAGNA_UNROLL
        for (int j = 0; j < 4; ++j) sums[j] += exp<float>(load(a.data + i + j * lanes<float>));
    a.sums[task] = sum<float>(sums[0] + sums[1] + sums[2] + sums[3]);
  }
}

std::int64_t end_of(const Limits& a, std::int64_t task) {
  const std::int64_t end = (task + 1) * limits_piece;
  return end < a.count ? end : a.count;
}

void read(const void* arguments, std::int64_t begin, std::int64_t end, int) {
  const Limits& a = *static_cast<const Limits*>(arguments);
  for (std::int64_t task = begin; task < end; ++task) {
    VecF sums[8] = {};
    for (std::int64_t i = task * limits_piece; i + 8 * lanes<float> <= end_of(a, task); i += 8 * lanes<float>)
      LAVAGNA_UNROLL
      for (int j = 0; j < 8; ++j) sums[j] += load(a.data + i + j * lanes<float>);
    for (int j = 1; j < 8; ++j) sums[0] += sums[j];
    a.sums[task] = sum<float>(sums[0]);
  }
}

void update(const void* arguments, std::int64_t begin, std::int64_t end, int) {
  const Limits& a = *static_cast<const Limits*>(arguments);
  const VecF factor = splat(0.999f);
  for (std::int64_t task = begin; task < end; ++task)
    for (std::int64_t i = task * limits_piece; i + 8 * lanes<float> <= end_of(a, task); i += 8 * lanes<float>)
      LAVAGNA_UNROLL
      for (int j = 0; j < 8; ++j)
        store(a.data + i + j * lanes<float>, load(a.data + i + j * lanes<float>) * factor);
}

}  // namespace

const LimitsKernels limits = {multiply_add, chains * lanes<float>, exponentials, read, update};

}  // namespace lavagna::LAVAGNA_ISA
