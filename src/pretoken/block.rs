//! The same scanners for 64 bytes at once, without a branch per pretoken.
//!
//! In: 64 bytes at whose first a pretoken starts. Out: a word with a bit wherever a further pretoken surely starts.
//! Each class of characters is a 64-bit mask with a bit for each character, and the regex becomes logic on masks: bit p
//! of `mask << 1` says what character p - 1 is, bit p of `mask >> 1` what character p + 1 is. A block starts where a
//! pretoken does, so no state goes from one to the next; what depends on bytes beyond the block is left out, and so
//! is the rare pattern that the logic does not cover. [`Block::new`] knows ASCII only and leaves out all from the first
//! other byte on; `wide` makes blocks of all characters. The oracle is `Scanner::end`, and behind it `reference`.

/// Bytes in a block: one for each bit of a word.
pub const BLOCK: usize = 64;

/// The classes of each ASCII byte, a bit each in the order of the fields of [`Block`], but for the space.
#[cfg(target_arch = "x86_64")]
static CLASSES: [u8; 128] = {
    let [upper, lower, number, white, newline, quote, slash, rest] = [1, 2, 4, 8, 16, 32, 64, 128];
    let mut classes = [0; 128];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = match byte as u8 {
            b'A'..=b'Z' => upper,
            b'a'..=b'z' => lower,
            b'0'..=b'9' => number,
            b'\n' | b'\r' => white | newline,
            b' ' | b'\t'..=b'\r' => white,
            b'\'' => quote,
            b'/' => slash,
            0..=0x1f | 0x7f => rest,
            _ => 0,
        };
        byte += 1;
    }
    classes
};

/// The classes of the characters in 64 bytes. Bits from `known` on mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Characters whose classes are known, from the first on.
    pub known: u32,
    /// The bytes at which characters begin, a bit for each byte; all of them, where only ASCII is known.
    pub chars: u64,
    /// Characters beyond ASCII.
    pub wide: u64,
    pub upper: u64,
    pub lower: u64,
    /// Letters without case.
    pub caseless: u64,
    pub mark: u64,
    pub number: u64,
    /// White space, newlines included.
    pub white: u64,
    /// `\r` and `\n`.
    pub newline: u64,
    /// The space itself.
    pub space: u64,
    pub quote: u64,
    pub slash: u64,
    /// Neither white space nor visible.
    pub rest: u64,
    /// What deepseek-v3 cuts out of a text first.
    pub ideographic: u64,
}

