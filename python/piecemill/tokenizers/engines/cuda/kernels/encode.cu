// Byte-level BPE on the device: a batch of documents to ids. Design and figures: docs/gpu.md.
//
// Compiled by NVRTC with PM_SPLIT (a number of `Split`), PM_ID (u16 or u32: the type of an id) and, in tests,
// PM_WEAK_HASH. Each kernel takes a `Slot` in device memory. They run in this order:
//   first:   mark_documents, classify, split, look_up, admit, claim, report, merge_short;
//            beside the next batch: merge_warp, merge_64, merge_32
//   second:  publish, look_up_again, offsets, document_ends, compact, report
// Words longer than LONGEST, and words that `look_up_again` does not find, are listed for the host, which encodes them
// and calls `patch`. If there are more misses than their list holds, the host encodes the batch, and `second` is not run.
#include "splits.h"

typedef PM_ID ID;

constexpr u32 NONE = 0xFFFFFFFFu;
constexpr u32 TILE = 1024;      // bytes of a batch that one warp works on
constexpr u32 INLINE = 15;      // words up to here are in the table itself
constexpr u32 LONGEST = 1024;   // longer words are for the host
constexpr u32 PROBES = 128;     // places of the table that are looked at for a word
constexpr u32 GROUPS = 4;       // words to merge, by length: to 15, to 32, to 64, to LONGEST bytes
constexpr u32 TAKEN = NONE - 1;
constexpr u32 CHANGES = 16;      // flag of a class: normalizing may change the character

struct Counts {  // of one batch; `misses` and `missed_bytes` are added to as one
  u32 misses, missed_bytes, winners[GROUPS], longs, unresolved, invalid, found, tokens, used, pool_used, admitted;
};
struct Life {  // of the table and the pool
  u32 used, pool_used, promised, padding;
};
struct Entry {
  u64 tag, rest;        // together the word itself, for short ones; tag 0: free
  u64 low, high;        // its ids: see `Ids`; low 0: not known yet
};
struct Batch {
  u32 n, documents, bos, eos;     // bytes and documents; ids that stand before and after each document, or NONE
  i64 from;                       // `ends` count from here
};
struct Slot {
  const Batch* batch;
  const u8* text;
  const i64* ends;
  u8* kinds;
  u32 *documents, *sure, *words;  // a bit for each byte: a document, a sure word, a word starts there
  const u8 *class_index, *class_blocks;
  Entry* table;
  u32* pool;
  const u64* pairs;     // hash table of left << 40 | right << 20 | symbol
  const u32 *byte_pairs, *symbol_of_byte, *id_of_symbol;
  uint2* misses;
  uint4* winners[GROUPS];
  uint2 *longs, *unresolved;
  u8* tile_missed;
  u32 *tile_first, *tile_count, *tile_base;
  u16* document_offset;
  ID *staged, *out;
  u32 *direct_count, *direct;     // ids of words that have no place in the table, by position
  i64 *raw_ends, *token_ends;
  Counts *counts, *reported;      // the second one is in host memory
  Life* life;
  const u8* added;      // bytes of the tokens that are looked for in texts
  const u32* added_ends;
  u8* found;            // for each document: whether one of them is in it
  u32 table_mask, pool_words, pair_shift, pair_mask, added_count, most_misses, most_unresolved, padding;
  u64 added_first[4];   // which bytes they begin with
};

__device__ __forceinline__ bool bit(const u32* bits, u32 at) { return bits[at >> 5] >> (at & 31) & 1; }
__device__ __forceinline__ void set_bit(u32* bits, u32 at) { atomicOr(bits + (at >> 5), 1u << (at & 31)); }

// ------------------------------------------------------------------------------------------------ where words start

extern "C" __global__ void mark_documents(const Slot* slot) {
  const u32 d = blockIdx.x * blockDim.x + threadIdx.x;
  const Batch& batch = *slot->batch;
  if (d <= batch.documents) set_bit(slot->documents, d ? (u32)(slot->ends[d - 1] - batch.from) : 0);
}

__device__ __noinline__ u32 class_at(const Slot& s, u32 at, u32 n) {  // END if it is not UTF-8; 16 more: see `CHANGES`
  u32 before = 0, after = 1, point;
  while (before < 3 && before < at && !bit(s.documents, at - before)) ++before;
  while (after < 4 && at + after < n && !bit(s.documents, at + after)) ++after;
  if (!character_of(s.text + at, before, after, &point)) return END;
  return s.class_blocks[s.class_index[point >> 8] * 256 + (point & 255)];
}

// The document at this byte is for the host: normalizing may change it, or an added token is in it.
__device__ __noinline__ void leave_to_host(const Slot& s, u32 at) {
  u32 low = 0, high = s.batch->documents;
  while (low < high) {
    const u32 middle = (low + high) / 2;
    if (s.ends[middle] - s.batch->from > at) high = middle;
    else low = middle + 1;
  }
  s.found[low] = 1;
  s.counts->found = 1;
}

