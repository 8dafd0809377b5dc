//! The characters of a block that is not ASCII, and their classes.
//!
//! In: 64 bytes that begin with a character. Out: for each character its code point, its first byte and its class, and
//! from these the masks of a [`Block`]. The oracle is the plain implementation in the tests, and `Scanner::end`.
//! It takes instructions that move the bits of some places side by side (BMI2): without them, a block knows only ASCII,
//! and the rest of a text goes one character at a time.

use super::block::{BLOCK, Block};
use super::classes::{CASELESS, Classes, IDEOGRAPHIC, Kinds, LOWER, MARK, NEWLINE, NUMBER, REST, UPPER, WHITE};

/// The characters of a block; those that go on beyond it are left out.
#[derive(Clone)]
pub struct Characters {
    /// The bytes at which characters begin, a bit for each byte.
    pub chars: u64,
    /// How many there are.
    pub known: u32,
    /// Those beyond ASCII, a bit for each character.
    pub wide: u64,
    pub code_points: [u32; BLOCK],
    /// The first byte of each.
    pub firsts: [u8; BLOCK],
    classes: [u8; BLOCK],
}

impl Default for Characters {
    fn default() -> Characters {
        Characters { chars: 0, known: 0, wide: 0, code_points: [0; BLOCK], firsts: [0; BLOCK], classes: [0; BLOCK] }
    }
}

/// How blocks are read.
pub trait Blocks: Copy {
    /// Whether blocks know all characters, and not only those before the first that is not ASCII.
    const WIDE: bool;

    /// The classes of 64 bytes before the first that is not ASCII.
    fn ascii(self, bytes: &[u8; BLOCK]) -> Block;

    /// Takes the characters of a block. Only if `WIDE`.
    fn decode(self, bytes: &[u8; BLOCK], characters: &mut Characters);

    /// The classes of all characters, which become `characters`; `ascii` is of the same bytes. Only if `WIDE`.
    fn wide(self, ascii: &Block, bytes: &[u8; BLOCK], classes: &Classes, characters: &mut Characters) -> Block;

    /// The classes of all characters, if `WIDE`; these become `characters`, if the block is not ASCII.
    #[inline(always)]
    fn block(self, bytes: &[u8; BLOCK], classes: &Classes, characters: &mut Characters) -> Block {
        let ascii = self.ascii(bytes);
        if !Self::WIDE || ascii.is_ascii() { ascii } else { self.wide(&ascii, bytes, classes, characters) }
    }

    /// Bits for characters as bits for the bytes `chars` at which these begin. Only if `WIDE`.
    fn spread(self, bits: u64, chars: u64) -> u64;
}

/// Plain Rust, on any processor: only ASCII.
#[derive(Clone, Copy)]
pub struct Portable;

impl Blocks for Portable {
    const WIDE: bool = false;

    #[inline(always)]
    fn ascii(self, bytes: &[u8; BLOCK]) -> Block {
        Block::new(bytes)
    }

    #[inline(always)]
    fn decode(self, _: &[u8; BLOCK], _: &mut Characters) {}

    #[inline(always)]
    fn wide(self, ascii: &Block, _: &[u8; BLOCK], _: &Classes, _: &mut Characters) -> Block {
        *ascii
    }

    #[inline(always)]
    fn spread(self, bits: u64, _: u64) -> u64 {
        bits
    }
}

/// The flags of a class, a bit each.
const FLAGS: [Kinds; 8] = [UPPER, LOWER, CASELESS, MARK, NUMBER, WHITE, NEWLINE, REST];

/// The flags of each class.
#[repr(align(16))]
struct OfClasses([u8; 16]);

static OF_CLASSES: OfClasses = {
    let mut flags = [0; 16];
    let mut class = 0;
    while class < 16 {
        let mut flag = 0;
        while flag < 8 {
            if FLAGS[flag] >> class & 1 != 0 {
                flags[class] |= 1 << flag;
            }
            flag += 1;
        }
        class += 1;
    }
    OfClasses(flags)
};

