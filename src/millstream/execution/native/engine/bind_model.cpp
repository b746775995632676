// The model and the thread pool as Python sees them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "arrays.h"
#include "bindings.h"
#include "model.h"

namespace nb = nanobind;

namespace ms {

using Bytes = Column<const uint8_t>;
using Floats = Column<const float>;
using Ids = Column<const int32_t>;

// Looks weights up by their names in `open_checkpoint`'s terms; the arrays are kept by the Python object that holds the model.
class WeightTable {
  public:
    WeightTable(nb::dict matrices, nb::dict vectors) : matrices_(std::move(matrices)), vectors_(std::move(vectors)) {}

    // matrices: name -> (format, rows, inputs, bytes). `rows` and `inputs` are the true ones.
    Matrix matrix(const std::string& name, int rows, int inputs) const {
        nb::object found = matrices_.attr("get")(name);
        if (found.is_none()) throw std::invalid_argument("no matrix " + name);
        nb::tuple entry = nb::cast<nb::tuple>(found);
        Matrix w{};
        w.format = format_named(nb::cast<std::string>(entry[0]));
        if (nb::cast<int>(entry[1]) != rows || nb::cast<int>(entry[2]) != inputs) throw std::invalid_argument("matrix " + name + " has another shape");
        w.rows = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
        w.num_groups = (inputs + GROUP - 1) / GROUP;
        Bytes data = nb::cast<Bytes>(entry[3]);
        if (data.size() != w.bytes_per_block() * w.num_blocks()) throw std::invalid_argument("matrix " + name + " has another size");
        if (reinterpret_cast<uintptr_t>(data.data()) % 64) throw std::invalid_argument("matrix " + name + " is not aligned");
        w.data = data.data();
        w.bias = vector(name + ".bias", w.rows, true);
        return w;
    }
    const float* vector(const std::string& name, int size, bool optional) const {
        nb::object found = vectors_.attr("get")(name);
        if (found.is_none()) {
            if (optional) return nullptr;
            throw std::invalid_argument("no vector " + name);
        }
        Floats data = nb::cast<Floats>(found);
        if (int(data.size()) != size) throw std::invalid_argument("vector " + name + " has another size");
        return data.data();
    }