__device__ __noinline__ bool added_at(const Slot& s, u32 at, u32 n) {
  for (u32 t = 0; t < s.added_count; ++t) {
    const u32 start = t ? s.added_ends[t - 1] : 0, length = s.added_ends[t] - start;
    u32 i = 0;
    while (i < length && at + i < n && s.text[at + i] == s.added[start + i] && !(i && bit(s.documents, at + i))) ++i;
    if (i == length) return true;
  }
  return false;
}

// Classes of 16 bytes and the sure starts among them. Those that are ASCII and begin no document go four at a time.
extern "C" __global__ void __launch_bounds__(256) classify(const Slot* slot) {
  __shared__ u8 ascii[128];
  const Slot& s = *slot;
  const u32 n = s.batch->n;
  if (blockIdx.x * blockDim.x * 16 > n) return;
  if (threadIdx.x < 128) ascii[threadIdx.x] = s.class_blocks[s.class_index[0] * 256 + threadIdx.x];
  __syncthreads();
  const u32 thread = blockIdx.x * blockDim.x + threadIdx.x, first = thread * 16, lane = threadIdx.x & 31;
  const uint4 loaded = *(const uint4*)(s.text + first);
  const u32 word[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
  const u32 starts = s.documents[thread >> 1] >> (16 * (thread & 1)) & 0xFFFF;
  const bool plain = !((word[0] | word[1] | word[2] | word[3]) & 0x80808080u) && first + 16 <= n && !starts;
  u32 kinds[4] = {0, 0, 0, 0};
  if (plain) {
#pragma unroll
    for (int k = 0; k < 16; ++k) kinds[k >> 2] |= (u32)ascii[word[k >> 2] >> (8 * (k & 3)) & 127] << (8 * (k & 3));
  } else {
    u32 carried = 0, left = 0;  // the class of the character under way, and how many bytes of it are to come
    bool valid = true;
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const u32 byte = word[k >> 2] >> (8 * (k & 3)) & 255;
      u32 kind;
      if (first + k >= n) kind = END;
      else if (byte < 0x80) kind = ascii[byte];
      else if (left) { kind = carried | CONTINUES; --left; }
      else {
        const u32 found = class_at(s, first + k, n);
        valid &= found != END;
        kind = (found & 15) | (byte < 0xC0 ? (u32)CONTINUES : 0);
        if (found & CHANGES) leave_to_host(s, first + k);
        if (byte >= 0xC0) { carried = found & 15; left = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3; }
      }
      kinds[k >> 2] |= kind << (8 * (k & 3));
    }
    if (!valid) atomicAdd(&s.counts->invalid, 1);
  }
  u32 before = __shfl_up_sync(~0u, kinds[3] >> 24 & 15, 1);
  if (lane == 0) before = first && first <= n ? (s.text[first - 1] < 0x80 ? ascii[s.text[first - 1]] : class_at(s, first - 1, n) & 15) : (u32)END;
  u32 after = __shfl_down_sync(~0u, starts & 1 ? 0 : word[0] & 255, 1);
  if (lane == 31) after = first + 16 < n && !bit(s.documents, first + 16) ? s.text[first + 16] : 0;
  u32 sure = 0;
  if (plain) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const u32 befores = kinds[w] << 8 | (w ? kinds[w - 1] >> 24 : 0), nexts = word[w] >> 8 | (w < 3 ? word[w + 1] : after) << 24;
      const u32 four = four_surely_start<PM_SPLIT>(befores, kinds[w], word[w], nexts) >> 7;
      sure |= ((four | four >> 7 | four >> 14 | four >> 21) & 15) << (4 * w);
    }
    const u32 one = surely_starts<PM_SPLIT>(1u << before, 1u << (kinds[0] & 15), word[0] & 255, word[0] >> 8 & 255);
    sure = (sure & ~1u) | one;  // what is before it may be any character
  } else {
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const u32 shift = 8 * (k & 3), kind = kinds[k >> 2] >> shift & 255, now = kind & 15, byte = word[k >> 2] >> shift & 255;
      const u32 opens = starts >> k & 1;
      const u32 next = k == 15 ? after : starts >> (k + 1) & 1 ? 0 : word[(k + 1) >> 2 & 3] >> (8 * ((k + 1) & 3)) & 255;
      const bool inside = kind & CONTINUES || now == END;
      sure |= (u32)(opens || (!inside && surely_starts<PM_SPLIT>(1u << before, 1u << now, byte, next))) << k;
      const u32 shown = first + k >= n ? 0xFFu : opens ? now << 4 | END : kind;
      kinds[k >> 2] ^= (kind ^ shown) << shift;
      before = now;
    }
  }
  if (s.added_count) {
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const u32 byte = word[k >> 2] >> (8 * (k & 3)) & 255;
      if (s.added_first[byte >> 6] >> (byte & 63) & 1 && first + k < n && added_at(s, first + k, n)) leave_to_host(s, first + k);
    }
  }
  *(uint4*)(s.kinds + first) = make_uint4(kinds[0], kinds[1], kinds[2], kinds[3]);
  const u32 other = __shfl_xor_sync(~0u, sure, 1);
  if (!(lane & 1)) s.sure[thread >> 1] = sure | other << 16;
}