impl Block {
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn new(bytes: &[u8; BLOCK]) -> Block {
        use std::arch::x86_64::*;
        let mut block = Block::EMPTY;
        let mut beyond_ascii = 0;
        for at in (0..BLOCK).step_by(16) {
            // SAFETY: SSE2 is part of every x86-64; the 16 bytes at `at` lie inside `bytes`; loadu needs no alignment.
            unsafe {
                let x = _mm_loadu_si128(bytes.as_ptr().add(at).cast());
                let bits = |lanes| u64::from(_mm_movemask_epi8(lanes) as u16) << at;
                let is = |byte: u8| _mm_cmpeq_epi8(x, _mm_set1_epi8(byte as i8));
                // byte - low <= high - low, unsigned: true where the smaller of the two is the left one.
                let within = |low: u8, high: u8| {
                    let above = _mm_sub_epi8(x, _mm_set1_epi8(low as i8));
                    _mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8((high - low) as i8)), above)
                };
                beyond_ascii |= bits(x);
                block.upper |= bits(within(b'A', b'Z'));
                block.lower |= bits(within(b'a', b'z'));
                block.number |= bits(within(b'0', b'9'));
                block.white |= bits(_mm_or_si128(is(b' '), within(b'\t', b'\r')));
                block.newline |= bits(_mm_or_si128(is(b'\n'), is(b'\r')));
                block.space |= bits(is(b' '));
                block.quote |= bits(is(b'\''));
                block.slash |= bits(is(b'/'));
                block.rest |= bits(_mm_or_si128(is(0x7f), _mm_or_si128(within(0, 8), within(0x0e, 0x1f))));
            }
        }
        block.known = beyond_ascii.trailing_zeros();
        block
    }

    /// The same with a table of classes.
    ///
    /// # Safety
    /// The processor has AVX-512 with VBMI.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub unsafe fn avx512(bytes: &[u8; BLOCK]) -> Block {
        use std::arch::x86_64::*;
        // SAFETY: the caller says that the instructions are there; all loads are of 64 bytes, and need no alignment.
        unsafe {
            let x = _mm512_loadu_si512(bytes.as_ptr().cast());
            let low = _mm512_loadu_si512(CLASSES.as_ptr().cast());
            let high = _mm512_loadu_si512(CLASSES.as_ptr().add(BLOCK).cast());
            let classes = _mm512_permutex2var_epi8(low, x, high);
            let mut bits = [0; 8];
            for (class, bits) in bits.iter_mut().enumerate() {
                *bits = _mm512_test_epi8_mask(classes, _mm512_set1_epi8((1u8 << class) as i8));
            }
            let [upper, lower, number, white, newline, quote, slash, rest] = bits;
            let space = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(b' ' as i8));
            let known = _mm512_movepi8_mask(x).trailing_zeros();
            Block { known, upper, lower, number, white, newline, space, quote, slash, rest, ..Block::EMPTY }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    pub fn new(bytes: &[u8; BLOCK]) -> Block {
        Block::portable(bytes)
    }

    const EMPTY: Block = Block {
        known: 0,
        chars: !0,
        wide: 0,
        upper: 0,
        lower: 0,
        caseless: 0,
        mark: 0,
        number: 0,
        white: 0,
        newline: 0,
        space: 0,
        quote: 0,
        slash: 0,
        rest: 0,
        ideographic: 0,
    };

    /// Whether all 64 bytes are ASCII.
    #[inline(always)]
    pub fn is_ascii(&self) -> bool {
        self.known as usize == BLOCK
    }

    /// The byte at which character `p` begins.
    #[inline(always)]
    pub fn byte(&self, p: usize) -> usize {
        if self.chars == !0 {
            return p;
        }
        each_bit(self.chars).nth(p).unwrap_or(BLOCK)
    }

    /// Characters at which the word that goes on there could also begin, without a change of where it ends: in runs of
    /// letters without case, unless the run follows a small letter, and a capital may end it.
    #[inline(always)]
    pub fn resumes(&self) -> u64 {
        let caseless = self.caseless | self.mark;
        let unclear = self.unclear() | self.rest;
        // Adding a bit to a run of ones clears the run from there on.
        let after_lower = caseless & !caseless.wrapping_add(caseless & self.lower << 1);
        let known = self.before(unclear).known;
        self.caseless & self.caseless << 1 & self.wide & !after_lower & if known < 64 { (1 << known) - 1 } else { !0 }
    }

    /// Capitals after letters without case belong to their word or begin another, as what comes after them decides. A
    /// mark without a letter before it is both, a symbol and a letter.
    #[inline(always)]
    fn unclear(&self) -> u64 {
        let letter = self.letter() | self.mark;
        self.upper & (self.caseless | self.mark) << 1 | self.mark & !(letter << 1)
    }

    /// The same with marks taken for letters.
    #[inline(always)]
    pub fn marks_as_letters(&self) -> Block {
        Block { caseless: self.caseless | self.mark, mark: 0, ..*self }
    }

    /// The same with less known: what is before the first of these characters.
    #[inline(always)]
    fn before(&self, unclear: u64) -> Block {
        Block { known: self.known.min(unclear.trailing_zeros()), ..*self }
    }

    /// The same on any machine: 8 bytes at a time in one word.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn portable(bytes: &[u8; BLOCK]) -> Block {
        const ONES: u64 = 0x0101_0101_0101_0101;
        const HIGH: u64 = 0x80 * ONES;
        let mut block = Block::EMPTY;
        let mut beyond_ascii = 0;
        for (at, eight) in bytes.chunks_exact(8).enumerate() {
            let x = eight.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            // The high bit of each byte, gathered into the eight bits of one: the product moves bit 8k to 56 + k.
            let bits = |flags: u64| ((flags >> 7 & ONES).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * at);
            // With the high bits out of the way no sum carries into the next byte.
            let low_bits = x & !HIGH;
            let within = |low: u8, high: u8| {
                let from = low_bits + u64::from(0x80 - low) * ONES;
                let past = low_bits + u64::from(0x7f - high) * ONES;
                from & !past & !x & HIGH
            };
            beyond_ascii |= bits(x & HIGH);
            block.upper |= bits(within(b'A', b'Z'));
            block.lower |= bits(within(b'a', b'z'));
            block.number |= bits(within(b'0', b'9'));
            block.white |= bits(within(b' ', b' ') | within(b'\t', b'\r'));
            block.newline |= bits(within(b'\n', b'\n') | within(b'\r', b'\r'));
            block.space |= bits(within(b' ', b' '));
            block.quote |= bits(within(b'\'', b'\''));
            block.slash |= bits(within(b'/', b'/'));
            block.rest |= bits(within(0x7f, 0x7f) | within(0, 8) | within(0x0e, 0x1f));
        }
        block.known = beyond_ascii.trailing_zeros();
        block
    }

    /// The bits, bit 0 apart, that depend on nothing beyond the known characters: each start needs to know the character
    /// after it, and inside a run of white space how the run ends.
    #[inline(always)]
    fn certain(&self) -> u64 {
        let known = self.known;
        if known < 2 {
            return 0;
        }
        let run = (self.white << (64 - known)).leading_ones();
        let last = (known - 2).min(known - run);
        (2 << last) - 2
    }

    #[inline(always)]
    fn letter(&self) -> u64 {
        self.upper | self.lower | self.caseless
    }

    #[inline(always)]
    fn symbol(&self) -> u64 {
        !(self.letter() | self.number | self.white)
    }

    /// `contraction(p)` is the length of the contraction at character p of the block, or 0; it may look beyond the block.
    #[inline(always)]
    pub fn gpt2_starts<const DIGITS_APART: bool>(&self, contraction: impl Fn(usize) -> usize) -> u64 {
        let (letter, number, symbol) = (self.letter(), self.number, self.symbol());
        let goes_on = letter & letter << 1 | number & number << 1 | symbol & symbol << 1;
        let mut starts = !self.white & !goes_on & !(self.space << 1);
        // White space: the first of a run, and the last, which the next pretoken takes or which stands alone.
        let mut last = self.white & !(self.white >> 1);
        if DIGITS_APART {
            starts |= number;
            last &= !(number >> 1);
        }
        starts |= self.white & !(self.white << 1) | last;
        let certain = self.certain();
        // A quote that starts a pretoken. What a contraction ends with is a letter, so it decides nothing about the
        // start of a later quote.
        for p in each_bit(self.quote & starts & letter >> 1 & (certain | 1)) {
            let len = contraction(p);
            if len > 0 {
                starts = starts & !(2 << p) | bit(p + len);
            }
        }
        starts & certain
    }

    #[inline(always)]
    pub fn cl100k_starts<const DIGITS: usize>(&self, contraction: impl Fn(usize) -> usize) -> u64 {
        let letter = self.letter();
        let (mut starts, symbol_starts) = self.starts_around_words::<DIGITS, false>(self.newline);
        starts |= letter & !(letter << 1) & !self.attaches(symbol_starts);
        let certain = self.certain();
        for p in each_bit(self.quote & symbol_starts & letter >> 1 & (certain | 1)) {
            let len = contraction(p);
            if len > 0 {
                starts |= bit(p + len);
            }
        }
        starts & certain
    }

    #[inline(always)]
    pub fn o200k_starts<const DIGITS: usize>(&self, contraction: impl Fn(usize) -> usize) -> u64 {
        self.before(self.unclear()).marks_as_letters().cased_starts::<DIGITS>(contraction)
    }

    /// As o200k has them, where no mark is left, nor a capital after a letter without case.
    #[inline(always)]
    fn cased_starts<const DIGITS: usize>(&self, contraction: impl Fn(usize) -> usize) -> u64 {
        let letter = self.letter();
        let (mut starts, symbol_starts) = self.starts_around_words::<DIGITS, false>(self.newline | self.slash);
        starts |= letter & !(letter << 1) & !self.attaches(symbol_starts);
        starts |= self.upper & self.lower << 1;
        let certain = self.certain();
        // A contraction ends the word before it. A quote right after another contraction has no word before it.
        let mut last_end = 0;
        for p in each_bit(self.quote & letter << 1 & letter >> 1 & certain) {
            let len = if p == last_end { 0 } else { contraction(p) };
            if len > 0 {
                last_end = p + len;
                starts = starts & !((bit(len) - 1) << p) | bit(last_end);
            }
        }
        starts & certain
    }

    /// Unlike cl100k, it has no contractions, marks are letters, and numbers and ideographs were cut out before: what is on
    /// either side of them is at an end of its part of the text. Of symbols, those of ASCII alone take letters with them,
    /// and these of ASCII alone.
    #[inline(always)]
    pub fn deepseek_v3_starts(&self) -> u64 {
        let block = self.marks_as_letters().before(self.rest);
        let letter = block.letter();
        let (mut starts, symbol_starts) = block.starts_around_words::<3, true>(block.newline);
        if block.is_ascii() {
            starts |= letter & !(letter << 1) & !block.attaches(symbol_starts);
            return starts & block.certain();
        }
        let edges = block.ideographic ^ block.ideographic << 1;
        let ascii = letter & !block.wide;
        let with_symbol = ascii & (symbol_starts & !block.wide) << 1;
        let with_blank = letter & (block.white & !block.newline) << 1 & !edges;
        starts |= letter & !(letter << 1) & !with_symbol & !with_blank | edges;
        // Adding a bit to a run of ones clears the run from there on.
        let letters_of_symbols = ascii & !ascii.wrapping_add(with_symbol);
        starts |= letter & block.wide & letters_of_symbols << 1;
        starts & block.certain()
    }

    /// Letters that belong to the character before them: a blank, or a symbol that itself starts a pretoken.
    #[inline(always)]
    fn attaches(&self, symbol_starts: u64) -> u64 {
        (symbol_starts | self.white & !self.newline) << 1
    }

    /// Starts at numbers, symbols and white space as cl100k and o200k have them, and those at symbols once more.
    /// `tail` is what a run of symbols takes with it once a newline follows it. A run of numbers is cut after every
    /// `DIGITS`; with `APART` these were cut out before, as were ideographs, so white space before them ends a text.
    #[inline(always)]
    fn starts_around_words<const DIGITS: usize, const APART: bool>(&self, tail: u64) -> (u64, u64) {
        let ideographic = if APART { self.ideographic } else { 0 };
        let after_symbols = (self.symbol() & !ideographic) << 1 & self.newline;
        // Adding a bit to a run of ones clears the run from there on. A second bit in the same run sets itself again.
        let tails = tail & !tail.wrapping_add(after_symbols) | after_symbols;

        let symbol = self.symbol() & !tails;
        let mut symbol_starts = symbol & !(symbol << 1) & !(self.space << 1);
        if APART {
            symbol_starts |= symbol & (ideographic ^ ideographic << 1);
        }

        let white = self.white & !tails;
        let blank = white & !self.newline;
        // A run's first; its last if a blank, which the next pretoken takes or which stands alone; and the first
        // after its last newline.
        let mut last = blank & !(self.white >> 1);
        if APART {
            last &= !((self.number | ideographic) >> 1);
        }
        let mut white_starts = white & !(white << 1) | last;
        let mut after_newline = blank & (white & self.newline) << 1;
        // Lines of nothing but blanks are rare enough for a loop.
        let mut before_newline = blank & self.newline >> 1;
        while before_newline != 0 {
            after_newline &= !before_newline;
            before_newline = before_newline >> 1 & blank;
        }
        white_starts |= after_newline;
        (self.number_starts::<DIGITS>() | symbol_starts | white_starts, symbol_starts)
    }

    #[inline(always)]
    fn number_starts<const DIGITS: usize>(&self) -> u64 {
        if DIGITS == 1 {
            return self.number;
        }
        let goes_on = self.number & self.number << 1;
        let mut starts = self.number & !goes_on;
        // Numbers with at least `DIGITS` before them in the run.
        let later = goes_on & goes_on << 1 & goes_on << 2;
        let mut next = starts << DIGITS & later;
        while next != 0 {
            starts |= next;
            next = next << DIGITS & later;
        }
        starts
    }
}

