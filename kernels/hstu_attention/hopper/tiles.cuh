// Tiles of rows of one sequence and head, and the columns that their rows see.
#pragma once

#include <cstdint>

namespace hopper {

constexpr int kGroups = 2;      // consumer warpgroups of a block
constexpr int kGroupRows = 64;  // of one of them
constexpr int kTileRows = kGroups * kGroupRows;

struct Mask {
    int contextual;
    int window;  // 0 is none
};

struct Span {
    int begin;
    int end;
};

// columns, beside its own, that a row sees: one interval. See `masks.ProductionMask`.
__host__ __device__ inline Span columns_of(int row, int first_target, Mask mask) {
    const int merged = mask.contextual > 1 ? mask.contextual - 1 : 0;
    const int last = first_target - merged;
    if (last <= 0) return {0, 0};
    if (row < mask.contextual) return {0, first_target};
    int position = row - merged;
    position = position > last ? last : position;
    if (position <= 0) return {0, 0};
    const int far = position - mask.window;
    return {mask.window > 0 && far > 0 ? far + merged : 0, position + merged};
}

// What rows [begin, end) see: the union and the intersection of their intervals.
struct Visible {
    Span some;
    Span all;
};

__host__ __device__ inline Visible visible_to(int begin, int end, int first_target, Mask mask) {
    const Span first = columns_of(begin, first_target, mask), last = columns_of(end - 1, first_target, mask);
    if (begin >= mask.contextual) return {{first.begin, last.end}, {last.begin, first.end}};
    if (end <= mask.contextual) return {first, first};
    return {{0, first.end > last.end ? first.end : last.end},
            {last.begin, columns_of(mask.contextual, first_target, mask).end}};
}

// Blocks of columns that a tile visits: those of the interval, then those of the diagonal behind it.
struct Blocks {
    int begin;
    int middle;  // end of the interval's blocks
    int own;     // first block of the diagonal's
    int count;

    __host__ __device__ int at(int index) const {
        const int block = begin + index;
        return block < middle ? block : own + (block - middle);
    }
};

__host__ __device__ inline Blocks blocks_of(int begin, int end, int first_target, Mask mask, int columns) {
    const Span some = visible_to(begin, end, first_target, mask).some;
    Blocks blocks{0, 0, 0, 0};
    if (some.end > some.begin) {
        blocks.begin = some.begin / columns;
        blocks.middle = (some.end + columns - 1) / columns;
    }
    blocks.own = begin / columns > blocks.middle ? begin / columns : blocks.middle;
    const int behind = (end + columns - 1) / columns;
    blocks.count = blocks.middle - blocks.begin + (behind > blocks.own ? behind - blocks.own : 0);
    return blocks;
}

// One entry of the work list; every head has this tile.
struct Tile {
    int start;  // the sequence's first row in the jagged tensor
    int length;
    int first_target;
    int row;  // the tile's first row in the sequence
};

struct WorkList {
    int next;   // of the tiles of all heads, the next one
    int count;  // of tiles, without heads
    int unused[2];
    Tile tiles[1];
};

}  // namespace hopper