// The places of the set bits of 32 words, one of each lane, in order; bit 15 says that `flags` has it too.
__device__ __forceinline__ u32 gather(u32 word, u32 flags, u32 lane, u16* places) {
  const u32 mine = __popc(word);
  u32 sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const u32 below = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += below;
  }
  const u32 all = __shfl_sync(~0u, sum, 31);
  for (u32 at = sum - mine; word; word &= word - 1) {
    const u32 b = __ffs(word) - 1;
    places[at++] = (u16)(lane * 32 + b) | (u16)((flags >> b & 1) << 15);
  }
  __syncwarp();
  return all;
}

__device__ __forceinline__ u32 next_set(const u32* bits, u32 word, u32 lane) {  // one is there: at the end of the batch
  for (;; word += 32) {
    const u32 value = bits[word + lane], any = __ballot_sync(~0u, value != 0);
    if (any) {
      const int who = __ffs(any) - 1;
      return (word + who) * 32 + __ffs(__shfl_sync(~0u, value, who)) - 1;
    }
  }
}

__device__ __forceinline__ u32 below(u32 word, u32 first, u32 n) {  // of 32 bits from `first` on, those before n
  return first >= n ? 0 : first + 32 <= n ? word : word & ((1u << (n - first)) - 1);
}

// All words: from each sure start, one after another up to the next. One warp for each tile.
extern "C" __global__ void __launch_bounds__(256) split(const Slot* slot) {
  __shared__ u16 lists[8][TILE];
  __shared__ u32 found[8][32];
  const Slot& s = *slot;
  const u32 n = s.batch->n;
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tile = blockIdx.x * 8 + warp, base = tile * TILE;
  if (base > n) return;
  const u32 sure = s.sure[tile * 32 + lane];
  u32* bits = found[warp];
  bits[lane] = sure;
  const u32 count = gather(below(sure, base + lane * 32, n), 0, lane, lists[warp]);
  if (count) {
    const u32 after = base + TILE > n ? n : next_set(s.sure, tile * 32 + 32, lane);
    const Text text = {s.kinds, s.text};
    for (u32 k = lane; k < count; k += 32) {
      const u32 stop = k + 1 < count ? base + lists[warp][k + 1] : after;
      const u32 at = for_each_start<PM_SPLIT>(text, base + lists[warp][k], stop, [&](u32 start) {
        if (start - base < TILE) atomicOr(bits + ((start - base) >> 5), 1u << (start & 31));
        else set_bit(s.words, start);
      });
      if (at != stop) atomicAdd(&s.counts->invalid, 1);  // a sure start inside a word: never, for valid UTF-8
    }
    __syncwarp();
  }
  if (bits[lane]) atomicOr(s.words + tile * 32 + lane, bits[lane]);
}

// ---------------------------------------------------------------------------------------------------- the word table

__device__ __forceinline__ u64 eight(const u8* text, u32 at) {
  const u64* from = (const u64*)(text + (at & ~7u));
  const u32 shift = (at & 7) * 8;
  return from[0] >> shift | (from[1] << 1) << (63 - shift);
}
__device__ __forceinline__ u64 first_bytes(u64 word, u32 count) { return count < 8 ? word & ((1ull << (8 * count)) - 1) : word; }
__device__ __forceinline__ u64 mix(u64 x) {  // one to one
  x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ull;
  x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ull;
  return x ^ x >> 32;
}

struct Key { u64 tag, rest; };

// Of a short word the key is the word: for a given `rest`, the tag is one to one with the first eight bytes.
__device__ __forceinline__ Key short_key(const u8* text, u32 at, u32 length) {
  const u64 low = first_bytes(eight(text, at), length);
  const u64 rest = (length > 8 ? first_bytes(eight(text, at + 8), length - 8) : 0) | (u64)length << 56;
#ifdef PM_WEAK_HASH
  return {low, rest};
#else
  return {mix(low ^ mix(rest)), rest};
#endif
}
__device__ __noinline__ Key long_key(const u8* text, u32 at, u32 length) {
  u64 a = 0x243F6A8885A308D3ull ^ length, b = 0x13198A2E03707344ull;
#ifndef PM_WEAK_HASH
  for (u32 i = 0; i < length; i += 8) {
    const u64 word = first_bytes(eight(text, at + i), length - i);
    a = (a ^ word) * 0x9E3779B97F4A7C15ull;
    a = a << 29 | a >> 35;
    b = (b + word) * 0xC2B2AE3D27D4EB4Full;
    b ^= b >> 31;
  }
#endif
  return {mix(a), 0xFFull << 56 | (u64)length << 32 | (u32)(b ^ b >> 32)};
}
__device__ __forceinline__ Key key_of(const u8* text, u32 at, u32 length) {
  return length <= INLINE ? short_key(text, at, length) : long_key(text, at, length);
}
__device__ __forceinline__ u32 place_of(const Slot& s, u64 tag) { return (u32)(tag ^ tag >> 40) & s.table_mask; }

