// Pieces of a thread's scratch memory, one behind the other; without memory they are only counted.
#pragma once

#include "factors.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

template <class T>
struct Pieces {
  T* memory;
  std::int64_t used = 0;

  // Room for so many numbers, from one cache line to the next.
  T* take(std::int64_t numbers) {
    T* const piece = memory != nullptr ? memory + used : nullptr;
    used += (numbers + 15) / 16 * 16;
    return piece;
  }

  // The factors of `numbers`, of which there are so many: these themselves, or room for their pairs.
  template <class F>
  F* factors(T* numbers, [[maybe_unused]] std::int64_t count) {
    if constexpr (per<F> == 1)
      return numbers;
    else
      return reinterpret_cast<F*>(take(steps<F>(count)));
  }
};

}  // namespace
}  // namespace lavagna::LAVAGNA_ISA
