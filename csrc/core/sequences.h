#pragma once

#include <cstdint>

namespace lavagna {

// Sequences that lie one behind the other in rows of tokens: a batch of equal lengths, or packed ones.
struct Sequences {
  const std::int64_t* bounds;  // count + 1 of them, or null for equal lengths
  std::int64_t count;
  std::int64_t tokens;  // of each, where they are equal

  std::int64_t begin(std::int64_t m) const { return bounds != nullptr ? bounds[m] : m * tokens; }
  std::int64_t length(std::int64_t m) const { return bounds != nullptr ? bounds[m + 1] - bounds[m] : tokens; }
};

}  // namespace lavagna