__device__ __noinline__ bool same_word(const Slot& s, u32 at, u32 length, u64 low) {
  const u64* word = (const u64*)(s.pool + (low >> 4));
  for (u32 i = 0; i < length; i += 8)
    if (word[i >> 3] != first_bytes(eight(s.text, at + i), length - i)) return false;
  return true;
}
__device__ __forceinline__ u32 key_words(u32 length) { return length > INLINE ? (length + 7) / 8 * 2 : 0; }

// Ids of a word: their number in four bits of `low` and up to six ids of 20 bits; or 15 there, a place in the pool above
// it, and the number in `high`. low 0: none.
struct Ids { u64 low, high; };

__device__ __forceinline__ Ids find(const Slot& s, u32 at, u32 length) {
  const Key key = key_of(s.text, at, length);
  u32 place = place_of(s, key.tag);
  for (u32 probe = 0; probe < PROBES; ++probe, place = (place + 1) & s.table_mask) {
    const ulonglong2* entry = (const ulonglong2*)(s.table + place);
    const ulonglong2 there = entry[0], ids = entry[1];
    if (!there.x) break;
    if (there.x != key.tag || there.y != key.rest) continue;
    if (ids.x && (length <= INLINE || same_word(s, at, length, ids.x))) return {ids.x, ids.y};
    break;
  }
  return {0, 0};
}

// A free place, claimed; NONE: there is no room; TAKEN: a word with this tag, almost surely the same, claimed one.
__device__ __forceinline__ u32 claim_place(const Slot& s, Key key) {
  if (!key.tag) return NONE;
  u32 place = place_of(s, key.tag);
  for (u32 probe = 0; probe < PROBES; ++probe, place = (place + 1) & s.table_mask) {
    u64 there = *(volatile u64*)&s.table[place].tag;
    if (!there) there = atomicCAS(&s.table[place].tag, 0ull, key.tag);
    if (!there) {
      s.table[place].rest = key.rest;
      return place;
    }
    if (there == key.tag) return TAKEN;
  }
  return NONE;
}

template <bool AGAIN>
__device__ __forceinline__ void look_up_tile(const Slot& s, u16* list) {
  const u32 n = s.batch->n, lane = threadIdx.x & 31, tile = blockIdx.x * 8 + (threadIdx.x >> 5), base = tile * TILE;
  if (base >= n || (AGAIN && !s.tile_missed[tile])) return;
  const u32 count = gather(below(s.words[tile * 32 + lane], base + lane * 32, n), s.documents[tile * 32 + lane], lane, list);
  u32 tokens = 0;
  bool missed = false;
  if (count) {
    const u32 after = base + TILE > n ? n : next_set(s.words, tile * 32 + 32, lane), first = base + (list[0] & (TILE - 1));
    ID* staged = s.staged + first;  // a token has a byte at least: up to `after` this is the warp's alone
    if (lane == 0) s.tile_first[tile] = first;
    for (u32 k0 = 0; k0 < count; k0 += 32) {
      const u32 k = k0 + lane;
      u32 mine = 0, at = 0, length = 0;
      Ids ids = {0, 0};
      bool opens = false, miss = false;
      const u32* from = nullptr;
      if (k < count) {
        opens = list[k] >> 15;
        at = base + (list[k] & (TILE - 1));
        length = (k + 1 < count ? base + (list[k + 1] & (TILE - 1)) : after) - at;
        if (length <= LONGEST) ids = find(s, at, length);
        if (ids.low) {
          mine = ids.low & 15;
          if (mine == 15) { mine = (u32)ids.high; from = s.pool + (ids.low >> 4) + key_words(length); }
        } else if (!AGAIN) miss = true;
        else {
          mine = s.direct_count[at];
          from = s.direct + at;
          if (!mine) {
            const u32 to = atomicAdd(&s.counts->unresolved, 1);
            if (to < s.most_unresolved) s.unresolved[to] = make_uint2(at, length);
          }
        }
      }
      if (!AGAIN) {
        const u32 all = __ballot_sync(~0u, miss);
        if (all) {
          missed = true;
          const u32 bytes = __reduce_add_sync(~0u, miss && length <= LONGEST ? length : 0);
          u32 to = 0;
          if (lane == 0) to = (u32)atomicAdd((u64*)&s.counts->misses, (u64)__popc(all) | (u64)bytes << 32);
          to = __shfl_sync(~0u, to, 0) + __popc(all & ((1u << lane) - 1));
          if (miss && to < s.most_misses) s.misses[to] = make_uint2(at, length);
        }
        if (missed) continue;
      }
      u32 sum = mine;
#pragma unroll
      for (int step = 1; step < 32; step <<= 1) {
        const u32 lower = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += lower;
      }
      const u32 to = tokens + sum - mine;
      tokens += __shfl_sync(~0u, sum, 31);
      if (opens) s.document_offset[at] = (u16)to;
      // Words of many tokens are copied by the whole warp.
      for (u32 many = __ballot_sync(~0u, from && mine > 32); many; many &= many - 1) {
        const int who = __ffs(many) - 1;
        const u32* theirs = (const u32*)__shfl_sync(~0u, (u64)from, who);
        const u32 count = __shfl_sync(~0u, mine, who), at = __shfl_sync(~0u, to, who);
        for (u32 i = lane; i < count; i += 32) staged[at + i] = (ID)theirs[i];
      }
      if (from) {
        if (mine <= 32) for (u32 i = 0; i < mine; ++i) staged[to + i] = (ID)from[i];
      } else if (mine) {
        staged[to] = (ID)(ids.low >> 4 & 0xFFFFF);
        if (mine > 1) staged[to + 1] = (ID)(ids.low >> 24 & 0xFFFFF);
        if (mine > 2) staged[to + 2] = (ID)(ids.low >> 44);
        for (u32 i = 3; i < mine; ++i, ids.high >>= 20) staged[to + i] = (ID)(ids.high & 0xFFFFF);
      }
    }
  }
  if (lane == 0) {
    s.tile_count[tile] = tokens;
    if (!AGAIN) s.tile_missed[tile] = missed;
  }
}
extern "C" __global__ void __launch_bounds__(256) look_up(const Slot* slot) {
  __shared__ u16 lists[8][TILE];
  look_up_tile<false>(*slot, lists[threadIdx.x >> 5]);
}
extern "C" __global__ void __launch_bounds__(256) look_up_again(const Slot* slot) {
  __shared__ u16 lists[8][TILE];
  look_up_tile<true>(*slot, lists[threadIdx.x >> 5]);
}

