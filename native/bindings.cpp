// The engine, as Python sees it: a thin layer that checks the sizes of arrays, keeps workspaces and lets go of the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <pthread.h>

#include "onebit.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::numpy, nb::c_contig, nb::device::cpu>;
using Floats = std::optional<Array<float>>;
using Pair = std::tuple<int32_t, int32_t>;
using Sides = std::tuple<int32_t, int32_t, int32_t, int32_t>;

struct Free {
    void operator()(void *memory) const { std::free(memory); }
};
using Workspace = std::unique_ptr<void, Free>;

// Python handles signals (Ctrl-C) only when it is asked to; a large batch looks now and then.
class Look {
public:
    void now_and_then() {
        if (is_interrupted()) throw_error();
    }
    // Whether a handler has raised an error, which waits to be thrown.
    bool is_interrupted() noexcept {
        if (since() < BETWEEN_LOOKS) return false;
        const nb::gil_scoped_acquire acquire;
        const bool found = PyErr_CheckSignals() != 0;
        last_ = Clock::now();
        return found;
    }
    [[noreturn]] static void throw_error() {
        const nb::gil_scoped_acquire acquire;
        throw nb::python_error();
    }
    // Whether another piece of work twice as long as the last `seconds` would still end in time.
    bool has_time_for_twice(std::chrono::duration<double> last) const { return 2 * last < BETWEEN_LOOKS; }

    using Clock = std::chrono::steady_clock;

private:
    static constexpr std::chrono::duration<double> BETWEEN_LOOKS = std::chrono::milliseconds(50);
    std::chrono::duration<double> since() const { return Clock::now() - last_; }
    Clock::time_point last_ = Clock::now();
};

// The threads of a process: one team for each number of threads that nets ask for. One of them works at a time, so that
// nets that run at once do not fight for cores: a run that finds a team at work goes alone. Never freed, since threads
// may still run nets when Python ends.
class Teams {
public:
    static Teams &of_process() { return *instance(); }

    // A team that is this run's alone, or none.
    class Borrowed {
    public:
        explicit Borrowed(int32_t threads) {
            if (threads < 2) return;
            Teams &teams = of_process();
            lock_ = std::unique_lock<std::mutex>(teams.at_work_, std::try_to_lock);
            if (!lock_) return;
            auto &team = teams.teams_[threads];
            if (!team) team = onebit_team_new(threads);
            team_ = team;
        }
        Borrowed(const Borrowed &) = delete;
        Borrowed &operator=(const Borrowed &) = delete;

        onebit_team *get() const { return team_; }

    private:
        std::unique_lock<std::mutex> lock_;
        onebit_team *team_ = nullptr;
    };

private:
    // A fork has no threads but the one that forked: it begins with no teams.
    static Teams *&instance() {
        static Teams *teams = nullptr;
        static std::once_flag once;
        std::call_once(once, [] {
            teams = new Teams;
            pthread_atfork(nullptr, nullptr, [] { teams = new Teams; });
        });
        return teams;
    }

    std::mutex at_work_;  // and of the map
    std::map<int32_t, onebit_team *> teams_;
};

onebit_window window_of(Pair kernel, Pair stride, Pair dilation, Sides padding, int32_t groups) {
    const auto [top, bottom, left, right] = padding;
    return {{std::get<0>(kernel), std::get<1>(kernel)},
            {std::get<0>(stride), std::get<1>(stride)},
            {std::get<0>(dilation), std::get<1>(dilation)},
            {top, bottom, left, right},
            groups};
}

