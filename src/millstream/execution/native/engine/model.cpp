#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "kernels/dispatch.h"

namespace ms {

constexpr int TASKS_PER_THREAD = 6;    // of a phase, where there is enough to do: what a slow thread leaves, others take
constexpr int ATTEND_TOKENS = 16;      // tokens of a prompt whose queries attend in one task
constexpr int GATE_TOKENS = 32;        // tokens whose gates are held at once

static int padded(int size) { return (size + GROUP - 1) / GROUP * GROUP; }
static int divided_up(int a, int b) { return (a + b - 1) / b; }

static const Kernels& kernels_named(const char* isa) {
    const Kernels* found = find_kernels(isa);
    if (!found) throw std::runtime_error("this machine has neither AVX-512 VNNI nor AVX2");
    return *found;
}

Model::Model(ModelConfig config, Weights weights, KVType kv_type, int num_pages, int page_size, int num_threads, const char* isa)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      kv_type_(kv_type),
      num_pages_(num_pages),
      page_size_(page_size),
      k_(kernels_named(isa)),
      pool_(num_threads),
      kv_memory_(size_t(num_pages) * config_.num_layers * kv_bytes_per_page()) {
    hidden_stride_ = padded(config_.hidden_size);
    qkv_stride_ = weights_.layers[0].q.rows + weights_.layers[0].k.rows + weights_.layers[0].v.rows;
    attended_stride_ = padded(config_.num_heads * config_.head_dim);
    ffn_stride_ = padded(config_.ffn_size);
    logits_stride_ = weights_.head.rows;
    scratch_.resize(pool_.size());
    for (Scratch& scratch : scratch_) {
        scratch.a.reserve(std::max({hidden_stride_, GATE_TOKENS * GROUP}));
        scratch.b.reserve(std::max({hidden_stride_, GATE_TOKENS * GROUP}));
    }
    for (int layer = 0; layer < config_.num_layers; ++layer) {  // layers with the same window share a plan
        int window = config_.windows[layer], plan = 0;
        while (plan < int(plans_.size()) && plans_[plan].window != window) ++plan;
        if (plan == int(plans_.size())) plans_.push_back({window, {}});
        plan_of_layer_.push_back(plan);
    }
    splits_.resize(plans_.size());
}

KVLayer Model::kv(int layer) const {
    KVLayer kv{kv_type_, config_.num_kv_heads, config_.head_dim, page_size_, nullptr};
    kv.data = kv_memory_.data() + size_t(layer) * num_pages_ * kv.page_bytes();
    return kv;
}

size_t Model::kv_bytes_per_page() const {
    return KVLayer{kv_type_, config_.num_kv_heads, config_.head_dim, page_size_, nullptr}.page_bytes();
}

std::vector<int32_t> Model::draw(const std::vector<Draw>& draws) {
    struct Work {
        Model& model;
        const std::vector<Draw>& draws;
        std::vector<int32_t> tokens;
    } work{*this, draws, std::vector<int32_t>(draws.size())};
    auto run = [](void* context, int, int number, int thread) {
        Work& work = *static_cast<Work*>(context);
        const int vocab = work.model.config_.vocab_size;
        Buffer<float>& scratch = work.model.scratch_[thread].draw;
        scratch.reserve(draw_scratch_bytes(vocab) / sizeof(float));
        work.tokens[number] = work.model.k_.draw(work.draws[number], vocab, scratch.data());
    };
    pool_.run({{run, 0, int(draws.size())}}, &work);
    return work.tokens;
}

void Model::copy_page(int from, int to) {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
        KVLayer store = kv(layer);
        std::memcpy(store.data + size_t(to) * store.page_bytes(), store.data + size_t(from) * store.page_bytes(), store.page_bytes());
    }
}

// the bits of an exponent of all ones: NaN or infinity
static void heal_halves(uint16_t* values, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if ((values[i] & 0x7C00) == 0x7C00) values[i] = 0;
}

static void heal_floats(float* values, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if (!std::isfinite(values[i])) values[i] = 0;
}