/// The lowest of the classes of [`IDEOGRAPHIC`], which are the last ones.
const IDEOGRAPHIC_FROM: u8 = IDEOGRAPHIC.trailing_zeros() as u8;

impl Characters {
    /// Looks up the class of each character.
    #[inline(always)]
    fn classify(&mut self, classes: &Classes) {
        // Sixteen at a time, whether there are sixteen or not: what is left of an earlier block is a code point too.
        let groups = (self.known as usize).div_ceil(16);
        let (code_points, _) = self.code_points.as_chunks::<16>();
        let (found, _) = self.classes.as_chunks_mut::<16>();
        for (code_points, found) in code_points.iter().zip(found).take(groups) {
            for (&code_point, class) in code_points.iter().zip(found) {
                *class = classes[code_point as usize];
            }
        }
    }

    /// A block of these characters, from the masks of their flags.
    #[inline(always)]
    fn block(&self, flags: [u64; 8], ideographic: u64, [space, quote, slash]: [u64; 3]) -> Block {
        let [upper, lower, caseless, mark, number, white, newline, rest] = flags;
        Block {
            known: self.known,
            chars: self.chars,
            wide: self.wide,
            upper,
            lower,
            caseless,
            mark,
            number,
            white,
            newline,
            space,
            quote,
            slash,
            rest,
            ideographic,
        }
    }

