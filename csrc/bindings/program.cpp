#include "program.h"

#include "bindings.h"

namespace lavagna {
namespace {

thread_local Program* current = nullptr;

}  // namespace

Program* Program::recorded() { return current; }

void Program::record(Program* program) { current = program; }

}  // namespace lavagna

void bind_program(nb::module_& module) {
  using namespace lavagna;
  nb::class_<Program>(module, "Program", "Calls of kernels that can be made again without Python.")
      .def(nb::init<>())
      .def("run", &Program::run, Unlocked(), "Make all calls, in their order.")
      .def(
          "record", [](Program& program) { Program::record(&program); },
          "Add the calls that this thread makes from now on, until stop_recording().");
  module.def(
      "stop_recording", [] { Program::record(nullptr); }, "Add calls of this thread to no program.");
}
