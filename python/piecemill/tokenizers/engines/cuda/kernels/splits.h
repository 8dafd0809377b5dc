// The named splits as plain C++, for the device and, in tests, for the host. They must equal src/pretoken/fast.rs.
//
// A batch is a text of many documents. `kinds` has a byte for each byte of it: the number of its character's class in
// the low four bits (src/pretoken/classes.rs), with CONTINUES set on all bytes of a character but the first. The first
// byte of a document, and the place after the last one, is END in the low four bits, so that nothing reads across; the
// class of the first character of a document is in the high four bits then.
#pragma once
#ifdef __CUDACC__
#define PM_ANYWHERE __host__ __device__ __forceinline__
#define PM_RARE __host__ __device__ __noinline__
#else
#define PM_ANYWHERE inline
#define PM_RARE inline
#endif
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

enum : u32 { END = 15, CONTINUES = 0x80 };
enum : u32 {  // sets of classes: bit n is class n
  UPPER = 1u << 0, LOWER = 1u << 1, NEWLINE = 1u << 2, BLANK = 1u << 3, NUMBER = 1u << 4,
  IDEOGRAPHIC = 15u << 9,
  CASELESS = 1u << 5 | 1u << 9, MARK = 1u << 6 | 1u << 10, PUNCTUATION = 1u << 7 | 1u << 11, REST = 1u << 8 | 1u << 12,
  LETTER = UPPER | LOWER | CASELESS, WHITE = NEWLINE | BLANK, SYMBOL = PUNCTUATION | REST | MARK,
  ANY = LETTER | WHITE | NUMBER | SYMBOL
};
enum Split { GPT2, DIGITS_THEN_GPT2, CL100K, QWEN2, QWEN35, O200K, TEKKEN, DEEPSEEK_V3 };

PM_ANYWHERE bool continues(u32 kind) { return (kind & 0x8F) - 0x80u < END; }
PM_ANYWHERE u32 first_kind(u32 kind) { return (kind & 15) == END ? kind >> 4 : kind & 15; }

// The end of a run of bytes of these classes that is long already: 64 at a time, without a branch for each. Up to 64
// bytes after the end of the batch are read.
PM_RARE u32 long_run(const u8* kinds, u32 at, u32 classes) {
  for (;; at += 64) {
    const u64* part = (const u64*)(kinds + at);
    u32 all = 1;
    for (u32 i = 0; i < 8; ++i)
      for (u32 k = 0; k < 64; k += 8) all &= classes >> (part[i] >> k & 15);
    if (!all) break;
  }
  while (classes >> (kinds[at] & 15) & 1) ++at;
  return at;
}

struct Text {
  const u8* kinds;
  const u8* bytes;

  // The class of the character at `at`, one bit; END is bit 15, in no set.
  PM_ANYWHERE u32 at(u32 at) const { return 1u << (kinds[at] & 15); }

  PM_ANYWHERE u32 next(u32 at) const {
    do ++at;
    while (continues(kinds[at]));
    return at;
  }

  // The end of the run of characters of these classes. All bytes of a character have its class.
  PM_ANYWHERE u32 run(u32 at, u32 classes) const {
    for (; at & 7; ++at)
      if (!(this->at(at) & classes)) return at;
    for (const u32 far = at + 32; at < far; at += 8) {  // eight at a time: what takes long is waiting for memory
      u64 eight = *(const u64*)(kinds + at);
      for (u32 i = 0; i < 8; ++i, eight >>= 8)
        if (!(classes >> (eight & 15) & 1)) return at + i;
    }
    return long_run(kinds, at, classes);
  }

  // Whether 8 * EIGHTS one-byte characters that are numbers stand here, none of which begins a document.
  template <int EIGHTS>
  PM_ANYWHERE bool all_digits(u32 at) const {
    const u64* from = (const u64*)(kinds + (at & ~7u));
    const u32 shift = (at & 7) * 8;
    u64 other = 0;
    for (int i = 0; i < EIGHTS; ++i) other |= (from[i] >> shift | (from[i + 1] << 1) << (63 - shift)) ^ 0x0404040404040404ull;
    return !other;
  }

  PM_ANYWHERE u32 numbers(u32 at, u32 most) const {
    at = next(at);
    for (u32 n = 1; n < most && this->at(at) == NUMBER; ++n) at = next(at);
    return at;
  }