// The memory of an array, for as long as this lives; None has none. By the buffer protocol, which takes a tenth of the
// time of nb::ndarray: a small net runs in microseconds.
class Buffer {
public:
    Buffer(nb::handle array, const char *format, bool is_writable) {
        if (array.is_none()) return;
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (is_writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(array.ptr(), &view_, flags)) throw nb::python_error();
        is_held_ = true;
        if (!view_.format || std::string_view(view_.format) != format) {
            PyBuffer_Release(&view_);
            throw nb::type_error("an array of another type");
        }
    }
    ~Buffer() {
        if (is_held_) PyBuffer_Release(&view_);
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    void *data() const { return is_held_ ? view_.buf : nullptr; }
    size_t size() const { return is_held_ ? static_cast<size_t>(view_.len) / static_cast<size_t>(view_.itemsize) : 0; }
    size_t first_side() const { return is_held_ && view_.ndim ? static_cast<size_t>(view_.shape[0]) : 0; }

private:
    Py_buffer view_{};
    bool is_held_ = false;
};

// What a layer does with its numbers; the arrays live as long as this.
class Output {
public:
    Output(int32_t channels, Floats scale, Floats shift, std::tuple<Floats, float, float> first, int32_t residual,
           std::tuple<Floats, float, float> second, int32_t numbers_to, int32_t bits_to, Floats thresholds,
           std::optional<Array<uint8_t>> at_most, int32_t levels_to, float per_unit, int32_t high)
        : scale_(scale),
          shift_(shift),
          first_(std::get<0>(first)),
          second_(std::get<0>(second)),
          thresholds_(thresholds),
          at_most_(at_most) {
        given = {channels,
                 checked(scale_, channels),
                 checked(shift_, channels),
                 {checked(first_, channels), std::get<1>(first), std::get<2>(first)},
                 {checked(second_, channels), std::get<1>(second), std::get<2>(second)},
                 residual,
                 numbers_to,
                 bits_to,
                 checked(thresholds_, channels),
                 checked(at_most_, channels),
                 levels_to,
                 per_unit,
                 high};
    }

    onebit_output given;

private:
    template <typename T>
    static const T *checked(const std::optional<Array<T>> &array, int32_t channels) {
        if (!array) return nullptr;
        if (channels < 0 || array->size() != static_cast<size_t>(channels))
            throw std::invalid_argument("a tensor of an output has " + std::to_string(array->size()) + " numbers for " +
                                        std::to_string(channels) + " channels");
        return array->data();
    }

    Floats scale_, shift_, first_, second_, thresholds_;
    std::optional<Array<uint8_t>> at_most_;
};

constexpr int32_t MAX_THREADS = 1024;

class Net {
public:
    explicit Net(const std::string &isa) : net_(onebit_net_new(isa.c_str()), onebit_net_free) {
        if (!net_) throw std::invalid_argument("this machine has no " + isa);
    }