  private:
    nb::dict matrices_, vectors_;
};

static Weights read_weights(const ModelConfig& c, const WeightTable& table, bool tied) {
    Weights w;
    w.embedding = table.matrix("embedding", c.vocab_size, c.hidden_size);
    w.head = tied ? w.embedding : table.matrix("head", c.vocab_size, c.hidden_size);
    w.final_norm = table.vector("final_norm", c.hidden_size, false);
    const int q_size = c.num_heads * c.head_dim, kv_size = c.num_kv_heads * c.head_dim;
    for (int i = 0; i < c.num_layers; ++i) {
        const std::string at = std::to_string(i) + ".";
        Layer layer{};
        layer.q = table.matrix(at + "q", q_size, c.hidden_size);
        layer.k = table.matrix(at + "k", kv_size, c.hidden_size);
        layer.v = table.matrix(at + "v", kv_size, c.hidden_size);
        layer.o = table.matrix(at + "o", c.hidden_size, q_size);
        layer.gate = table.matrix(at + "gate", c.ffn_size, c.hidden_size);
        layer.up = table.matrix(at + "up", c.ffn_size, c.hidden_size);
        layer.down = table.matrix(at + "down", c.hidden_size, c.ffn_size);
        layer.attention_norm = table.vector(at + "attention_norm", c.hidden_size, false);
        layer.ffn_norm = table.vector(at + "ffn_norm", c.hidden_size, false);
        layer.q_norm = table.vector(at + "q_norm", c.head_dim, true);
        layer.k_norm = table.vector(at + "k_norm", c.head_dim, true);
        layer.post_attention_norm = table.vector(at + "post_attention_norm", c.hidden_size, true);
        layer.post_ffn_norm = table.vector(at + "post_ffn_norm", c.hidden_size, true);
        w.layers.push_back(layer);
    }
    return w;
}

static ModelConfig read_config(nb::dict d) {
    ModelConfig c;
    auto integer = [&](const char* key) { return nb::cast<int>(d[key]); };
    auto number = [&](const char* key) { return nb::cast<float>(d[key]); };
    c.vocab_size = integer("vocab_size");
    c.hidden_size = integer("hidden_size");
    c.num_layers = integer("num_layers");
    c.num_heads = integer("num_heads");
    c.num_kv_heads = integer("num_kv_heads");
    c.head_dim = integer("head_dim");
    c.ffn_size = integer("ffn_size");
    c.rms_eps = number("rms_eps");
    c.activation = static_cast<Activation>(integer("activation"));
    c.attention_scale = number("attention_scale");
    c.attention_softcap = number("attention_softcap");
    c.embedding_scale = number("embedding_scale");
    c.logit_softcap = number("logit_softcap");
    c.windows = nb::cast<std::vector<int>>(d["windows"]);
    c.frequencies = nb::cast<std::vector<double>>(d["frequencies"]);
    c.local_frequencies = nb::cast<std::vector<double>>(d["local_frequencies"]);
    c.rotary_factor = number("rotary_factor");
    c.local_rotary_factor = number("local_rotary_factor");
    if (int(c.windows.size()) != c.num_layers) throw std::invalid_argument("windows: one a layer");
    if (int(c.frequencies.size()) * 2 != c.head_dim) throw std::invalid_argument("frequencies: head_dim / 2");
    if (c.head_dim % 16) throw std::invalid_argument("head_dim must be a multiple of 16");
    return c;
}

// A model with the Python objects its weights lie in, and room for the results of a step.
class ModelObject {
  public:
    ModelObject(nb::dict config, nb::dict matrices, nb::dict vectors, bool tied, int kv_type, int num_pages, int page_size, int threads,
                const std::string& isa)
        : matrices_(matrices), vectors_(vectors), num_pages_(num_pages), page_size_(page_size) {
        if (page_size < 16 || page_size % 16) throw std::invalid_argument("page_size must be a multiple of 16");
        ModelConfig c = read_config(config);
        Weights w = read_weights(c, WeightTable(matrices, vectors), tied);
        model_ = std::make_unique<Model>(std::move(c), std::move(w), static_cast<KVType>(kv_type), num_pages, page_size, threads, kernels_named(isa));
    }

    // rows: (count, position, pages, num_outputs) each; embedded: row -> [tokens, hidden size]; kept: rows
    void forward(Ids tokens, nb::list rows, nb::dict embedded, nb::list kept) {
        rows_.resize(rows.size());
        size_t num_tokens = 0;
        for (size_t i = 0; i < rows_.size(); ++i) {
            nb::tuple entry = nb::cast<nb::tuple>(rows[i]);
            Row& row = rows_[i];
            row.count = nb::cast<int>(entry[0]);
            row.position = nb::cast<int>(entry[1]);
            row.num_outputs = nb::cast<int>(entry[3]);
            row.num_embedded = 0;
            row.kept_state = -1;
            read_pages(entry[2], row);
            num_tokens += row.count;
        }
        if (num_tokens != tokens.size()) throw std::invalid_argument("tokens: one a position");
        for (size_t i = 0; i < num_tokens; ++i)
            if (tokens.data()[i] < 0 || tokens.data()[i] >= model_->config().vocab_size) throw std::invalid_argument("a token is outside the vocabulary");
        for (auto [number, values] : embedded) {
            Row& row = row_at(number);
            Array<const float, 2> embeddings = nb::cast<Array<const float, 2>>(values, false);  // a converted copy would not live on
            if (int(embeddings.shape(1)) != model_->config().hidden_size || int(embeddings.shape(0)) > row.count)
                throw std::invalid_argument("embeddings of a row have another shape");
            row.embeddings = embeddings.data();
            row.num_embedded = int(embeddings.shape(0));
        }
        for (size_t i = 0; i < kept.size(); ++i) {
            Row& row = row_at(kept[i]);
            if (row.kept_state >= 0) throw std::invalid_argument("a row is kept twice");
            row.kept_state = int(i);
        }
        nb::gil_scoped_release release;
        model_->forward(tokens.data(), rows_);
    }

