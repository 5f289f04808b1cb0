// The selective scan: channels in the lanes of vectors, their states in registers, time innermost, a few tokens (a tile)
// at a time. docs/performance/selective_scan.md explains it.
#include "selective_scan.h"

#include "selective_scan_backward.h"
#include "selective_scan_forward.h"
#include "selective_scan_step.h"

namespace lavagna::LAVAGNA_ISA {
namespace {

template <class T>
void run_forward(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const SelectiveScan<T>& a = *static_cast<const SelectiveScan<T>*>(arguments);
  constexpr void (*by_time[2][2])(const SelectiveScan<T>&, std::int64_t, std::int64_t, int) = {
      {forward<T, false, false>, forward<T, false, true>}, {forward<T, true, false>, forward<T, true, true>}};
  by_time[a.B.row != 0][a.C.row != 0](a, begin, end, thread);
}

template <class T>
void run_backward(const void* arguments, std::int64_t begin, std::int64_t end, int thread) {
  const SelectiveScan<T>& a = *static_cast<const SelectiveScan<T>*>(arguments);
  constexpr void (*by_time[2][2])(const SelectiveScan<T>&, std::int64_t, std::int64_t, int) = {
      {backward<T, false, false>, backward<T, false, true>}, {backward<T, true, false>, backward<T, true, true>}};
  by_time[a.B.row != 0][a.C.row != 0](a, begin, end, thread);
}

template <class T>
void run_step(const void* arguments, std::int64_t begin, std::int64_t end, int) {
  const SelectiveScan<T>& a = *static_cast<const SelectiveScan<T>*>(arguments);
  constexpr std::int64_t wide = selective_scan_strip;
  const std::int64_t in_group = a.channels / a.groups;
  const std::int64_t blocks = selective_scan_blocks(in_group, wide);
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t group = task / blocks % a.groups;
    const std::int64_t offset = task % blocks * wide;
    step(a, task / blocks / a.groups, {group, group * in_group + offset, min_of(in_group - offset, wide)});
  }
}

}  // namespace

const SelectiveScanKernels selective_scan = {{run_forward<float>, run_forward<double>},
                                             {run_backward<float>, run_backward<double>},
                                             {run_step<float>, run_step<double>}};

}  // namespace lavagna::LAVAGNA_ISA