// ------------------------------------------------------------------------------------------------------- new words

// Whether the pool has room for all that this batch may add: the word, and a token for each byte.
extern "C" __global__ void admit(const Slot* slot) {
  const u64 need = (u64)slot->counts->missed_bytes * 5 / 4 + 3ull * slot->counts->misses;
  const bool fits = slot->life->pool_used + (u64)slot->life->promised + need < slot->pool_words;
  slot->counts->admitted = fits ? (u32)need : 0;
  if (fits) slot->life->promised += (u32)need;
}

// Of equal words, one claims a place and is merged. Words for which there is no room are all merged.
extern "C" __global__ void claim(const Slot* slot) {
  const Slot& s = *slot;
  const u32 count = min(s.counts->misses, s.most_misses), lane = threadIdx.x & 31;
  const bool admitted = s.counts->admitted;
  for (u32 i0 = (blockIdx.x * blockDim.x + threadIdx.x) & ~31u; i0 < count; i0 += gridDim.x * blockDim.x) {
    uint2 word = make_uint2(0, 0);
    u32 place = TAKEN, group = NONE;
    if (i0 + lane < count) {
      word = s.misses[i0 + lane];
      place = NONE;
      if (word.y <= LONGEST && admitted) place = claim_place(s, key_of(s.text, word.x, word.y));
      s.direct_count[word.x] = 0;
      if (place != TAKEN) group = word.y <= INLINE ? 0 : word.y <= 32 ? 1 : word.y <= 64 ? 2 : word.y <= LONGEST ? 3 : 4;
    }
    const u32 won = __ballot_sync(~0u, place < TAKEN);
    if (lane == 0 && won) atomicAdd(&s.life->used, __popc(won));
    if (group == GROUPS) s.longs[atomicAdd(&s.counts->longs, 1)] = word;
#pragma unroll
    for (u32 g = 0; g < GROUPS; ++g) {
      const u32 all = __ballot_sync(~0u, group == g);
      if (!all) continue;
      u32 to = 0;
      if (lane == 0) to = atomicAdd(&s.counts->winners[g], __popc(all));
      to = __shfl_sync(~0u, to, 0) + __popc(all & ((1u << lane) - 1));
      if (group == g) s.winners[g][to] = make_uint4(word.x, word.y, place, 0);
    }
  }
}

__device__ __forceinline__ u32 merged(const Slot& s, u32 left, u32 right) {  // NONE: this pair does not merge
  const u64 key = (u64)left << 20 | right;
  for (u32 at = (u32)(key * 0x9E3779B97F4A7C15ull >> s.pair_shift);; at = (at + 1) & s.pair_mask) {
    const u64 entry = __ldg(s.pairs + at);
    if (entry >> 20 == key) return (u32)(entry & 0xFFFFF);
    if (entry == ~0ull) return NONE;
  }
}