    void value(int kind, int32_t channels, int32_t height, int32_t width, size_t offset, int32_t low) {
        check(onebit_add_value(net_.get(), static_cast<onebit_kind>(kind), channels, height, width, offset, low));
        sizes_.push_back(static_cast<size_t>(channels) * static_cast<size_t>(height) * static_cast<size_t>(width));
    }
    void bconv2d(int32_t input, Pair kernel, Pair stride, Pair dilation, Sides padding, int32_t groups, int32_t outputs,
                 Array<int8_t> signs, int32_t projections, std::optional<Array<int8_t>> masks, const Output &output) {
        const onebit_window window = window_of(kernel, stride, dilation, padding, groups);
        const onebit_projections given = {projections, masks ? masks->data() : nullptr, masks ? masks->size() : 0};
        check(
            onebit_add_bconv2d(net_.get(), input, &window, outputs, signs.data(), signs.size(), &given, &output.given));
    }
    void level_conv2d(int32_t input, Pair kernel, Pair stride, Pair dilation, Sides padding, int32_t groups,
                      int32_t outputs, Array<int8_t> weight, const Output &output) {
        const onebit_window window = window_of(kernel, stride, dilation, padding, groups);
        check(
            onebit_add_level_conv2d(net_.get(), input, &window, outputs, weight.data(), weight.size(), &output.given));
    }
    void conv2d(int32_t input, Pair kernel, Pair stride, Pair dilation, Sides padding, int32_t groups, int32_t outputs,
                Array<float> weight, bool keeps_zeros, const Output &output) {
        const onebit_window window = window_of(kernel, stride, dilation, padding, groups);
        check(onebit_add_conv2d(net_.get(), input, &window, outputs, weight.data(), weight.size(), keeps_zeros,
                                &output.given));
    }
    void again(size_t step, int32_t input, const Output &output) {
        check(onebit_add_again(net_.get(), step, input, &output.given));
    }
    void pointwise(int32_t input, const Output &output) {
        check(onebit_add_pointwise(net_.get(), input, &output.given));
    }
    void pool(int32_t input, Pair kernel, Pair stride, Pair dilation, Sides padding, int pool, Pair sizes,
              const Output &output) {
        const onebit_window window = window_of(kernel, stride, dilation, padding, 1);
        const int32_t made[2] = {std::get<0>(sizes), std::get<1>(sizes)};
        check(onebit_add_pool(net_.get(), input, &window, static_cast<onebit_pool>(pool), made, &output.given));
    }
    void adaptive_mean(int32_t input, Pair sizes, const Output &output) {
        const int32_t made[2] = {std::get<0>(sizes), std::get<1>(sizes)};
        check(onebit_add_adaptive_mean(net_.get(), input, made, &output.given));
    }
    void binary(int32_t left, int32_t right, int32_t output, int binary) {
        check(onebit_add_binary(net_.get(), left, right, output, static_cast<onebit_binary>(binary)));
    }
    void unary(int32_t input, int32_t output, int unary) {
        check(onebit_add_unary(net_.get(), input, output, static_cast<onebit_unary>(unary)));
    }
    void threshold(int32_t input, int32_t output, Array<int32_t> thresholds, Array<uint8_t> at_most) {
        if (thresholds.size() != at_most.size()) throw std::invalid_argument("thresholds and at_most differ in size");
        check(onebit_add_threshold(net_.get(), input, output, thresholds.data(), at_most.data(), thresholds.size()));
    }
    void copy(int32_t input, int32_t from, int32_t output, int32_t to, int32_t channels) {
        check(onebit_add_copy(net_.get(), input, from, output, to, channels));
    }
    void pad(int32_t input, int32_t output, Sides padding, int mode) {
        const auto [top, bottom, left, right] = padding;
        const int32_t sides[4] = {top, bottom, left, right};
        check(onebit_add_pad(net_.get(), input, output, sides, static_cast<onebit_padding>(mode)));
    }
    void reshape(int32_t input, int32_t output) { check(onebit_add_reshape(net_.get(), input, output)); }

    void finish(int32_t output, int32_t threads, bool is_long) {
        if (threads < 1 || threads > MAX_THREADS) throw std::invalid_argument("a net has 1 to 1024 threads");
        check(onebit_net_finish(net_.get(), output));
        output_ = static_cast<size_t>(output);
        threads_ = threads;
        is_long_ = is_long;
        is_finished_ = true;
        free_.push_back(new_workspace(threads));  // so that a first run allocates nothing
    }