    std::vector<int32_t> draw(nb::list rows) {
        std::vector<Draw> draws;
        for (nb::handle item : rows) {
            nb::tuple entry = nb::cast<nb::tuple>(item);
            const int output = nb::cast<int>(entry[0]);
            if (output < 0 || output >= model_->num_outputs()) throw std::invalid_argument("no such output");
            Mask mask;
            if (!entry[7].is_none()) {
                auto words = nb::cast<Column<const uint32_t>>(entry[7], false);  // a converted copy would not live on
                mask = mask_of(words.data(), words.size());
            }
            draws.push_back({model_->logits() + size_t(output) * model_->logits_stride(), mask, nb::cast<double>(entry[1]), nb::cast<int32_t>(entry[2]),
                             nb::cast<double>(entry[3]), nb::cast<double>(entry[4]), nb::cast<uint64_t>(entry[5]), nb::cast<uint64_t>(entry[6])});
        }
        nb::gil_scoped_release release;
        return model_->draw(draws);
    }

    // questions: (first output, the token that stands behind each, top, other ids to tell of) each
    nb::list tell(nb::list questions) {
        struct Asked {
            int first, top;
            std::vector<int32_t> tokens, others;
        };
        std::vector<Asked> asked;
        std::vector<Model::Look> looks;
        size_t num_outputs = 0, num_ids = 0;
        for (nb::handle item : questions) {
            nb::tuple entry = nb::cast<nb::tuple>(item);
            Asked each{nb::cast<int>(entry[0]), std::min(nb::cast<int>(entry[2]), model_->config().vocab_size), {}, {}};
            read_ids(entry[1], each.tokens);
            read_ids(entry[3], each.others);
            if (each.first < 0 || each.top < 0 || each.first + int64_t(each.tokens.size()) > model_->num_outputs()) throw std::invalid_argument("no such outputs");
            num_outputs += each.tokens.size();
            num_ids += each.tokens.size() * each.top;
            asked.push_back(std::move(each));
        }
        std::vector<double> log_sums(num_outputs);
        std::vector<int32_t> top_ids(num_ids);
        double* log_sum = log_sums.data();
        int32_t* ids = top_ids.data();
        for (const Asked& each : asked)
            for (size_t i = 0; i < each.tokens.size(); ++i, ++log_sum, ids += each.top) looks.push_back({each.first + int(i), each.top, log_sum, ids});
        {
            nb::gil_scoped_release release;
            model_->summarize(looks);
        }
        nb::list answers;
        const Model::Look* look = looks.data();
        for (const Asked& each : asked) {
            nb::list chosen, best_ids, best, others;
            for (int32_t token : each.tokens) {
                const float* logits = model_->logits() + size_t(look->output) * model_->logits_stride();
                auto value = [&](int32_t id) { return double(logits[id]) - *look->log_sum; };
                chosen.append(value(token));
                nb::list some_ids, some, asked_for;
                for (int i = 0; i < each.top; ++i) {
                    some_ids.append(look->top_ids[i]);
                    some.append(value(look->top_ids[i]));
                }
                for (int32_t id : each.others) asked_for.append(value(id));
                best_ids.append(some_ids);
                best.append(some);
                others.append(asked_for);
                ++look;
            }
            answers.append(nb::make_tuple(chosen, best_ids, best, others));
        }
        return answers;
    }

    Model& model() { return *model_; }
    void check_page(int page) const {
        if (page < 0 || page >= num_pages_) throw std::invalid_argument("no such page");
    }

  private:
    Row& row_at(nb::handle number) {
        const size_t at = nb::cast<size_t>(number);
        if (at >= rows_.size()) throw std::invalid_argument("no such row");
        return rows_[at];
    }
    void read_ids(nb::handle ids, std::vector<int32_t>& out) const {
        for (nb::handle id : ids) {
            out.push_back(nb::cast<int32_t>(id));
            if (out.back() < 0 || out.back() >= model_->config().vocab_size) throw std::invalid_argument("a token is outside the vocabulary");
        }
    }