// Room in the pool for the bytes of a longer word and its ids; where it is, or NONE.
__device__ __forceinline__ u32 pool_room(const Slot& s, u32 length, u32 count) {
  const u32 words = (key_words(length) + count + 1) & ~1u, at = atomicAdd(&s.life->pool_used, words);
  return at + words <= s.pool_words ? at : NONE;
}
__device__ __forceinline__ Ids in_pool(u32 at, u32 count) { return {15ull | (u64)at << 4, count}; }

// One thread for a word: symbols in shared memory, those that are left in a mask. A symbol is its own rank: the least
// of what neighbours would merge to is merged next.
template <int MOST, int THREADS, bool IN_TABLE>
__device__ __forceinline__ void merge_words(const Slot& s, u32 group) {
  __shared__ u32 symbols[MOST][THREADS], would[MOST][THREADS];
  const u32 count = s.counts->winners[group], t = threadIdx.x;
  for (u32 x = blockIdx.x * THREADS + t; x < count; x += gridDim.x * THREADS) {
    const uint4 word = s.winners[group][x];
    const u32 at = word.x, length = word.y, place = word.z;
    u32 last = 0;
    for (u32 i = 0; i < length; ++i) {
      const u32 byte = s.text[at + i];
      symbols[i][t] = __ldg(s.symbol_of_byte + byte);
      if (i) would[i - 1][t] = __ldg(s.byte_pairs + (last << 8 | byte));
      last = byte;
    }
    would[length - 1][t] = NONE;
    u64 left = length == 64 ? ~0ull : (1ull << length) - 1;
    for (;;) {
      u32 best = NONE, i = 0;
      for (u64 rest = left; rest; rest &= rest - 1) {
        const u32 j = MOST <= 32 ? __ffs((u32)rest) - 1 : __ffsll(rest) - 1;
        if (would[j][t] < best) { best = would[j][t]; i = j; }
      }
      if (best == NONE) break;
      u64 above = left & ~((2ull << i) - 1);
      left &= ~(above & -above);
      above &= above - 1;
      const u64 lower = left & ((1ull << i) - 1);
      symbols[i][t] = best;
      would[i][t] = above ? merged(s, best, symbols[__ffsll(above) - 1][t]) : NONE;
      if (lower) {
        const u32 j = 63 - __clzll(lower);
        would[j][t] = merged(s, symbols[j][t], best);
      }
    }
    const u32 ids = __popcll(left);
    if (IN_TABLE && place != NONE && ids <= 6) {
      u64 low = ids, high = 0;
      for (u32 i = 0; i < ids; ++i, left &= left - 1) {
        const u64 id = __ldg(s.id_of_symbol + symbols[__ffsll(left) - 1][t]);
        if (i < 3) low |= id << (4 + 20 * i);
        else high |= id << (20 * (i - 3));
      }
      *(ulonglong2*)&s.table[place].low = make_ulonglong2(low, high);
      continue;
    }
    u32* to = s.direct + at;
    if (IN_TABLE && place != NONE) {
      const u32 room = pool_room(s, length, ids);
      if (room == NONE) continue;  // not admitted: never; it would be left to the host
      to = s.pool + room;
      const Ids value = in_pool(room, ids);
      *(ulonglong2*)&s.table[place].low = make_ulonglong2(value.low, value.high);
    } else s.direct_count[at] = ids;
    for (u32 i = 0; i < ids; ++i, left &= left - 1) to[i] = __ldg(s.id_of_symbol + symbols[__ffsll(left) - 1][t]);
  }
}
extern "C" __global__ void __launch_bounds__(128) merge_short(const Slot* slot) { merge_words<16, 128, true>(*slot, 0); }
extern "C" __global__ void __launch_bounds__(64) merge_32(const Slot* slot) { merge_words<32, 64, false>(*slot, 1); }
extern "C" __global__ void __launch_bounds__(64) merge_64(const Slot* slot) { merge_words<64, 64, false>(*slot, 2); }