    /// Leaves the last character out, if it goes on beyond the block.
    #[inline(always)]
    fn drop_incomplete(&mut self, bytes: &[u8; BLOCK]) {
        let last = BLOCK - 1 - (self.chars.leading_zeros() as usize).min(BLOCK - 1);
        let len = match bytes[last] {
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            _ => 1,
        };
        self.known = self.chars.count_ones();
        if last + len > BLOCK {
            self.known -= 1;
            // Not what is beyond all code points.
            self.code_points[self.known as usize] = 0;
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512, NUMBERS};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use std::arch::x86_64::*;

    /// The bits of a code point in its bytes, the first of them the highest, by the upper half of the first byte.
    const CODE_POINT: [u32; 16] = {
        let mut masks = [0x7f00_0000; 16];
        masks[12] = 0x1f3f_0000;
        masks[13] = 0x1f3f_0000;
        masks[14] = 0x0f3f_3f00;
        masks[15] = 0x073f_3f3f;
        masks
    };

    /// AVX2, BMI1, BMI2, LZCNT, POPCNT and AES, which processors of the last ten years have. It exists only where they
    /// were found.
    #[derive(Clone, Copy)]
    pub struct Avx2(());

    impl Avx2 {
        /// The instructions, if this processor has them.
        pub fn detect() -> Option<Avx2> {
            let all = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("aes");
            all.then_some(Avx2(()))
        }

        /// `words` moved side by side: the bits of each that are set in `places`.
        #[inline(always)]
        fn pack<const N: usize>(self, words: [u64; N], places: u64) -> [u64; N] {
            let mut packed = [0; N];
            for k in 0..N {
                // SAFETY: `self` exists only where BMI2 does.
                packed[k] = unsafe { _pext_u64(words[k], places) };
            }
            packed
        }
    }

    /// The highest bit of each of 64 bytes.
    #[inline(always)]
    unsafe fn sign_bits(low: __m256i, high: __m256i) -> u64 {
        // SAFETY: the caller has AVX2.
        unsafe { u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32 }
    }

    impl Blocks for Avx2 {
        const WIDE: bool = true;

        #[inline(always)]
        fn ascii(self, bytes: &[u8; BLOCK]) -> Block {
            Block::new(bytes)
        }

        #[inline(always)]
        fn decode(self, bytes: &[u8; BLOCK], characters: &mut Characters) {
            // SAFETY: `self` exists only where AVX2 and BMI2 do; the loads are of 32 bytes of 64, and need no alignment.
            unsafe {
                let low = _mm256_loadu_si256(bytes.as_ptr().cast());
                let high = _mm256_loadu_si256(bytes.as_ptr().add(32).cast());
                let beyond = sign_bits(low, high);
                let limit = _mm256_set1_epi8(-64);
                let continuing = sign_bits(_mm256_cmpgt_epi8(limit, low), _mm256_cmpgt_epi8(limit, high));
                characters.chars = !continuing;
                [characters.wide] = self.pack([beyond], !continuing);
                let mut left = !continuing;
                let mut count = 0;
                while left != 0 {
                    let at = left.trailing_zeros() as usize;
                    // Near the end of the block fewer than four bytes are left: zeros take the place of the others.
                    let from = at.min(BLOCK - 4);
                    let four =
                        bytes.as_ptr().add(from).cast::<u32>().read_unaligned().swap_bytes() << (8 * (at - from));
                    characters.code_points[count] = _pext_u32(four, CODE_POINT[(four >> 28) as usize]);
                    characters.firsts[count] = (four >> 24) as u8;
                    count += 1;
                    left &= left - 1;
                }
            }
            characters.drop_incomplete(bytes);
        }

        #[inline(always)]
        fn wide(self, ascii: &Block, bytes: &[u8; BLOCK], classes: &Classes, characters: &mut Characters) -> Block {
            self.decode(bytes, characters);
            characters.classify(classes);
            let ascii = self.pack([ascii.space, ascii.quote, ascii.slash], characters.chars);
            let mut flags = [0; 8];
            // SAFETY: `self` exists only where AVX2 does; the loads are of 32 bytes of 64, and of the 16 of the table.
            unsafe {
                let low = _mm256_loadu_si256(characters.classes.as_ptr().cast());
                let high = _mm256_loadu_si256(characters.classes.as_ptr().add(32).cast());
                let table = _mm256_broadcastsi128_si256(_mm_load_si128(OF_CLASSES.0.as_ptr().cast()));
                let (of_low, of_high) = (_mm256_shuffle_epi8(table, low), _mm256_shuffle_epi8(table, high));
                for (k, flag) in flags.iter_mut().enumerate() {
                    let shift = _mm_cvtsi32_si128(7 - k as i32);
                    *flag = sign_bits(_mm256_sll_epi16(of_low, shift), _mm256_sll_epi16(of_high, shift));
                }
                let limit = _mm256_set1_epi8(IDEOGRAPHIC_FROM as i8 - 1);
                let ideographic = sign_bits(_mm256_cmpgt_epi8(low, limit), _mm256_cmpgt_epi8(high, limit));
                characters.block(flags, ideographic, ascii)
            }
        }

        #[inline(always)]
        fn spread(self, bits: u64, chars: u64) -> u64 {
            // SAFETY: `self` exists only where BMI2 does.
            if chars == !0 { bits } else { unsafe { _pdep_u64(bits, chars) } }
        }
    }

    /// AVX-512 with its extensions for bytes, and what [`Avx2`] has. It exists only where they were found.
    #[derive(Clone, Copy)]
    pub struct Avx512(Avx2);

    /// The numbers 0 to 63.
    pub const NUMBERS: [u8; 64] = {
        let mut numbers = [0; 64];
        let mut i = 0;
        while i < 64 {
            numbers[i] = i as u8;
            i += 1;
        }
        numbers
    };

    /// The shuffle that repeats each of sixteen bytes four times: a lane of 32 bits for each.
    const FOUR_TIMES: [u8; 64] = {
        let mut from = [0; 64];
        let mut i = 0;
        while i < 64 {
            from[i] = (i / 4) as u8;
            i += 1;
        }
        from
    };

    /// The same bits as in [`CODE_POINT`], the first byte the lowest.
    const BITS: [u32; 16] = {
        let mut bits = CODE_POINT;
        let mut i = 0;
        while i < 16 {
            bits[i] = bits[i].swap_bytes();
            i += 1;
        }
        bits
    };

    /// How far a code point has to move to the right after its four bytes were joined.
    const SHIFTS: [u32; 16] = [18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 12, 12, 6, 0];

    impl Avx512 {
        /// What every processor with AVX-512 has too.
        #[inline(always)]
        pub fn avx2(self) -> Avx2 {
            self.0
        }

        /// The instructions, if this processor has them.
        pub fn detect() -> Option<Avx512> {
            let all = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("avx512vbmi2")
                && is_x86_feature_detected!("vaes");
            if all { Avx2::detect().map(Avx512) } else { None }
        }
    }

    /// Writes the code points of the characters that begin at `places` of a block.
    #[inline(always)]
    unsafe fn code_points(block: __m512i, places: __m128i, out: *mut u32) {
        // SAFETY: the caller has AVX-512, and room for sixteen.
        unsafe {
            // The four bytes from each place on. (From the end of the block on those of its start: that character is
            // left out.)
            let four =
                _mm512_permutexvar_epi8(_mm512_loadu_si512(FOUR_TIMES.as_ptr().cast()), _mm512_castsi128_si512(places));
            let four = _mm512_add_epi8(four, _mm512_set1_epi32(0x0302_0100));
            let four = _mm512_permutexvar_epi8(four, block);
            let upper_half = _mm512_srli_epi32::<4>(four);
            let bits = _mm512_permutexvar_epi32(upper_half, _mm512_loadu_si512(BITS.as_ptr().cast()));
            let shifts = _mm512_permutexvar_epi32(upper_half, _mm512_loadu_si512(SHIFTS.as_ptr().cast()));
            // Two bytes are six bits apart, and the two pairs of them twelve.
            let two = _mm512_maddubs_epi16(_mm512_and_si512(four, bits), _mm512_set1_epi16(0x0140));
            let all = _mm512_madd_epi16(two, _mm512_set1_epi32(0x0001_1000));
            _mm512_storeu_si512(out.cast(), _mm512_srlv_epi32(all, shifts));
        }
    }

    impl Blocks for Avx512 {
        const WIDE: bool = true;

        #[inline(always)]
        fn ascii(self, bytes: &[u8; BLOCK]) -> Block {
            // SAFETY: `self` exists only where AVX-512 does.
            unsafe { Block::avx512(bytes) }
        }

        #[inline(always)]
        fn decode(self, bytes: &[u8; BLOCK], characters: &mut Characters) {
            // SAFETY: `self` exists only where AVX-512 does; all loads and stores are of 64 bytes of arrays that have them.
            unsafe {
                let block = _mm512_loadu_si512(bytes.as_ptr().cast());
                let chars = _mm512_cmpge_epi8_mask(block, _mm512_set1_epi8(-64));
                characters.chars = chars;
                let firsts = _mm512_maskz_compress_epi8(chars, block);
                _mm512_storeu_si512(characters.firsts.as_mut_ptr().cast(), firsts);
                characters.wide = _mm512_movepi8_mask(firsts);
                let numbers = _mm512_loadu_si512(NUMBERS.as_ptr().cast());
                let places = _mm512_maskz_compress_epi8(chars, numbers);
                let count = chars.count_ones();
                let out = characters.code_points.as_mut_ptr();
                code_points(block, _mm512_castsi512_si128(places), out);
                if count > 16 {
                    code_points(block, _mm512_extracti32x4_epi32::<1>(places), out.add(16));
                    if count > 32 {
                        code_points(block, _mm512_extracti32x4_epi32::<2>(places), out.add(32));
                        code_points(block, _mm512_extracti32x4_epi32::<3>(places), out.add(48));
                    }
                }
            }
            characters.drop_incomplete(bytes);
        }

        #[inline(always)]
        fn wide(self, _: &Block, bytes: &[u8; BLOCK], classes: &Classes, characters: &mut Characters) -> Block {
            self.decode(bytes, characters);
            characters.classify(classes);
            // SAFETY: `self` exists only where AVX-512 does; the loads are of 64 bytes, and of the 16 of the table.
            unsafe {
                let firsts = _mm512_loadu_si512(characters.firsts.as_ptr().cast());
                let mut ascii = [b' ', b'\'', b'/'].map(u64::from);
                for byte in &mut ascii {
                    *byte = _mm512_cmpeq_epi8_mask(firsts, _mm512_set1_epi8(*byte as i8));
                }
                let classes = _mm512_loadu_si512(characters.classes.as_ptr().cast());
                let table = _mm512_broadcast_i32x4(_mm_load_si128(OF_CLASSES.0.as_ptr().cast()));
                let found = _mm512_shuffle_epi8(table, classes);
                let mut flags = [0; 8];
                for (k, flag) in flags.iter_mut().enumerate() {
                    *flag = _mm512_test_epi8_mask(found, _mm512_set1_epi8((1u8 << k) as i8));
                }
                let ideographic = _mm512_cmpge_epu8_mask(classes, _mm512_set1_epi8(IDEOGRAPHIC_FROM as i8));
                characters.block(flags, ideographic, ascii)
            }
        }

        #[inline(always)]
        fn spread(self, bits: u64, chars: u64) -> u64 {
            self.0.spread(bits, chars)
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::classes::classes;
    use super::*;

    /// A character at a time.
    fn plainly(bytes: &[u8; BLOCK]) -> (u64, Vec<char>) {
        let valid = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("valid up to here"),
        };
        let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte & 0xc0 != 0x80);
        (starts.map(|(at, _)| 1 << at).sum(), valid.chars().collect())
    }

    fn check(blocks: impl Blocks, bytes: &[u8; BLOCK]) {
        let mut found = Characters::default();
        let block = blocks.wide(&blocks.ascii(bytes), bytes, classes(), &mut found);
        let (chars, want) = plainly(bytes);
        assert_eq!((block.chars, block.known as usize), (chars, want.len()), "{bytes:x?}");
        for (p, &character) in want.iter().enumerate() {
            let at = |bits: u64| bits >> p & 1 != 0;
            assert_eq!(found.code_points[p], u32::from(character));
            assert_eq!(found.firsts[p], character.to_string().as_bytes()[0]);
            assert_eq!(at(block.wide), !character.is_ascii());
            let kind = 1 << classes()[character as usize];
            let masks = [
                block.upper,
                block.lower,
                block.caseless,
                block.mark,
                block.number,
                block.white,
                block.newline,
                block.rest,
            ];
            assert_eq!(masks.map(at), FLAGS.map(|kinds| kinds & kind != 0), "{character:?}");
            assert_eq!(at(block.ideographic), kind & IDEOGRAPHIC != 0, "{character:?}");
            assert_eq!([block.space, block.quote, block.slash].map(at), [' ', '\'', '/'].map(|c| c == character));
        }
    }

    #[test]
    fn every_character_in_every_place_is_read_as_it_is() {
        let mut blocks = vec![];
        for (n, character) in (0x80..0x11_0000).filter_map(char::from_u32).enumerate() {
            // At every place for the first of each kind of length and then at some.
            if character > '\u{3000}' && n % 16 != 0 {
                continue;
            }
            let place = n % (BLOCK - 1);
            let mut text = "a' /\u{e9}1".repeat(11).into_bytes();
            text.truncate(place);
            while std::str::from_utf8(&text).is_err() {
                text.pop();
            }
            text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            text.resize(BLOCK.max(text.len()), if n % 3 == 0 { b'/' } else { 0x80 });
            blocks.push(*text.first_chunk::<BLOCK>().expect("enough bytes"));
        }
        for bytes in &blocks {
            if let Some(avx2) = Avx2::detect() {
                check(avx2, bytes);
            }
            if let Some(avx512) = Avx512::detect() {
                check(avx512, bytes);
            }
        }
    }
}