    void run(nb::handle images, bool is_nhwc, nb::handle outputs, nb::handle step_seconds) {
        if (!is_finished_) throw std::runtime_error("the net is not finished");
        const Buffer from(images, "f", false), to(outputs, "f", true), seconds(step_seconds, "d", true);
        const size_t batch = from.first_side();
        if (from.size() != batch * sizes_[0] || to.size() != batch * sizes_[output_])
            throw std::invalid_argument("images or outputs are of the wrong size");
        if (seconds.data() && seconds.size() != onebit_steps(net_.get()))
            throw std::invalid_argument("step_seconds is of the wrong size");
        const onebit_layout layout = is_nhwc ? ONEBIT_NHWC : ONEBIT_NCHW;
        const float *image = static_cast<const float *>(from.data());
        float *output = static_cast<float *>(to.data());
        nb::gil_scoped_release release;
        const Teams::Borrowed team(threads_);
        const size_t members = team.get() ? static_cast<size_t>(threads_) : 1;
        // A batch goes side by side, as far as every thread gets as many images; times of steps are of one after another.
        // Of a net that takes long they go one after another, so that signals are seen within them.
        const size_t apart = members > 1 && !seconds.data() && !is_long_ ? batch / members * members : 0;
        if (apart) run_apart(team.get(), members, image, apart, layout, output);
        image += apart * sizes_[0];
        output += apart * sizes_[output_];
        if (apart == batch) return;
        const Borrowed workspace(*this, threads_);
        Look look;
        const onebit_stop stop = {
            [](void *given) { return static_cast<int>(static_cast<Look *>(given)->is_interrupted()); }, &look};
        for (size_t i = apart; i < batch; i++, image += sizes_[0], output += sizes_[output_]) {
            const onebit_status status = onebit_run(net_.get(), team.get(), workspace.get(), image, 1, layout, output,
                                                    static_cast<double *>(seconds.data()), is_long_ ? &stop : nullptr);
            if (status == ONEBIT_STOPPED) Look::throw_error();
            if (status) throw std::runtime_error("the net could not be run");
            if (i + 1 < batch) look.now_and_then();
        }
    }

    size_t steps() const { return onebit_steps(net_.get()); }
    std::tuple<const char *, const char *> step_kernel(size_t step) const {
        if (step >= steps()) throw std::out_of_range("there is no such step");
        return {onebit_step_kernel(net_.get(), step), onebit_step_isa(net_.get(), step)};
    }
    size_t workspace_bytes(int32_t threads) const { return onebit_workspace_bytes(net_.get(), threads); }
    size_t weight_bytes() const { return onebit_weight_bytes(net_.get()); }

private:
    void check(onebit_status status) const {
        if (status == ONEBIT_NO_MEMORY) throw std::bad_alloc();
        if (status != ONEBIT_OK) throw std::invalid_argument(onebit_error(net_.get()));
    }
    Workspace new_workspace(int32_t threads) {
        void *memory = nullptr;
        if (posix_memalign(&memory, 64, workspace_bytes(threads))) throw std::bad_alloc();
        return Workspace(memory);
    }

    // Images side by side, a thread each; in pieces, so that signals are seen between them.
    void run_apart(onebit_team *team, size_t members, const float *images, size_t batch, onebit_layout layout,
                   float *outputs) {
        std::vector<std::unique_ptr<Borrowed>> borrowed;
        std::vector<void *> workspaces;
        for (size_t i = 0; i < members; i++) {
            borrowed.push_back(std::make_unique<Borrowed>(*this, 1));
            workspaces.push_back(borrowed.back()->get());
        }
        Look look;
        for (size_t done = 0, piece = members; done < batch;) {
            const size_t count = std::min(piece, batch - done);
            const auto start = Look::Clock::now();
            if (onebit_run_apart(net_.get(), team, workspaces.data(), images + done * sizes_[0], count, layout,
                                 outputs + done * sizes_[output_]))
                throw std::runtime_error("the net could not be run");
            done += count;
            if (done < batch) look.now_and_then();
            if (look.has_time_for_twice(Look::Clock::now() - start)) piece *= 2;
        }
    }

    // A workspace for so many threads (all of the net's, or one) that no other run uses now: there are as many as runs that
    // ever went on at one time.
    class Borrowed {
    public:
        Borrowed(Net &net, int32_t threads) : net_(net), free_(threads == net.threads_ ? net.free_ : net.free_of_one_) {
            std::unique_lock<std::mutex> lock(net_.mutex_);
            if (!free_.empty()) {
                workspace_ = std::move(free_.back());
                free_.pop_back();
                return;
            }
            lock.unlock();
            workspace_ = net_.new_workspace(threads);
        }
        ~Borrowed() {
            const std::lock_guard<std::mutex> lock(net_.mutex_);
            free_.push_back(std::move(workspace_));
        }
        Borrowed(const Borrowed &) = delete;
        Borrowed &operator=(const Borrowed &) = delete;