// One warp for a word of up to LONGEST bytes.
extern "C" __global__ void __launch_bounds__(128) merge_warp(const Slot* slot) {
  __shared__ u32 all_symbols[4][LONGEST], all_would[4][LONGEST];
  __shared__ u16 all_next[4][LONGEST], all_last[4][LONGEST];
  const Slot& s = *slot;
  const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, count = s.counts->winners[3];
  u32 *symbols = all_symbols[warp], *would = all_would[warp];
  u16 *next = all_next[warp], *last = all_last[warp];
  for (u32 x = blockIdx.x * 4 + warp; x < count; x += gridDim.x * 4) {
    const u32 at = s.winners[3][x].x, length = s.winners[3][x].y;
    for (u32 i = lane; i < length; i += 32) {
      const u32 byte = s.text[at + i];
      symbols[i] = s.symbol_of_byte[byte];
      would[i] = i + 1 < length ? s.byte_pairs[byte << 8 | s.text[at + i + 1]] : NONE;
      next[i] = (u16)(i + 1);
      last[i] = (u16)(i - 1);
    }
    __syncwarp();
    for (;;) {
      u32 best = NONE;
      for (u32 i = lane; i < length; i += 32)
        if (would[i] != NONE) best = min(best, would[i] << 10 | i);  // symbols have 20 bits
      best = __reduce_min_sync(~0u, best);
      if (best == NONE) break;
      const u32 i = best & 1023, symbol = best >> 10, j = next[i], k = next[j], h = last[i];
      u32 found = NONE;
      if (lane == 0 && k < length) found = merged(s, symbol, symbols[k]);
      if (lane == 1 && h != 0xFFFF) found = merged(s, symbols[h], symbol);
      __syncwarp();
      if (lane == 0) {
        symbols[i] = symbol;
        next[i] = (u16)k;
        would[i] = found;
        would[j] = symbols[j] = NONE;
        if (k < length) last[k] = (u16)i;
      }
      if (lane == 1 && h != 0xFFFF) would[h] = found;
      __syncwarp();
    }
    u32 ids = 0;
    for (u32 i0 = 0; i0 < length; i0 += 32) {
      const bool there = i0 + lane < length && symbols[i0 + lane] != NONE;
      const u32 all = __ballot_sync(~0u, there);
      if (there) s.direct[at + ids + __popc(all & ((1u << lane) - 1))] = s.id_of_symbol[symbols[i0 + lane]];
      ids += __popc(all);
    }
    if (lane == 0) s.direct_count[at] = ids;
    __syncwarp();
  }
}

// Enters the words that were merged beside the next batch into the table. One warp for each.
extern "C" __global__ void __launch_bounds__(128) publish(const Slot* slot) {
  const Slot& s = *slot;
  const u32 lane = threadIdx.x & 31;
  for (u32 g = 1; g < GROUPS; ++g) {
    const u32 count = s.counts->winners[g];
    for (u32 x = blockIdx.x * 4 + (threadIdx.x >> 5); x < count; x += gridDim.x * 4) {
      const uint4 word = s.winners[g][x];
      const u32 at = word.x, length = word.y, ids = s.direct_count[at];
      if (word.z == NONE) continue;
      u32 room = 0;
      if (lane == 0) room = pool_room(s, length, ids);
      room = __shfl_sync(~0u, room, 0);
      if (room == NONE) continue;  // not admitted: never; its ids are in `direct` all the same
      u32* to = s.pool + room;
      for (u32 i = lane * 8; i < length; i += 256) *(u64*)(to + i / 4) = first_bytes(eight(s.text, at + i), length - i);
      for (u32 i = lane; i < ids; i += 32) to[key_words(length) + i] = s.direct[at + i];
      const Ids value = in_pool(room, ids);
      if (lane == 0) *(ulonglong2*)&s.table[word.z].low = make_ulonglong2(value.low, value.high);
    }
  }
}

// Ids that the host found: `words` has for each the position and where its ids end in `ids`.
extern "C" __global__ void __launch_bounds__(128) patch(const Slot* slot, const u32* words, u32 count, const u32* ids) {
  const u32 lane = threadIdx.x & 31;
  for (u32 x = blockIdx.x * 4 + (threadIdx.x >> 5); x < count; x += gridDim.x * 4) {
    const u32 at = words[2 * x], start = x ? words[2 * x - 1] : 0, number = words[2 * x + 1] - start;
    for (u32 i = lane; i < number; i += 32) slot->direct[at + i] = ids[start + i];
    if (lane == 0) slot->direct_count[at] = number;
  }
}

// ----------------------------------------------------------------------------------------------------------- output

// Where the tokens of each tile go: a running sum, by one block, of 16 tiles in each thread at a time.
extern "C" __global__ void __launch_bounds__(1024) offsets(const Slot* slot) {
  __shared__ u32 sums[32];
  const Slot& s = *slot;
  const u32 tiles = (s.batch->n + TILE - 1) / TILE, lane = threadIdx.x & 31;
  u32 total = 0;
  for (u32 from = 0; from < tiles; from += 16 * 1024) {
    const u32 start = from + threadIdx.x * 16;  // both arrays have room for whole rounds
    u32 count[16], mine = 0;
#pragma unroll
    for (int i = 0; i < 16; i += 4) *(uint4*)(count + i) = *(const uint4*)(s.tile_count + start + i);
#pragma unroll
    for (int i = 0; i < 16; ++i) mine += count[i] = start + i < tiles ? count[i] : 0;
    u32 sum = mine;
    for (int step = 1; step < 32; step <<= 1) {
      const u32 lower = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += lower;
    }
    if (lane == 31) sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    u32 upto = sums[lane];
    for (int step = 1; step < 32; step <<= 1) {
      const u32 lower = __shfl_up_sync(~0u, upto, step);
      if (lane >= step) upto += lower;
    }
    const u32 warps_before = __shfl_sync(~0u, upto, threadIdx.x < 32 ? 0 : (threadIdx.x >> 5) - 1);
    u32 at = total + sum - mine + (threadIdx.x < 32 ? 0 : warps_before);
    total += __shfl_sync(~0u, upto, 31);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const u32 here = at;
      at += count[i];
      count[i] = here;
    }
#pragma unroll
    for (int i = 0; i < 16; i += 4) *(uint4*)(s.tile_base + start + i) = *(const uint4*)(count + i);
    __syncthreads();
  }
  if (threadIdx.x == 1023) {
    s.counts->tokens = total;
    s.counts->used = s.life->used;
    s.counts->pool_used = s.life->pool_used;
    s.life->promised -= s.counts->admitted;
    s.counts->admitted = 0;
  }
}

