#pragma once

#include <cstdint>

namespace lavagna {

// Ask the system to hold these bytes in pages of 2 MB; what they hold stays as it is. With pages of 4 KB a stream over
// weights is stopped 512 times as often by the search for the next page. Only whole large pages inside the range are
// touched. Does nothing where the system has no such pages, or none to give.
void gather_pages(std::uintptr_t address, std::int64_t bytes);

// The same for memory that nobody has touched yet: it gets large pages as it is filled. To be handed pages of 4 KB one
// by one takes a quarter of the time of a kernel whose outputs are bigger than what the allocator keeps at hand.
void expect_pages(std::uintptr_t address, std::int64_t bytes);

}  // namespace lavagna