    void read_pages(nb::handle pages, Row& row) const {
        if (row.count < 1 || row.position < 0 || row.num_outputs < 0 || row.num_outputs > row.count) throw std::invalid_argument("a row is malformed");
        const size_t needed = (size_t(row.position) + row.count + page_size_ - 1) / page_size_;
        nb::list list = nb::cast<nb::list>(pages);
        if (list.size() < needed) throw std::invalid_argument("a row has too few pages");
        row.pages.resize(needed);
        for (size_t i = 0; i < needed; ++i) {
            row.pages[i] = nb::cast<int>(list[i]);
            check_page(row.pages[i]);
        }
    }

    nb::dict matrices_, vectors_;
    int num_pages_, page_size_;
    std::unique_ptr<Model> model_;
    std::vector<Row> rows_;
};

void bind_model(nb::module_& m) {
    nb::class_<ModelObject>(m, "Model")
        .def(nb::init<nb::dict, nb::dict, nb::dict, bool, int, int, int, int, const std::string&>(), nb::arg("config"), nb::arg("matrices"),
             nb::arg("vectors"), nb::arg("tied"), nb::arg("kv_type"), nb::arg("num_pages"), nb::arg("page_size"), nb::arg("threads"), nb::arg("isa"))
        .def("forward", &ModelObject::forward, nb::arg("tokens"), nb::arg("rows"), nb::arg("embedded") = nb::dict(), nb::arg("kept") = nb::list())
        // [outputs, padded vocab]: the last step's, overwritten by the next
        .def("logits",
             [](ModelObject& self) {
                 Model& model = self.model();
                 size_t shape[2] = {size_t(model.num_outputs()), size_t(model.logits_stride())};
                 return nb::ndarray<nb::numpy, float, nb::ndim<2>>(model.logits(), 2, shape, nb::find(self));
             })
        // [kept, hidden size], in the order of `kept`: the last step's, overwritten by the next
        .def("kept_states",
             [](ModelObject& self) {
                 Model& model = self.model();
                 size_t shape[2] = {size_t(model.num_kept()), size_t(model.config().hidden_size)};
                 return nb::ndarray<nb::numpy, float, nb::ndim<2>>(model.kept_states(), 2, shape, nb::find(self));
             })
        .def("best",
             [](ModelObject& self) {  // a list of (token, is_finite), one an output
                 nb::list out;
                 for (const Best& best : self.model().best()) out.append(nb::make_tuple(best.token, best.is_finite));
                 return out;
             })
        .def("rows_not_finite",
             [](ModelObject& self) {  // indices of rows whose last hidden state has NaN or infinity
                 nb::list out;
                 const std::vector<uint8_t>& fine = self.model().is_finite();
                 for (size_t row = 0; row < fine.size(); ++row)
                     if (!fine[row]) out.append(row);
                 return out;
             })
        // rows: (output, temperature, top_k, top_p, min_p, seed, index of the output token, mask or None) each. Returns -1 where no token may be drawn
        .def("draw", &ModelObject::draw, nb::arg("rows"))
        // questions: (first output, token ids, top, other ids) each. Returns for each, by output: of the token, the top ids, theirs, the others'
        .def("tell", &ModelObject::tell, nb::arg("questions"))
        .def("copy_page",
             [](ModelObject& self, int from, int to) {
                 self.check_page(from);
                 self.check_page(to);
                 self.model().copy_page(from, to);
             })
        .def("heal_page",
             [](ModelObject& self, int page) {
                 self.check_page(page);
                 self.model().heal_page(page);
             })
        .def("poison_page",
             [](ModelObject& self, int page) {
                 self.check_page(page);
                 self.model().poison_page(page);
             })
        .def_prop_ro("isa", [](ModelObject& self) { return self.model().kernels().name; })
        .def_prop_ro("threads", [](ModelObject& self) { return self.model().pool().size(); });
}

}  // namespace ms