  // Bytes of 's, 't, 're, 've, 'm, 'll or 'd at `at`, or 0; `quote` says that a quote is there.
  PM_ANYWHERE u32 contraction(u32 at, bool quote, bool any_case) const {
    if (!quote || !(this->at(at + 1) & LETTER)) return 0;
    const u32 fold = any_case ? 0x20 : 0, one = bytes[at + 1] | fold;
    if (one == 's' || one == 't' || one == 'm' || one == 'd') return 2;
    if (any_case && bytes[at + 1] == 0xC5) return bytes[at + 2] == 0xBF ? 3 : 0;  // the long s
    if (one != 'r' && one != 'v' && one != 'l') return 0;
    if (!(this->at(at + 2) & LETTER)) return 0;
    return (bytes[at + 2] | fold) == (one == 'l' ? 'l' : 'e') ? 3 : 0;
  }

  // \s+(?!\S)|\s+ and with `lines` \s*[\r\n]+ before; the text ends before what is not of `part`.
  PM_ANYWHERE u32 white(u32 at, u32 kind, bool lines, u32 part) const {
    u32 end = next(at), line_end = kind == NEWLINE ? end : at;
    for (;;) {
      const u32 blanks = run(end, BLANK), newlines = run(blanks, NEWLINE);
      if (newlines > blanks) line_end = newlines;
      if (newlines == end) break;
      end = newlines;
    }
    u32 last = end - 1;
    while (continues(kinds[last])) --last;
    kind = this->at(end);
    if (lines && line_end > at) return line_end;
    return !(kind & part) || last == at ? end : last;
  }
};

PM_ANYWHERE u32 end_gpt2(const Text& text, u32 at, u32 kind, bool digits_apart) {
  const u32 contraction = text.contraction(at, text.bytes[at] == '\'', false);
  if (contraction) return at + contraction;
  u32 body = at, inner = kind;
  if (text.bytes[at] == ' ') inner = text.at(body = at + 1);
  if (inner & LETTER) return text.run(body + 1, LETTER);
  if (inner & SYMBOL) return text.run(body + 1, SYMBOL);
  if (inner == NUMBER && !digits_apart) return text.run(body + 1, NUMBER);
  if (inner == NUMBER && body == at) return text.next(at);
  return text.white(at, kind, false, digits_apart ? ANY & ~NUMBER : ANY);
}

PM_ANYWHERE u32 end_cl100k(const Text& text, u32 at, u32 kind, u32 digits, bool marks) {
  const u32 word = marks ? LETTER | MARK : LETTER, symbol = marks ? SYMBOL & ~MARK : SYMBOL;
  const u32 contraction = text.contraction(at, text.bytes[at] == '\'', true);
  if (contraction) return at + contraction;
  if (kind & word) return text.run(at + 1, word);
  if (kind == NUMBER) return text.numbers(at, digits);
  const u32 body = text.next(at), inner = text.at(body);
  if (kind != NEWLINE && inner & word) return text.run(body + 1, word);
  if (kind & symbol || (text.bytes[at] == ' ' && inner & symbol)) return text.run(text.run(body, symbol), NEWLINE);
  return text.white(at, kind, true, ANY);
}

// A word of o200k from `at`, whose class is `kind`: its end. `second` if only the second alternative matches; 0: none.
PM_ANYWHERE u32 cased_word(const Text& text, u32 at, u32 kind, bool* second) {
  u32 end = at, last_caseless = at;
  *second = false;
  for (;;) {
    if (kind & (CASELESS | MARK)) last_caseless = end = text.run(end + 1, CASELESS | MARK);
    else if (kind == UPPER) end = text.run(end + 1, UPPER);
    else if (kind == LOWER) return text.run(end + 1, LOWER | CASELESS | MARK);
    else break;
    kind = text.at(end);
  }
  if (last_caseless > at) return last_caseless;
  *second = true;
  return end > at ? end : 0;
}

PM_ANYWHERE u32 end_o200k(const Text& text, u32 at, u32 kind, u32 digits, bool contractions) {
  if (kind == NUMBER) return text.numbers(at, digits);
  const u32 body = text.next(at);
  if (kind != NEWLINE) {
    bool second;
    u32 end = kind & LETTER ? cased_word(text, at, kind, &second) : cased_word(text, body, text.at(body), &second);
    if (second && kind & MARK) end = body;  // a mark before capitals alone, or before nothing, is a word itself
    if (end) return end + (contractions ? text.contraction(end, text.at(end) != 1u << END && text.bytes[end] == '\'', true) : 0);
  }
  if (kind & SYMBOL || (text.bytes[at] == ' ' && text.at(body) & SYMBOL)) {
    u32 end = text.run(body, SYMBOL);
    while (text.at(end) == NEWLINE || (text.at(end) & PUNCTUATION && text.bytes[end] == '/')) ++end;
    return end;
  }
  return text.white(at, kind, true, ANY);
}