void Model::heal_page(int page) {
    const size_t elements = size_t(2) * config_.head_dim * 16;  // of one head in one subpage, keys and values
    for (int layer = 0; layer < config_.num_layers; ++layer) {
        KVLayer store = kv(layer);
        for (int part = 0; part < page_size_ / 16 * config_.num_kv_heads; ++part) {
            uint8_t* at = store.data + size_t(page) * store.page_bytes() + size_t(part) * store.head_bytes();
            if (kv_type_ == KVType::f16) heal_halves(reinterpret_cast<uint16_t*>(at), elements);
            if (kv_type_ == KVType::f32) heal_floats(reinterpret_cast<float*>(at), elements);
            if (kv_type_ == KVType::i8) heal_floats(reinterpret_cast<float*>(at + elements), 2 * 16);  // only scales can be
        }
    }
}

void Model::poison_page(int page) {
    KVLayer store = kv(0);
    uint8_t* at = store.data + size_t(page) * store.page_bytes();
    if (kv_type_ == KVType::i8) at += store.keys_bytes() * 2;
    std::memset(at, 0xFF, 16);  // all ones are NaN in every float format
}

// ---- planning a step

void Model::forward(const int32_t* tokens, const std::vector<Row>& rows) {
    tokens_ = tokens;
    rows_ = &rows;
    row_of_token_.clear();
    position_of_token_.clear();
    first_token_.clear();
    output_tokens_.clear();
    num_outputs_ = 0;
    for (int row = 0; row < int(rows.size()); ++row) {
        first_token_.push_back(int(row_of_token_.size()));
        for (int i = 0; i < rows[row].count; ++i) {
            row_of_token_.push_back(row);
            position_of_token_.push_back(rows[row].position + i);
        }
        num_outputs_ += rows[row].num_outputs;
    }
    num_tokens_ = int(row_of_token_.size());
    reserve(num_tokens_, num_outputs_);
    // logits first, then the last tokens of rows that want none, which are only looked at
    for (int row = 0; row < int(rows.size()); ++row)
        for (int i = rows[row].num_outputs; i > 0; --i) output_tokens_.push_back(first_token_[row] + rows[row].count - i);
    for (int row = 0; row < int(rows.size()); ++row)
        if (rows[row].num_outputs == 0) output_tokens_.push_back(first_token_[row] + rows[row].count - 1);
    is_finite_.assign(rows.size(), 1);
    best_.resize(num_outputs_);
    plan_attention(rows);
    plan_phases();
    pool_.run(phases_, this);
}

void Model::reserve(int num_tokens, int num_outputs) {
    states_.reserve(size_t(num_tokens) * hidden_stride_);
    delta_.reserve(size_t(num_tokens) * hidden_stride_);
    qkv_.reserve(size_t(num_tokens) * qkv_stride_);
    attended_.reserve(size_t(num_tokens) * attended_stride_);
    cos_sin_.reserve(size_t(num_tokens) * config_.head_dim);
    if (!config_.local_frequencies.empty()) local_cos_sin_.reserve(size_t(num_tokens) * config_.head_dim);
    x_.reserve(num_tokens, hidden_stride_ / GROUP);
    attended_q_.reserve(num_tokens, attended_stride_ / GROUP);
    ffn_q_.reserve(num_tokens, ffn_stride_ / GROUP);
    outputs_q_.reserve(num_outputs, hidden_stride_ / GROUP);
    logits_.reserve(size_t(num_outputs) * logits_stride_);
}

void Model::plan_attention(const std::vector<Row>& rows) {
    int most_parts = 0;
    for (size_t plan = 0; plan < plans_.size(); ++plan) {
        int num_parts = 0;
        plans_[plan] = plan_window(rows, plans_[plan].window, splits_[plan], num_parts);
        most_parts = std::max(most_parts, num_parts);
    }
    part_max_.reserve(most_parts);
    part_sum_.reserve(most_parts);
    part_out_.reserve(size_t(most_parts) * config_.head_dim);
}

Model::AttendPlan Model::plan_window(const std::vector<Row>& rows, int window, std::vector<Split>& splits, int& num_slots) const {
    AttendPlan plan{window, {}};
    splits.clear();
    num_slots = 0;
    // one task a partition only where whole contexts would leave threads without work
    bool split = int(rows.size()) * config_.num_kv_heads < TASKS_PER_THREAD * pool_.size();
    for (int row = 0; row < int(rows.size()); ++row) {
        for (int first = 0; first < rows[row].count; first += ATTEND_TOKENS) {
            int count = std::min(ATTEND_TOKENS, rows[row].count - first);
            int position = rows[row].position + first;
            int part_begin = window ? std::max(0, position - window + 1) / PARTITION : 0;
            int part_end = (position + count - 1) / PARTITION + 1;
            int parts = part_end - part_begin;
            bool cut = split && count == 1 && parts > 1;
            if (cut) {
                splits.push_back({first_token_[row] + first, num_slots, parts});
                for (int head = 0; head < config_.num_kv_heads; ++head)
                    for (int part = part_begin; part < part_end; ++part)
                        plan.tasks.push_back({row, head, first, count, part, part + 1, num_slots + part - part_begin});
                num_slots += config_.num_heads * parts;
            } else {
                for (int head = 0; head < config_.num_kv_heads; ++head)
                    plan.tasks.push_back({row, head, first, count, part_begin, part_end, -1});
            }
        }
    }
    return plan;
}

