// What the phases of a step do, in the order of a layer. Tasks of a phase run side by side, on any thread.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model.h"

namespace ms {

static void rotation(const std::vector<double>& frequencies, float factor, int position, float* cos_sin) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
        double angle = position * frequencies[i];
        cos_sin[2 * i] = float(std::cos(angle)) * factor;
        cos_sin[2 * i + 1] = float(std::sin(angle)) * factor;
    }
}

void Model::embed(int, int token, int) {
    float* states = states_.data() + size_t(token) * hidden_stride_;
    const Row& row = (*rows_)[row_of_token_[token]];
    if (const int at = token - first_token_[row_of_token_[token]]; at < row.num_embedded) {
        std::memcpy(states, row.embeddings + size_t(at) * config_.hidden_size, sizeof(float) * config_.hidden_size);
        std::fill(states + config_.hidden_size, states + hidden_stride_, 0.0f);
    } else {
        k_.unpack_row(weights_.embedding, tokens_[token], states);
        if (config_.embedding_scale != 1.0f) k_.scale(states, config_.embedding_scale, config_.hidden_size);
    }
    int position = position_of_token_[token];
    rotation(config_.frequencies, config_.rotary_factor, position, cos_sin_.data() + size_t(token) * config_.head_dim);
    if (!config_.local_frequencies.empty())
        rotation(config_.local_frequencies, config_.local_rotary_factor, position, local_cos_sin_.data() + size_t(token) * config_.head_dim);
}

// the normed states of a token, after what the block before has added to them (nothing, where `has_delta` is false)
const float* Model::norm(int token, bool has_delta, const float* delta_weight, const float* weight, int thread) {
    const size_t at = size_t(token) * hidden_stride_;
    float* normed = scratch_[thread].normed.data();
    k_.add_norm(states_.data() + at, has_delta ? delta_.data() + at : nullptr, delta_weight, weight, config_.rms_eps, config_.hidden_size, normed);
    return normed;
}

void Model::norm_attention(int layer, int token, int thread) {
    const float* delta_weight = layer ? weights_.layers[layer - 1].post_ffn_norm : nullptr;
    k_.quantize(norm(token, layer > 0, delta_weight, weights_.layers[layer].attention_norm, thread), x_.rows(), token);
}

void Model::norm_ffn(int layer, int token, int thread) {
    const Layer& w = weights_.layers[layer];
    k_.quantize(norm(token, true, w.post_attention_norm, w.ffn_norm, thread), x_.rows(), token);
}

// `out` is where the matrix's first row of the first token goes
void Model::multiply(const Matrix& w, const QuantizedRows& x, int num_tokens, int number, float* out, int stride) {
    const Blocks blocks = blocks_of(w, number);
    k_.multiply(w, blocks.begin, blocks.end, x, 0, num_tokens, out + blocks.begin * BLOCK_ROWS, stride);
}

void Model::project_qkv(int layer, int number, int) {
    const Layer& w = weights_.layers[layer];
    int column = 0;
    for (const Matrix* part : {&w.q, &w.k, &w.v}) {
        if (number < num_tasks(*part)) return multiply(*part, x_.rows(), num_tokens_, number, qkv_.data() + column, qkv_stride_);
        number -= num_tasks(*part);
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
        const int all_parts = work.position / PARTITION + 1 - first_part(work.window, work.position);
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
    k_.quantize(out, attended_q_.rows(), token);
}

void Model::project_output(int layer, int number, int) {
    multiply(weights_.layers[layer].o, attended_q_.rows(), num_tokens_, number, delta_.data(), hidden_stride_);
}

void Model::feed_gate(int layer, int number, int thread) {
    const Layer& w = weights_.layers[layer];
    const Blocks blocks = blocks_of(w.gate, number);
    float *gate = scratch_[thread].gate.data(), *up = scratch_[thread].up.data();
    for (int block = blocks.begin; block < blocks.end; block += 2) {
        const int stop = std::min(blocks.end, block + 2), rows = (stop - block) * BLOCK_ROWS;
        for (int token = 0; token < num_tokens_; token += GATE_TOKENS) {
            const int count = std::min(GATE_TOKENS, num_tokens_ - token);
            k_.multiply(w.gate, block, stop, x_.rows(), token, token + count, gate, rows);
            k_.multiply(w.up, block, stop, x_.rows(), token, token + count, up, rows);
            k_.gate(config_.activation, gate, up, count * rows, gate);
            float* out = gated_.data() + size_t(token) * ffn_stride_ + block * BLOCK_ROWS;
            for (int i = 0; i < count; ++i) std::memcpy(out + size_t(i) * ffn_stride_, gate + i * rows, sizeof(float) * rows);
        }
    }
}

void Model::gather_gated(int, int token, int) { k_.quantize(gated_.data() + size_t(token) * ffn_stride_, ffn_q_.rows(), token); }

void Model::feed_down(int layer, int number, int) {
    multiply(weights_.layers[layer].down, ffn_q_.rows(), num_tokens_, number, delta_.data(), hidden_stride_);
}

void Model::norm_outputs(int, int task, int thread) {
    const int token = output_tokens_[task];
    const float* normed = norm(token, true, weights_.layers.back().post_ffn_norm, weights_.final_norm, thread);
    const int number = row_of_token_[token];
    const Row& row = (*rows_)[number];
    if (token == first_token_[number] + row.count - 1) {
        is_finite_[number] = k_.all_finite(normed, config_.hidden_size);
        if (row.kept_state >= 0)
            std::memcpy(kept_states_.data() + size_t(row.kept_state) * config_.hidden_size, normed, sizeof(float) * config_.hidden_size);
    }
    if (task < num_outputs_) k_.quantize(normed, outputs_q_.rows(), task);
}

void Model::project_logits(int, int number, int) {
    multiply(weights_.head, outputs_q_.rows(), num_outputs_, number, logits_.data(), logits_stride_);
    if (config_.logit_softcap == 0.0f) return;
    const Blocks blocks = blocks_of(weights_.head, number);
    for (int output = 0; output < num_outputs_; ++output)
        k_.softcap(logits_.data() + size_t(output) * logits_stride_ + blocks.begin * BLOCK_ROWS, config_.logit_softcap,
                   (blocks.end - blocks.begin) * BLOCK_ROWS);
}

void Model::pick_best(int, int output, int) {
    best_[output] = k_.argmax(logits_.data() + size_t(output) * logits_stride_, config_.vocab_size);
}

}  // namespace ms
