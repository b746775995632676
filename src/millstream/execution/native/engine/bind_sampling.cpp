// Sampling for Python: rows of logits to token ids.
#include <memory>
#include <optional>
#include <string>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "bindings.h"

namespace nb = nanobind;

namespace ms {
namespace {

using Logits = Array<const float, 2>;

nb::object draw_rows(Logits logits, Column<const double> temperature, Column<const int32_t> top_k, Column<const double> top_p, Column<const double> min_p,
                     Column<const uint64_t> seed, Column<const uint64_t> index, const std::string& isa, std::optional<Array<const uint32_t, 2>> allowed) {
    const Kernels& kernels = kernels_named(isa);
    const size_t rows = logits.shape(0);
    require(!allowed || allowed->shape(0) == rows, "a mask for every row");
    for (size_t size : {temperature.size(), top_k.size(), top_p.size(), min_p.size(), seed.size(), index.size()})
        require(size == rows, "one parameter of each kind for every row");
    const int vocab = static_cast<int>(logits.shape(1));
    require(vocab > 0, "logits of no tokens");
    int32_t* ids;
    auto drawn = new_array<int32_t>({rows}, &ids);
    {
        nb::gil_scoped_release released;
        std::unique_ptr<uint8_t[]> scratch(new uint8_t[draw_scratch_bytes(vocab)]);
        for (size_t i = 0; i < rows; ++i) {
            const size_t words = allowed ? allowed->shape(1) : 0;
            const Mask mask = allowed ? mask_of(allowed->data() + i * words, words) : Mask{};
            Draw row = {logits.data() + i * vocab, mask, temperature.data()[i], top_k.data()[i], top_p.data()[i], min_p.data()[i], seed.data()[i], index.data()[i]};
            ids[i] = kernels.draw(row, vocab, scratch.get());
        }
    }
    return nb::cast(drawn);
}

nb::object argmax_rows(Logits logits, const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    const size_t rows = logits.shape(0), vocab = logits.shape(1);
    require(vocab > 0, "logits of no tokens");
    int32_t* ids;
    float* largest;
    bool* finite;
    auto result = nb::make_tuple(new_array<int32_t>({rows}, &ids), new_array<float>({rows}, &largest), new_array<bool>({rows}, &finite));
    {
        nb::gil_scoped_release released;
        for (size_t i = 0; i < rows; ++i) {
            Best best = kernels.argmax(logits.data() + i * vocab, static_cast<int>(vocab));
            ids[i] = best.token;
            largest[i] = best.logit;
            finite[i] = best.is_finite;
        }
    }
    return result;
}

nb::object summarize_rows(Logits logits, int top, const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    const size_t rows = logits.shape(0);
    const int vocab = static_cast<int>(logits.shape(1));
    require(vocab > 0, "logits of no tokens");
    require(0 <= top && top <= vocab, "top: from 0 to the number of tokens");
    double* log_sums;
    int32_t* ids;
    auto result = nb::make_tuple(new_array<double>({rows}, &log_sums), new_array<int32_t>({rows, size_t(top)}, &ids));
    {
        nb::gil_scoped_release released;
        for (size_t i = 0; i < rows; ++i) {
            log_sums[i] = kernels.log_sum_exp(logits.data() + i * vocab, vocab);
            kernels.most_likely(logits.data() + i * vocab, vocab, top, ids + i * top);
        }
    }
    return result;
}

}  // namespace

void bind_sampling(nb::module_& m) {
    using namespace nb::literals;
    m.def("draw_rows", &draw_rows, "logits"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "seed"_a, "index"_a, "isa"_a = "", "allowed"_a.none() = nb::none(),
          "Draw a token of each row of float32 logits [rows, vocab], as millstream.execution.sampling does. A temperature of 0 takes the largest;\n"
          "-inf may not be drawn, nor what the words of `allowed` [rows, words] have no bit for. Returns int32 ids; -1 where none may be drawn, or where a logit is NaN or +inf.");
    m.def("summarize_rows", &summarize_rows, "logits"_a, "top"_a, "isa"_a = "",
          "Return (log_sums, ids) of each row of float32 logits [rows, vocab], as millstream.execution.logprobs.summarize does.");
    m.def("argmax_rows", &argmax_rows, "logits"_a, "isa"_a = "",
          "Return (ids, logits, finite) of the largest logit of each row, the lowest id among equals; finite: no logit of the row is NaN or infinite.");
}

}  // namespace ms
