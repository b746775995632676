// From stored weights to packed matrices (kernels/layout.h). Every function works on a range of blocks, so ranges can be packed in parallel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace ms {

// The block types of GGUF that are packed as they are; others are dequantised and packed as floats.
enum class Stored : int32_t { q4_0, q4_1, q8_0, q4_k, q6_k };

Format packed_format(Stored type);
size_t stored_row_bytes(Stored type, int inputs);
int stored_block_inputs(Stored type);  // inputs of a row are a multiple of it

// Rows of a matrix in blocks of 16 and inputs in whole groups, or super-blocks where the format has them.
int padded_rows(int rows);
int padded_inputs(Format format, int inputs);
size_t packed_bytes(Format format, int rows, int inputs);

// Blocks block_begin..block_end - 1 of the packed matrix at `out`, from rows of GGUF blocks at `stored`. Packed row i is stored row
// order[i], or i where `order` is null; rows past `rows` are zero. The weights stay the same to the bit.
// False where a scale is NaN or infinite, as in a file that is damaged.
bool pack_stored(Stored type, const uint8_t* stored, int rows, int inputs, const int32_t* order, int block_begin, int block_end, uint8_t* out);

// The same from float rows into Format::q8: each group's scale is the least fp16 number that is not below max|w| / 127, each weight
// rounded to the nearest multiple (ties to even). False where a weight is not finite or above 8e6: its scale would be none.
bool pack_floats(const float* values, int rows, int inputs, int block_begin, int block_end, uint8_t* out);

}  // namespace ms