int Model::blocks_per_task(int num_blocks) const {
    int even = divided_up(num_blocks, TASKS_PER_THREAD * pool_.size() * 2) * 2;  // kernels take blocks two by two
    return std::max(2, even);
}

int Model::matrix_tasks(int num_blocks) const { return divided_up(num_blocks, blocks_per_task(num_blocks)); }

void Model::plan_phases() {
    phases_.clear();
    const int tokens = num_tokens_;
    auto add = [this](Phase::Run run, int layer, int num_tasks) { phases_.push_back({run, layer, num_tasks}); };
    add(task<&Model::embed>, 0, tokens);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
        const Layer& w = weights_.layers[layer];
        add(task<&Model::norm_attention>, layer, tokens);
        add(task<&Model::project_qkv>, layer,
            matrix_tasks(w.q.rows / 16) + matrix_tasks(w.k.rows / 16) + matrix_tasks(w.v.rows / 16));
        add(task<&Model::rotate_and_store>, layer, tokens);
        add(task<&Model::attend>, layer, int(attend_plan(layer).tasks.size()));
        add(task<&Model::gather_attention>, layer, tokens);
        add(task<&Model::project_output>, layer, matrix_tasks(w.o.rows / 16));
        add(task<&Model::norm_ffn>, layer, tokens);
        add(task<&Model::feed_gate>, layer, matrix_tasks(w.gate.rows / 16));
        add(task<&Model::feed_down>, layer, matrix_tasks(w.down.rows / 16));
    }
    add(task<&Model::norm_outputs>, 0, int(output_tokens_.size()));
    if (num_outputs_ > 0) {
        add(task<&Model::project_logits>, 0, matrix_tasks(weights_.head.rows / 16));
        add(task<&Model::pick_best>, 0, num_outputs_);
    }
}

// ---- phases

static void rotation(const std::vector<double>& frequencies, float factor, int position, float* cos_sin) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
        double angle = position * frequencies[i];
        cos_sin[2 * i] = float(std::cos(angle)) * factor;
        cos_sin[2 * i + 1] = float(std::sin(angle)) * factor;
    }
}

void Model::embed(int, int token, int) {
    float* states = states_.data() + size_t(token) * hidden_stride_;
    k_.unpack_row(weights_.embedding, tokens_[token], states);
    if (config_.embedding_scale != 1.0f) k_.scale(states, config_.embedding_scale, config_.hidden_size);
    int position = position_of_token_[token];
    rotation(config_.frequencies, config_.rotary_factor, position, cos_sin_.data() + size_t(token) * config_.head_dim);
    if (!config_.local_frequencies.empty())
        rotation(config_.local_frequencies, config_.local_rotary_factor, position, local_cos_sin_.data() + size_t(token) * config_.head_dim);
}

void Model::norm_tokens(int token, const float* delta_weight, bool has_delta, const float* weight, int thread) {
    float* states = states_.data() + size_t(token) * hidden_stride_;
    float* delta = has_delta ? delta_.data() + size_t(token) * hidden_stride_ : nullptr;
    float* normed = scratch_[thread].a.data();
    // scratch is shared with the gates: what lies behind the hidden size must be zero, for it is part of a group
    std::fill(normed + config_.hidden_size, normed + hidden_stride_, 0.0f);
    k_.add_norm(states, delta, delta_weight, weight, config_.rms_eps, config_.hidden_size, normed);
    k_.quantize(normed, hidden_stride_ / GROUP, x_.rows(), token, 0);
}

void Model::norm_attention(int layer, int token, int thread) {
    const float* delta_weight = layer ? weights_.layers[layer - 1].post_ffn_norm : nullptr;
    norm_tokens(token, delta_weight, layer > 0, weights_.layers[layer].attention_norm, thread);
}

