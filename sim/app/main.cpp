#include "gui/window/comparison_picture.h"
#include "gui/window/open_window.h"
#include "gui/window/render.h"
#include "gui/window/report_figures.h"
#ifdef CPSCOPE_HAS_CUDA
#include "kernels/run/executor_cuda.h"
#include "kernels/run/executor_nccl.h"
#endif
#include "kernels/plugin/plugin_library.h"
#include "reference/dense_oracle.h"
#include "reference/faulty_walker.h"
#include "reference/kernel_walker.h"
#include "reference/mask_predicate.h"
#include "reference/plan_walker.h"
#include "sim/app/cli/exhaustion.h"
#include "sim/app/cli/program.h"
#include "sim/faults/plan_mistakes.h"
#include "sim/run/kernel_process.h"

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

namespace {

/// Why a plugin gets no device memory, or that of the first device.
cpscope::Result<cpscope::kernels::PluginMemory> make_device_memory() {
#ifdef CPSCOPE_HAS_CUDA
  return cpscope::kernels::device_plugin_memory();
#else
  return cpscope::make_error(cpscope::ErrorKind::unavailable,
                             "this build was made without a CUDA compiler");
#endif
}

/// The walker, with a shared library's kernel in a process of its own.
cpscope::Result<std::unique_ptr<cpscope::Executor>> open_plugin(const std::string& path) {
  cpscope::Result<cpscope::ItemKernel> kernel = cpscope::isolate_kernel(
      "plugin " + path, [path] { return cpscope::kernels::open_plugin(path, make_device_memory); });
  if (!kernel) return kernel.error();
  return cpscope::reference::make_kernel_walker("plugin:" + path, std::move(kernel).value());
}

/// Plugs executors and the judge into the program.
int run_with_all(int argc, char** argv) {
  cpscope::Toolbox toolbox;
  toolbox.executors.push_back(cpscope::reference::make_plan_walker());
#ifdef CPSCOPE_HAS_CUDA
  using cpscope::kernels::Generation;
  toolbox.executors.push_back(cpscope::kernels::make_executor_cuda());
  toolbox.executors.push_back(cpscope::kernels::make_executor_cuda(Generation::portable));
  toolbox.executors.push_back(cpscope::kernels::make_executor_nccl());
  // Of many processes that a launcher started with one command, the first one speaks.
  const auto place = cpscope::kernels::find_launch_place(cpscope::kernels::process_environment());
  toolbox.is_first_process = !place || place.value().process == 0;
  if (!toolbox.is_first_process && std::freopen("/dev/null", "w", stdout) == nullptr) return 3;
#else
  for (const char* name : {"cuda", "cuda-portable", "nccl"})
    toolbox.missing_executors.emplace_back(name, "this build was made without a CUDA compiler");
#endif
  toolbox.open_plugin = open_plugin;
  toolbox.oracle = cpscope::reference::dense_oracle();
  toolbox.watched_walker = cpscope::reference::make_watched_walker;
  toolbox.plan_mistakes = cpscope::visit_plan_mistakes;
  const cpscope::PictureCommands pictures{.render = cpscope::gui::render,
                                          .open_window = cpscope::gui::open_window,
                                          .draw_figures = cpscope::gui::draw_report_figures,
                                          .draw_comparison = cpscope::gui::write_comparison,
                                          .has_png = cpscope::gui::can_write_png()};
  return cpscope::run_program(argc, argv, toolbox, pictures);
}

}  // namespace

/// The front door: the only file that sees every room.
int main(int argc, char** argv) { return cpscope::survive_exhaustion(run_with_all, argc, argv); }
