#include "pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace lavagna {
namespace {

#if defined(__linux__) && defined(MADV_HUGEPAGE)
#if defined(MADV_COLLAPSE)
constexpr int collapse = MADV_COLLAPSE;
#else
constexpr int collapse = 25;  // since Linux 6.1; an older one refuses it, and may do it later by itself
#endif

void advise(std::uintptr_t address, std::int64_t bytes, bool now) {
  constexpr std::uintptr_t large = std::uintptr_t(2) << 20;
  const std::uintptr_t begin = (address + large - 1) / large * large;
  const std::uintptr_t end = (address + static_cast<std::uintptr_t>(bytes)) / large * large;
  if (begin >= end) return;
  void* const memory = reinterpret_cast<void*>(begin);
  if (madvise(memory, end - begin, MADV_HUGEPAGE) == 0 && now) madvise(memory, end - begin, collapse);
}
#else
void advise(std::uintptr_t, std::int64_t, bool) {}
#endif

}  // namespace

void gather_pages(std::uintptr_t address, std::int64_t bytes) { advise(address, bytes, true); }

void expect_pages(std::uintptr_t address, std::int64_t bytes) { advise(address, bytes, false); }

}  // namespace lavagna