// Ends of documents in tokens, first without and then with the tokens before and after, which it writes.
extern "C" __global__ void document_ends(const Slot* slot) {
  const Slot& s = *slot;
  const u32 d = blockIdx.x * blockDim.x + threadIdx.x, n = s.batch->n, bos = s.batch->bos, eos = s.batch->eos;
  if (d >= s.batch->documents) return;
  const u32 end = (u32)(s.ends[d] - s.batch->from), start = d ? (u32)(s.ends[d - 1] - s.batch->from) : 0;
  const auto raw = [&](u32 byte) -> i64 {
    return byte >= n ? s.counts->tokens : byte ? s.tile_base[byte / TILE] + s.document_offset[byte] : 0;
  };
  const u32 more = (bos != NONE) + (eos != NONE);
  const i64 begins = raw(start) + (i64)d * more, ends = raw(end) + (i64)(d + 1) * more;
  s.raw_ends[d] = raw(end);
  s.token_ends[d] = ends;
  if (bos != NONE) s.out[begins] = (ID)bos;
  if (eos != NONE) s.out[ends - 1] = (ID)eos;
}

// The tokens of each tile to their places. One warp for each.
extern "C" __global__ void __launch_bounds__(256) compact(const Slot* slot) {
  const Slot& s = *slot;
  const u32 tile = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (tile * TILE >= s.batch->n) return;
  const u32 count = s.tile_count[tile], base = s.tile_base[tile];
  const ID* staged = s.staged + s.tile_first[tile];
  if (!count) return;
  const u32 has_bos = s.batch->bos != NONE, more = has_bos + (s.batch->eos != NONE);
  u32 d = 0;
  if (more) {  // the document that the first token is in
    u32 high = s.batch->documents - 1;
    while (d < high) {
      const u32 middle = (d + high) / 2;
      if (s.raw_ends[middle] > base) high = middle;
      else d = middle + 1;
    }
  }
  for (u32 i = lane; i < count; i += 32) {
    if (more) while (s.raw_ends[d] <= base + i) ++d;
    s.out[base + i + d * more + (more ? has_bos : 0)] = staged[i];
  }
}

// Counts to the host. A copy would wait for the ids of other batches on their way out.
extern "C" __global__ void report(const Slot* slot) {
  const u32 i = threadIdx.x;
  if (i < sizeof(Counts) / 4) ((volatile u32*)slot->reported)[i] = ((const u32*)slot->counts)[i];
  __threadfence_system();
}

// ------------------------------------------------------------------------------------------------ the table's life

extern "C" __global__ void clear_table(const Slot* slot) {
  if (!blockIdx.x && !threadIdx.x) *slot->life = {0, 0, 0, 0};
  ulonglong2* table = (ulonglong2*)slot->table;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < 2 * ((u64)slot->table_mask + 1); i += (u64)gridDim.x * blockDim.x)
    table[i] = make_ulonglong2(0, 0);
}

// Words that encode to one token: all tokens of a vocabulary that looks whole words up, else those that merges make.
extern "C" __global__ void preload(const Slot* slot, const u8* bytes, const u32* ends, const u32* ids, u32 first, u32 count) {
  const Slot& s = *slot;
  for (u32 i = first + blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const u32 at = i ? ends[i - 1] : 0, length = ends[i] - at;
    if (length > LONGEST) continue;
    const u32 place = claim_place(s, key_of(bytes, at, length));
    if (place >= TAKEN) { atomicAdd(&s.counts->unresolved, 1); continue; }
    atomicAdd(&s.life->used, 1);
    if (length <= INLINE) *(ulonglong2*)&s.table[place].low = make_ulonglong2(1ull | (u64)ids[i] << 4, 0);
    else {
      const u32 room = pool_room(s, length, 1);
      if (room == NONE) { atomicAdd(&s.counts->unresolved, 1); continue; }
      for (u32 k = 0; k < length; k += 8) *(u64*)(s.pool + room + k / 4) = first_bytes(eight(bytes, at + k), length - k);
      s.pool[room + key_words(length)] = ids[i];
      const Ids value = in_pool(room, 1);
      *(ulonglong2*)&s.table[place].low = make_ulonglong2(value.low, value.high);
    }
  }
}