PM_ANYWHERE bool ascii_letter(const Text& text, u32 at) { return text.at(at) & (UPPER | LOWER) && text.bytes[at] < 0x80; }

PM_ANYWHERE u32 end_deepseek_v3(const Text& text, u32 at, u32 kind) {
  if (kind == NUMBER) return text.numbers(at, 3);
  const u32 part = kind & IDEOGRAPHIC ? (u32)IDEOGRAPHIC : ANY & ~NUMBER & ~IDEOGRAPHIC;
  const u32 word = (LETTER | MARK) & part, punctuation = PUNCTUATION & part, rest = REST & part;
  const u32 body = text.next(at);
  if (kind & word) return text.run(body, word);
  const u32 inner = text.at(body);
  if (kind & punctuation && text.bytes[at] < 0x80 && ascii_letter(text, body)) {
    u32 end = body;
    while (ascii_letter(text, end)) ++end;
    return end;
  }
  if (kind & (BLANK | rest) && inner & word) return text.run(body + 1, word);
  if (kind & punctuation || (text.bytes[at] == ' ' && inner & punctuation))
    return text.run(text.run(body, punctuation), NEWLINE & part);
  if (kind & WHITE) return text.white(at, kind, true, part);
  u32 end = body, last = at;  // no rule begins here: on to where one does
  while (text.at(end) & rest) {
    last = end;
    end = text.next(end);
  }
  return text.at(end) & word ? last : end;
}

// The end of the word that starts at `at`.
template <int SPLIT>
PM_ANYWHERE u32 word_end(const Text& text, u32 at) {
  const u32 kind = 1u << first_kind(text.kinds[at]);
  if (SPLIT == GPT2) return end_gpt2(text, at, kind, false);
  if (SPLIT == DIGITS_THEN_GPT2) return end_gpt2(text, at, kind, true);
  if (SPLIT == CL100K) return end_cl100k(text, at, kind, 3, false);
  if (SPLIT == QWEN2) return end_cl100k(text, at, kind, 1, false);
  if (SPLIT == QWEN35) return end_cl100k(text, at, kind, 1, true);
  if (SPLIT == O200K) return end_o200k(text, at, kind, 3, true);
  if (SPLIT == TEKKEN) return end_o200k(text, at, kind, 1, false);
  return end_deepseek_v3(text, at, kind);
}

// How many numbers are a word at most; 0: any.
template <int SPLIT>
PM_ANYWHERE constexpr u32 digits_of() {
  return SPLIT == GPT2 ? 0 : SPLIT == CL100K || SPLIT == O200K || SPLIT == DEEPSEEK_V3 ? 3 : 1;
}

// Calls `each` with every start of a word after `at`, where one starts, and before `stop`; where the last one ends.
template <int SPLIT, typename Each>
PM_ANYWHERE u32 for_each_start(const Text& text, u32 at, u32 stop, Each each) {
  constexpr u32 digits = digits_of<SPLIT>();
  for (;;) {
    const bool number = digits && first_kind(text.kinds[at]) == 4;
    at = word_end<SPLIT>(text, at);
    if (at >= stop) return at;
    each(at);
    // Long runs of digits, several words at a time: what takes long is waiting for memory.
    while (number && text.all_digits<1>(at)) {
      const bool many = text.all_digits<6>(at);
      for (const u32 end = at + (digits == 3 ? many ? 45 : 6 : many ? 47 : 7); at < end;) each(at += digits);
    }
  }
}