        void *get() const { return workspace_.get(); }

    private:
        Net &net_;
        std::vector<Workspace> &free_;
        Workspace workspace_;
    };

    std::unique_ptr<onebit_net, decltype(&onebit_net_free)> net_;
    std::vector<size_t> sizes_;
    size_t output_ = 0;
    int32_t threads_ = 1;
    bool is_long_ = false, is_finished_ = false;
    std::mutex mutex_;
    std::vector<Workspace> free_,
        free_of_one_;  // for all threads of the net; for one, as images side by side have them
};

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The engine of onebit. Use it through onebit.load.";
    m.def("has_isa", [](const std::string &isa) { return onebit_has_isa(isa.c_str()) != 0; });
    nb::class_<Output>(m, "Output")
        .def(nb::init<int32_t, Floats, Floats, std::tuple<Floats, float, float>, int32_t,
                      std::tuple<Floats, float, float>, int32_t, int32_t, Floats, std::optional<Array<uint8_t>>,
                      int32_t, float, int32_t>(),
             nb::kw_only(), "channels"_a, "scale"_a.none(), "shift"_a.none(), "first"_a, "residual"_a, "second"_a,
             "numbers_to"_a, "bits_to"_a, "thresholds"_a.none(), "at_most"_a.none(), "levels_to"_a = -1,
             "per_unit"_a = 1.f, "high"_a = 255);
    nb::class_<Net>(m, "Net")
        .def(nb::init<const std::string &>(), "isa"_a)
        .def("value", &Net::value, "kind"_a, "channels"_a, "height"_a, "width"_a, "offset"_a, "low"_a = 0)
        .def("bconv2d", &Net::bconv2d, "input"_a, "kernel"_a, "stride"_a, "dilation"_a, "padding"_a, "groups"_a,
             "outputs"_a, "signs"_a, "projections"_a, "masks"_a.none(), "output"_a)
        .def("level_conv2d", &Net::level_conv2d, "input"_a, "kernel"_a, "stride"_a, "dilation"_a, "padding"_a,
             "groups"_a, "outputs"_a, "weight"_a, "output"_a)
        .def("conv2d", &Net::conv2d, "input"_a, "kernel"_a, "stride"_a, "dilation"_a, "padding"_a, "groups"_a,
             "outputs"_a, "weight"_a, "keeps_zeros"_a, "output"_a)
        .def("again", &Net::again, "step"_a, "input"_a, "output"_a)
        .def("pointwise", &Net::pointwise, "input"_a, "output"_a)
        .def("pool", &Net::pool, "input"_a, "kernel"_a, "stride"_a, "dilation"_a, "padding"_a, "pool"_a, "sizes"_a,
             "output"_a)
        .def("adaptive_mean", &Net::adaptive_mean, "input"_a, "sizes"_a, "output"_a)
        .def("binary", &Net::binary, "left"_a, "right"_a, "output"_a, "binary"_a)
        .def("unary", &Net::unary, "input"_a, "output"_a, "unary"_a)
        .def("threshold", &Net::threshold, "input"_a, "output"_a, "thresholds"_a, "at_most"_a)
        .def("copy", &Net::copy, "input"_a, "from_"_a, "output"_a, "to"_a, "channels"_a)
        .def("pad", &Net::pad, "input"_a, "output"_a, "padding"_a, "mode"_a)
        .def("reshape", &Net::reshape, "input"_a, "output"_a)
        .def("finish", &Net::finish, "output"_a, "threads"_a = 1, "is_long"_a = false)
        .def("run", &Net::run, "images"_a, "is_nhwc"_a, "outputs"_a, "step_seconds"_a.none())
        .def_prop_ro("steps", &Net::steps)
        .def("step_kernel", &Net::step_kernel, "step"_a)
        .def("workspace_bytes", &Net::workspace_bytes, "threads"_a = 1)
        .def_prop_ro("weight_bytes", &Net::weight_bytes);
}
