#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace lavagna {

// Calls of kernels, written down to be made again: the same functions with the same addresses and sizes.
class Program {
 public:
  template <class Call>
  void add(Call call) {
    calls_.emplace_back(std::move(call));
  }

  void run() const {
    for (const std::function<void()>& call : calls_) call();
  }

  // The program that calls of this thread are added to, or null.
  static Program* recorded();

 private:
  std::vector<std::function<void()>> calls_;
};

}  // namespace lavagna