void Model::norm_ffn(int layer, int token, int thread) {
    norm_tokens(token, weights_.layers[layer].post_attention_norm, true, weights_.layers[layer].ffn_norm, thread);
}

void Model::multiply_range(const Matrix& w, const QuantizedRows& x, int num_tokens, int number, float* out, int stride, int column) {
    int num_blocks = w.rows / BLOCK_ROWS, step = blocks_per_task(num_blocks);
    int begin = number * step, end = std::min(num_blocks, begin + step);
    k_.multiply(w, begin, end, x, 0, num_tokens, out + column + begin * BLOCK_ROWS, stride);
}

void Model::project_qkv(int layer, int number, int) {
    const Layer& w = weights_.layers[layer];
    int column = 0;
    for (const Matrix* part : {&w.q, &w.k, &w.v}) {
        int tasks = matrix_tasks(part->rows / BLOCK_ROWS);
        if (number < tasks) return multiply_range(*part, x_.rows(), num_tokens_, number, qkv_.data(), qkv_stride_, column);
        number -= tasks;
        column += part->rows;
    }
}

void Model::rotate_and_store(int layer, int token, int) {
    const Layer& w = weights_.layers[layer];
    const int head_dim = config_.head_dim;
    bool local = config_.windows[layer] && !config_.local_frequencies.empty();
    const float* cos_sin = (local ? local_cos_sin_ : cos_sin_).data() + size_t(token) * head_dim;
    float* q = qkv_.data() + size_t(token) * qkv_stride_;
    float* key = q + w.q.rows;
    float* value = key + w.k.rows;
    for (int head = 0; head < config_.num_heads; ++head) k_.norm_rotate(q + head * head_dim, w.q_norm, config_.rms_eps, cos_sin, head_dim);
    KVLayer store = kv(layer);
    const int32_t* pages = (*rows_)[row_of_token_[token]].pages.data();
    for (int head = 0; head < config_.num_kv_heads; ++head) {
        k_.norm_rotate(key + head * head_dim, w.k_norm, config_.rms_eps, cos_sin, head_dim);
        k_.store_kv(store, pages, position_of_token_[token], head, key + head * head_dim, value + head * head_dim);
    }
}

void Model::attend(int layer, int number, int thread) {
    const AttendTask& task = attend_plan(layer).tasks[number];
    const Row& row = (*rows_)[task.row];
    const int group = config_.num_heads / config_.num_kv_heads, head_dim = config_.head_dim;
    const int num_parts = task.part_end - task.part_begin, queries = task.count * group;
    const int token = first_token_[task.row] + task.first;
    Attend work{};
    work.q = qkv_.data() + size_t(token) * qkv_stride_ + size_t(task.kv_head) * group * head_dim;
    work.stride = qkv_stride_;
    work.group = group;
    work.count = task.count;
    work.position = row.position + task.first;
    work.pages = row.pages.data();
    work.kv_head = task.kv_head;
    work.window = config_.windows[layer];
    work.scale = config_.attention_scale;
    work.softcap = config_.attention_softcap;
    work.part_begin = task.part_begin;
    work.part_end = task.part_end;
    if (task.parts_at >= 0) {
        const int all_parts = work.position / PARTITION + 1 - (work.window ? std::max(0, work.position - work.window + 1) / PARTITION : 0);
        const size_t at = size_t(task.parts_at) + size_t(task.kv_head) * group * all_parts;
        work.part_stride = all_parts;
        work.part_max = part_max_.data() + at;
        work.part_sum = part_sum_.data() + at;
        work.part_out = part_out_.data() + at * head_dim;
        k_.attend(kv(layer), work);
        return;
    }
    Buffer<float>& parts = scratch_[thread].parts;
    const size_t slots = size_t(queries) * num_parts;
    parts.reserve(slots * (head_dim + 2) + 32);
    work.part_stride = num_parts;
    work.part_out = parts.data();
    work.part_max = parts.data() + slots * head_dim;
    work.part_sum = work.part_max + slots;
    k_.attend(kv(layer), work);
    for (int query = 0; query < queries; ++query) {
        const size_t at = size_t(query) * num_parts;
        float* out = attended_.data() + size_t(token + query / group) * attended_stride_ + size_t(task.kv_head * group + query % group) * head_dim;
        k_.merge(work.part_max + at, work.part_sum + at, work.part_out + at * head_dim, num_parts, head_dim, out);
    }
}

