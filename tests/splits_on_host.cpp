// The splits of the GPU engine, compiled for the host: see tests/test_cuda.py.
#include "splits.h"

// Classes of a batch as the kernel `classify` writes them, and where words surely start; false if it is not UTF-8.
template <int SPLIT>
static bool classified(const u8* text, u32 n, const u32* document_ends, u32 documents, const u8* class_index,
                       const u8* class_blocks, u8* kinds, u8* sure) {
  u32 start = 0;
  for (u32 d = 0; d < documents; ++d) {
    for (u32 i = start; i < document_ends[d]; ++i) {
      u32 point;
      if (!character_of(text + i, i - start < 3 ? i - start : 3, document_ends[d] - i, &point)) return false;
      const u32 kind = class_blocks[class_index[point >> 8] * 256 + (point & 255)];
      const bool inside = (text[i] & 0xC0) == 0x80;
      kinds[i] = i == start ? kind << 4 | END : inside ? kind | CONTINUES : kind;
      sure[i] = i == start || (!inside && surely_starts<SPLIT>(1u << first_kind(kinds[i - 1]), 1u << kind, text[i],
                                                              i + 1 < document_ends[d] ? text[i + 1] : 0));
    }
    start = document_ends[d];
  }
  kinds[n] = 0xFF;
  return true;
}

#define EACH_SPLIT(CALL)                                \
  switch (split) {                                      \
    case GPT2: return CALL(GPT2);                       \
    case DIGITS_THEN_GPT2: return CALL(DIGITS_THEN_GPT2); \
    case CL100K: return CALL(CL100K);                   \
    case QWEN2: return CALL(QWEN2);                     \
    case QWEN35: return CALL(QWEN35);                   \
    case O200K: return CALL(O200K);                     \
    case TEKKEN: return CALL(TEKKEN);                   \
    default: return CALL(DEEPSEEK_V3);                  \
  }

extern "C" bool classify(int split, const u8* text, u32 n, const u32* document_ends, u32 documents,
                         const u8* class_index, const u8* class_blocks, u8* kinds, u8* sure) {
#define CALL(SPLIT) classified<SPLIT>(text, n, document_ends, documents, class_index, class_blocks, kinds, sure)
  EACH_SPLIT(CALL)
#undef CALL
}

// Ends of all words, found as the kernel `split` finds them: from each sure start to the next.
template <int SPLIT>
static u32 all_words(const u8* text, const u8* kinds, const u8* sure, u32 n, u32* ends) {
  const Text here = {kinds, text};
  u32 count = 0;
  for (u32 at = 0, stop; at < n; at = stop) {
    for (stop = at + 1; stop < n && !sure[stop];) ++stop;
    const u32 last = for_each_start<SPLIT>(here, at, stop, [&](u32 start) { ends[count++] = start; });
    if (last != stop) return 0;  // a word goes on across a sure start
    ends[count++] = stop;
  }
  return count;
}

extern "C" u32 words(int split, const u8* text, const u8* kinds, const u8* sure, u32 n, u32* ends) {
#define CALL(SPLIT) all_words<SPLIT>(text, kinds, sure, n, ends)
  EACH_SPLIT(CALL)
#undef CALL
}

// How often `four_surely_start` and `surely_starts` differ, over all contexts of an ASCII character, four at a time.
template <int SPLIT>
static u32 four_differ(const u8* classes) {
  const u32 all = 128 * 128 * 256;
  u32 wrong = 0;
  for (u32 i = 0; i < all; i += 4) {
    u32 four[4] = {0, 0, 0, 0}, wanted = 0;
    for (u32 k = 0; k < 4; ++k) {
      const u32 context = (i + k) * 2654435761u % all;  // one to one: an odd number, and a power of two
      const u32 before = context & 127, byte = context >> 7 & 127, next = context >> 14, shift = 8 * k;
      const u32 each[4] = {classes[before], classes[byte], byte, next};
      for (u32 j = 0; j < 4; ++j) four[j] |= each[j] << shift;
      wanted |= (surely_starts<SPLIT>(1u << classes[before], 1u << classes[byte], byte, next) ? 0x80u : 0) << shift;
    }
    wrong += four_surely_start<SPLIT>(four[0], four[1], four[2], four[3]) != wanted;
  }
  return wrong;
}

extern "C" u32 four_at_once(int split, const u8* classes) {
#define CALL(SPLIT) four_differ<SPLIT>(classes)
  EACH_SPLIT(CALL)
#undef CALL
}