/// Bit `p` of a word, or nothing where the word has no such bit.
#[inline(always)]
fn bit(p: usize) -> u64 {
    if p < 64 { 1 << p } else { 0 }
}

/// The positions of the set bits, lowest first.
#[inline(always)]
fn each_bit(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let p = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        p
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_classify_a_block_agree_on_every_byte_in_every_place() {
        for byte in 0..=255 {
            for place in 0..BLOCK {
                let mut bytes: [u8; BLOCK] = std::array::from_fn(|at| (at as u8).wrapping_mul(37) & 0x7f);
                bytes[place] = byte;
                assert_eq!(Block::new(&bytes), Block::portable(&bytes), "byte {byte:#x} at {place}");
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx512bw") {
                    // SAFETY: the processor has AVX-512.
                    let (found, want) = (unsafe { Block::avx512(&bytes) }, Block::portable(&bytes));
                    let known = if found.known < 64 { (1 << found.known) - 1 } else { u64::MAX };
                    let bits = |b: &Block| {
                        [b.upper, b.lower, b.number, b.white, b.newline, b.space, b.quote, b.slash, b.rest]
                            .map(|bits| bits & known)
                    };
                    assert_eq!((found.known, bits(&found)), (want.known, bits(&want)), "byte {byte:#x} at {place}");
                }
            }
        }
    }
}