// Whether a word surely starts between two characters of one document, whatever else is around them: `before` and
// `after` are their classes (one bit each), `byte` is the first byte after, `next` the one that follows it, or 0
// at the end of the document. Words between two such places are found one after another; so this may leave some out, and should
// leave out few, but must never be wrong.
template <int SPLIT>
PM_ANYWHERE bool surely_starts(u32 before, u32 after, u32 byte, u32 next) {
  const u32 folded = next | 0x20;
  if (after == BLANK)  // the last of several before a visible character goes with it, or stands alone
    return !(before & WHITE) || (byte < 0x80 && next > ' ' && next < 0x7F && !(next >= '0' && next <= '9'));
  if (after == NEWLINE) {
    if (SPLIT <= DIGITS_THEN_GPT2) return !(before & WHITE);
    if (SPLIT == QWEN35) return before & (LETTER | NUMBER | MARK);
    return before & (SPLIT == DEEPSEEK_V3 ? LETTER | NUMBER | MARK | REST : LETTER | NUMBER);
  }
  if (before == NEWLINE) return byte != '/' || (SPLIT != O200K && SPLIT != TEKKEN);
  if (before == NUMBER) return after != NUMBER;
  if (after == NUMBER) return before & (LETTER | SYMBOL);
  if (!(before & LETTER)) return false;
  if (after & MARK) return SPLIT <= QWEN2;
  // A contraction goes with the word before it in o200k; the long s begins with 0xC5.
  return after & SYMBOL && (SPLIT != O200K || byte != '\'' || !((folded >= 'a' && folded <= 'z') || next >= 0x80));
}

// `surely_starts` for four ASCII characters at once, none of which begins a document: their classes and bytes, the
// classes before them (of ASCII characters too) and the bytes after them. Each byte of the result has the high bit or not.
template <int SPLIT>
PM_ANYWHERE u32 four_surely_start(u32 before, u32 after, u32 bytes, u32 next) {
  // High bits: where a byte of `four`, all below 0x80, is at least `least`.
  const auto from = [](u32 four, u32 least) { return four + (0x80 - least) * 0x01010101u; };
  const auto differs = [&](u32 byte) { return from(bytes ^ byte * 0x01010101u, 1); };
  const u32 after_2 = from(after, 2), after_3 = from(after, 3), after_4 = from(after, 4), symbol = from(after, 5);
  const u32 before_2 = from(before, 2), before_3 = from(before, 3), before_4 = from(before, 4), was_symbol = from(before, 5);
  const u32 newline = after_2 & ~after_3, blank = after_3 & ~after_4, number = after_4 & ~symbol;
  const u32 was_letter = ~before_2, was_newline = before_2 & ~before_3, was_white = before_2 & ~before_4;
  const u32 was_number = before_4 & ~was_symbol;
  const u32 seven = next & 0x7F7F7F7Fu, folded = seven | 0x20202020u;
  const u32 visible = from(seven, 0x21) & ~from(seven, 0x7F) & ~next, digit = from(seven, '0') & ~from(seven, '9' + 1);
  u32 ends_line = was_letter | was_number, after_line = was_newline, mark = was_letter & symbol;
  if (SPLIT <= DIGITS_THEN_GPT2) ends_line = ~was_white;
  if (SPLIT == DEEPSEEK_V3) ends_line |= from(before, 8);
  if (SPLIT == O200K || SPLIT == TEKKEN) after_line &= differs('/');
  if (SPLIT == O200K) mark &= differs('\'') | ~((from(folded, 'a') & ~from(folded, 'z' + 1)) | next);
  const u32 other = after_line | (was_number & ~number) | (number & (was_letter | was_symbol)) | mark;
  return ((blank & (~was_white | (visible & ~digit))) | (newline & ends_line) | (~newline & ~blank & other)) & 0x80808080u;
}

// Whether the byte at `at` is in place in UTF-8, and if so the code point of its character. `before` bytes are there
// before it and `after` bytes from it on, in the same document; more than 3 and 4 need not be counted.
PM_ANYWHERE bool character_of(const u8* at, u32 before, u32 after, u32* code_point) {
  u32 back = 0;
  while (back < 3 && back < before && (at[-(int)back] & 0xC0) == 0x80) ++back;
  const u8* p = at - back;
  const u32 first = p[0];
  const u32 length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (length <= back || length > back + after) return false;
  u32 point = length == 1 ? first : first & (0x7Fu >> length);
  for (u32 i = 1; i < length; ++i) {
    if ((p[i] & 0xC0) != 0x80) return false;
    point = point << 6 | (p[i] & 0x3F);
  }
  *code_point = point;
  if (length == 3) return point >= 0x800 && (point < 0xD800 || point > 0xDFFF);
  return length != 4 || (point >= 0x10000 && point < 0x110000);
}
