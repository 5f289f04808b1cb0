#include "../kernels/selective_scan.h"

#include "bindings.h"

namespace lavagna {
namespace {

// What all three kernels are given: sequences, sizes, options, tensors.
using Given = std::tuple<Address, Int, Int, Int, Int, Int,  //
                         bool, double, double,              //
                         Address, Int, Address, Int, Address, Int, Address, Address, Int, Int, Address, Int, Int, Address,
                         Address, Address>;

template <class T>
SelectiveScan<T> arguments(const Given& given) {
  const auto [bounds, count, tokens, channels, states, groups,                                        //
              softplus, low, high,                                                                    //
              x, x_row, dt, dt_row, z, z_row, A, B, B_row, B_group, C, C_row, C_group, D, dt_bias,    //
              state] = given;
  SelectiveScan<T> a{};
  a.sequences = {at<const Int>(bounds), count, tokens};
  a.channels = channels;
  a.states = states;
  a.groups = groups;
  a.softplus = softplus;
  a.low = static_cast<T>(low);
  a.high = static_cast<T>(high);
  a.x = {at<const T>(x), x_row};
  a.dt = {at<const T>(dt), dt_row};
  a.z = {at<const T>(z), z_row};
  a.A = at<const T>(A);
  a.B = {at<const T>(B), B_row, B_group};
  a.C = {at<const T>(C), C_row, C_group};
  a.D = at<const T>(D);
  a.dt_bias = at<const T>(dt_bias);
  a.state = at<const T>(state);
  return a;
}

template <class T>
Int blocks(const SelectiveScan<T>& a, Int wide) {
  return a.groups * selective_scan_blocks(a.channels / a.groups, wide);
}

template <class T>
void forward(int threads, const Given& given, Address y, Address final, Address kept) {
  SelectiveScan<T> a = arguments<T>(given);
  constexpr Int wide = selective_scan_forward_channels;
  const Int tasks = blocks(a, wide) * a.sequences.count;
  const Scratch scratch(team(threads, tasks) * selective_scan_scratch(a.states, false) * Int{sizeof(T)});
  a.y = at<T>(y);
  a.final = at<T>(final);
  a.kept = at<T>(kept);
  a.scratch = scratch.as<T>();
  parallel(threads, tasks, selective_scan().forward[sizeof(T) == 8], &a);
}

template <class T>
void backward(int threads, const Given& given, Int rows, Int pieces, Address kept, Address dy, Int dy_row,
              Address d_final, Address dx, Address d_dt, Address dA, Address dB, Address dC, Address dD, Address dz,
              Address d_bias, Address d_state) {
  SelectiveScan<T> a = arguments<T>(given);
  const Int tasks = a.channels == 0 ? 0 : a.groups * pieces * a.sequences.count;
  const Scratch scratch(team(threads, tasks) * selective_scan_scratch(a.states, true) * Int{sizeof(T)});
  a.scratch = scratch.as<T>();
  a.rows = rows;
  a.pieces = pieces;
  a.kept = at<T>(kept);
  a.dy = {at<const T>(dy), dy_row};
  a.d_final = at<const T>(d_final);
  a.dx = at<T>(dx);
  a.d_dt = at<T>(d_dt);
  a.dA = at<T>(dA);
  a.dB = at<T>(dB);
  a.dC = at<T>(dC);
  a.dD = at<T>(dD);
  a.dz = at<T>(dz);
  a.d_bias = at<T>(d_bias);
  a.d_state = at<T>(d_state);
  parallel(threads, tasks, selective_scan().backward[sizeof(T) == 8], &a);
}

// States from which on a step is shared: 20 µs of one thread. A second one that has just worked would be worth 2 µs in 8
// at a third of them; one that must be woken, or shares its core with others, costs many times that.
constexpr Int worth_sharing = Int{1} << 16;

template <class T>
void step(int threads, const Given& given, Address y, Address final) {
  SelectiveScan<T> a = arguments<T>(given);
  a.y = at<T>(y);
  a.final = at<T>(final);
  const SelectiveScanKernels& kernels = selective_scan();
  const bool shared = a.sequences.count * a.channels * a.states >= worth_sharing;
  const Int tasks = blocks(a, selective_scan_strip) * a.sequences.count;
  parallel(shared ? threads : 1, tasks, kernels.step[sizeof(T) == 8], &a);
}

// Numbers in the states that `forward` keeps for `backward`.
Int kept(Int rows, Int count, Int channels, Int states, Int groups) {
  const Int lines = groups * selective_scan_blocks(channels / groups, selective_scan_lanes) * selective_scan_lanes;
  return (rows / selective_scan_tile + count) * lines * selective_scan_padded(states);
}

// Into how many pieces the channels of a group are cut, so that the threads have enough to do: each piece has a partial
// sum of dB and dC.
Int pieces(Int threads, Int channels, Int groups) {
  const Int vectors = selective_scan_blocks(channels / groups, selective_scan_lanes);
  const Int wanted = vectors < 1 || groups >= threads ? 1 : selective_scan_blocks(threads, groups);
  const Int each = selective_scan_blocks(vectors, wanted);
  return each < 1 ? 1 : selective_scan_blocks(vectors, each);
}

}  // namespace
}  // namespace lavagna

void bind_selective_scan(nb::module_& module) {
  using namespace lavagna;
  module.def("selective_scan_kept", &kept);
  module.def("selective_scan_pieces", &pieces);
  module.def("selective_scan_forward_float32", playable<&forward<float>>, Unlocked());
  module.def("selective_scan_forward_float64", playable<&forward<double>>, Unlocked());
  module.def("selective_scan_backward_float32", &backward<float>, Unlocked());
  module.def("selective_scan_backward_float64", &backward<double>, Unlocked());
  module.def("selective_scan_step_float32", playable<&step<float>>, Unlocked());
  module.def("selective_scan_step_float64", playable<&step<double>>, Unlocked());
}