void Model::gather_attention(int layer, int token, int) {
    float* out = attended_.data() + size_t(token) * attended_stride_;
    const std::vector<Split>& splits = splits_[plan_of_layer_[layer]];
    auto split = std::lower_bound(splits.begin(), splits.end(), token, [](const Split& s, int t) { return s.token < t; });
    if (split != splits.end() && split->token == token) {
        for (int head = 0; head < config_.num_heads; ++head) {
            const size_t at = size_t(split->parts_at) + size_t(head) * split->num_parts;
            k_.merge(part_max_.data() + at, part_sum_.data() + at, part_out_.data() + at * config_.head_dim, split->num_parts, config_.head_dim,
                     out + size_t(head) * config_.head_dim);
        }
    }
    k_.quantize(out, attended_stride_ / GROUP, attended_q_.rows(), token, 0);
}

void Model::project_output(int layer, int number, int) {
    multiply_range(weights_.layers[layer].o, attended_q_.rows(), num_tokens_, number, delta_.data(), hidden_stride_, 0);
}

void Model::feed_gate(int layer, int number, int thread) {
    const Layer& w = weights_.layers[layer];
    const int num_blocks = w.gate.rows / BLOCK_ROWS, step = blocks_per_task(num_blocks);
    const int begin = number * step, end = std::min(num_blocks, begin + step);
    float *gate = scratch_[thread].a.data(), *up = scratch_[thread].b.data();
    for (int block = begin; block < end; block += 2) {
        const int stop = std::min(end, block + 2);
        if (stop - block == 1) {  // the second half of the last group has no rows
            std::memset(gate, 0, sizeof(float) * GATE_TOKENS * GROUP);
            std::memset(up, 0, sizeof(float) * GATE_TOKENS * GROUP);
        }
        for (int token = 0; token < num_tokens_; token += GATE_TOKENS) {
            const int count = std::min(GATE_TOKENS, num_tokens_ - token);
            k_.multiply(w.gate, block, stop, x_.rows(), token, token + count, gate, GROUP);
            k_.multiply(w.up, block, stop, x_.rows(), token, token + count, up, GROUP);
            k_.gate(config_.activation, gate, up, count * GROUP, gate);
            for (int i = 0; i < count; ++i) k_.quantize(gate + i * GROUP, 1, ffn_q_.rows(), token + i, block / 2);
        }
    }
}

void Model::feed_down(int layer, int number, int) {
    multiply_range(weights_.layers[layer].down, ffn_q_.rows(), num_tokens_, number, delta_.data(), hidden_stride_, 0);
}

void Model::norm_outputs(int, int number, int thread) {
    const int token = output_tokens_[number];
    float* normed = scratch_[thread].a.data();
    std::fill(normed + config_.hidden_size, normed + hidden_stride_, 0.0f);
    k_.add_norm(states_.data() + size_t(token) * hidden_stride_, delta_.data() + size_t(token) * hidden_stride_,
                weights_.layers.back().post_ffn_norm, weights_.final_norm, config_.rms_eps, config_.hidden_size, normed);
    const int row = row_of_token_[token];
    if (token == first_token_[row] + (*rows_)[row].count - 1) is_finite_[row] = k_.all_finite(normed, config_.hidden_size);
    if (number < num_outputs_) k_.quantize(normed, hidden_stride_ / GROUP, outputs_q_.rows(), number, 0);
}

void Model::project_logits(int, int number, int) {
    multiply_range(weights_.head, outputs_q_.rows(), num_outputs_, number, logits_.data(), logits_stride_, 0);
    if (config_.logit_softcap == 0.0f) return;
    const int num_blocks = weights_.head.rows / BLOCK_ROWS, step = blocks_per_task(num_blocks);
    const int begin = number * step * BLOCK_ROWS, end = std::min(num_blocks, (number + 1) * step) * BLOCK_ROWS;
    for (int output = 0; output < num_outputs_; ++output)
        k_.softcap(logits_.data() + size_t(output) * logits_stride_ + begin, config_.logit_softcap, end - begin);
}

void Model::pick_best(int, int output, int) {
    best_[output] = k_.argmax(logits_.data() + size_t(output) * logits_stride_, config_.vocab_size);
}

}  // namespace ms
