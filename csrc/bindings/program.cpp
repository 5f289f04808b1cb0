#include "program.h"

#include "bindings.h"

namespace lavagna {
namespace {

thread_local Program* current = nullptr;

// Calls of kernels are added to the program while this lives.
class Recording {
 public:
  explicit Recording(Program& program) { current = &program; }
  ~Recording() { current = nullptr; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
};

}  // namespace

Program* Program::recorded() { return current; }

}  // namespace lavagna

void bind_program(nb::module_& module) {
  using namespace lavagna;
  nb::class_<Program>(module, "Program", "Calls of kernels that can be made again without Python.")
      .def(nb::init<>())
      .def("run", &Program::run, Unlocked(), "Make all calls, in their order.")
      .def(
          "add",
          [](Program& program, nb::callable kernel, nb::args arguments) {
            const Recording recording(program);
            kernel(*arguments);
          },
          "Call a kernel with these arguments, and add the call.");
}
