// What the kernels of linear have in common: the weight rows of a block, and where its activations and outputs lie.
#pragma once

#include "../linear.h"
#include "tile.h"

// The weight rows of a block, in `high` tiles of 16; they do not cross groups, and past the end the last one is repeated and
// not stored.
struct RowMap {
  int group, base, count, width;  // Output columns base .. base + count - 1, of `width` that a block has.
  bool swiglu;
  int columns;

  // Blocks of that height along the output columns.
  FL_DEVICE static int blocks(const LinearParams& p, int high) {
    int columns = p.swiglu ? p.weight_rows / 2 : p.weight_rows, width = high * (p.swiglu ? kTileRows / 2 : kTileRows);
    return p.groups * ((columns / p.groups + width - 1) / width);
  }

  FL_DEVICE RowMap(const LinearParams& p, int block, int high) : swiglu(p.swiglu != 0) {
    columns = swiglu ? p.weight_rows / 2 : p.weight_rows;
    width = high * (swiglu ? kTileRows / 2 : kTileRows);
    int per_group = columns / p.groups, blocks = (per_group + width - 1) / width;
    group = block / blocks;
    base = group * per_group + block % blocks * width;
    count = min(width, (group + 1) * per_group - base);
  }

  FL_DEVICE int weight_row(int r) const {
    int within = swiglu ? r / kTileRows * 8 + r % 8 : r;
    int column = base + min(within, count - 1);
    return swiglu && r % kTileRows >= 8 ? columns + column : column;
  }

  // The row of the tile that makes an output column; with SwiGLU its gate, eight before its up.
  FL_DEVICE int tile_row(int within) const { return swiglu ? within / 8 * kTileRows + within % 8 : within; }
};

FL_DEVICE void store(const LinearParams& p, int64_t row, int columns, int column, float value) {
  int64_t at = row * columns + column;
  if (p.out_f32) {
    ((float*)p.out)[at] = value;
  } else {
    ((uint16_t*)p.out)[at] = float_to_bf16(value);
  }
}

// This block's activation row `row`, null past the end.
FL_DEVICE const uint16_t* activation_row(const LinearParams& p, const RowMap& map, int row) {
  return row < p.rows ? p.x + ((int64_t)row * p.groups + map.group) * p.depth : nullptr;
}
