//! The few operations of the encoder that have a vector form, for each kind of processor.
//!
//! [`Portable`] is plain Rust and runs everywhere. [`Avx2`] needs AVX2, BMI and AES, and `avx512` has a third kind; a
//! value of such a kind exists only where its `detect` found the instructions, which is what makes its methods safe to
//! call. Everything here is inlined into one root function per kind (`with_isa`): called from a function without the
//! features, each intrinsic would be a call, ten times slower. All kinds give the same ids; tests force each.

use super::cache::Line;
use super::joined::Joined;
use super::lockstep::{self, Group};
use super::pairs::Pairs;
#[cfg(target_arch = "x86_64")]
pub use crate::pretoken::wide::Avx2;
pub use crate::pretoken::wide::Portable;
use crate::pretoken::wide::{Blocks, Characters};

/// A set of instructions that the encoder is compiled for.
pub trait Isa: Blocks + Send + Sync {
    /// The least of the lanes; there are 8, 16, 24, 32 or 64.
    fn least(self, lanes: &[u32]) -> u32;

    /// Masks the 16 bytes at `text` to the `len` bytes of a word (16: of a longer one), adds the length, writes that
    /// key to `key` and returns its hash.
    ///
    /// # Safety
    /// 16 bytes can be read at `text`.
    unsafe fn key(self, text: *const u8, len: usize, key: &mut u128) -> u32;

    /// The same for [`KEYS`] words, word k from `begins[k]` to `ends[k]`; returns the hashes, shifted right by `shift`. With
    /// `TRIM`, a first byte up to the space is left out.
    ///
    /// # Safety
    /// 16 bytes can be read at each beginning, with `TRIM` 17.
    #[inline(always)]
    unsafe fn keys<const TRIM: bool>(
        self,
        text: *const u8,
        begins: &[u32; KEYS],
        ends: &[u32; KEYS],
        keys: &mut [u128; KEYS],
        shift: u32,
    ) -> [u32; KEYS] {
        let mut hashes = [0; KEYS];
        for k in 0..KEYS {
            // SAFETY: the caller says that 16 bytes can be read, or 17.
            hashes[k] = unsafe {
                let begin = begins[k] + u32::from(TRIM && *text.add(begins[k] as usize) <= b' ');
                let len = (ends[k] - begin).min(16) as usize;
                self.key(text.add(begin as usize), len, &mut keys[k])
            } >> shift;
        }
        hashes
    }

    /// Writes `first` plus the position of each set bit, lowest first. May write up to [`BEYOND`] more values after them.
    ///
    /// # Safety
    /// There is room for all of these at `out`.
    #[inline(always)]
    unsafe fn places(self, mut bits: u64, first: u32, mut out: *mut u32) {
        while bits != 0 {
            // Eight at a time, whether there are eight or not.
            for k in 0..8 {
                // SAFETY: the caller says that there is room.
                unsafe { out.add(k).write(first.wrapping_add(bits.trailing_zeros())) };
                bits &= bits.wrapping_sub(1);
            }
            // SAFETY: as above.
            out = unsafe { out.add(8) };
        }
    }

    /// Pairs of characters in a block from which on `cuts` is faster than one pair after another.
    const CUTS: u32 = u32::MAX;

    /// As `Joined::cuts`.
    #[inline(always)]
    fn cuts(self, joined: &Joined, characters: &Characters, asked: u64) -> u64 {
        joined.cuts(characters, asked)
    }

    /// Groups of up to this many lanes are stored lane by lane, so that `merge` loads a lane of all words at once.
    const LANE_BY_LANE: usize = 0;

    /// Merges the first `words` words of `group` until nothing can be merged.
    #[inline(always)]
    fn merge<const LANES: usize>(self, pairs: &Pairs, group: &mut Group<LANES>, words: usize) {
        lockstep::merge(self, pairs, group, words);
    }

    /// Copies the value of `key` in `line` to `value`; true if there is none.
    fn probe(self, line: &Line, key: &u128, value: &mut u128) -> bool;

    /// Writes the six ids of 20 bits in `value`, and two more words that mean nothing.
    ///
    /// # Safety
    /// 8 ids can be written at `out`.
    unsafe fn unpack(self, value: u128, out: *mut u32);

    /// Three bit masks, one for each of `kinds`: bit p is set if byte p has a class of that kind. The classes of a byte
    /// are the bits that both tables have: `halves[0]` at its low four bits, `halves[1]` at its high four. Bytes of at
    /// least `from` are of the last kind too.
    fn classify(self, bytes: &[u8; 64], halves: &[[u8; 16]; 2], kinds: [u8; 3], from: u8) -> [u64; 3];

    /// Bit p is set if byte p has one of these bits.
    #[inline(always)]
    fn with_bits(self, bytes: &[u8; 64], bits: u8) -> u64 {
        let mut found = 0;
        for (at, byte) in bytes.iter().enumerate() {
            found |= u64::from(byte & bits != 0) << at;
        }
        found
    }

    /// Does `work` in a function of its own, compiled for these instructions: a loop that shares a function with a
    /// dozen others has too few registers.
    fn call<W: WithIsa>(self, work: W) -> W::Out;
}

/// Words whose keys are made at once.
pub const KEYS: usize = 4;

/// Values that `places` may write after the last requested one.
pub const BEYOND: usize = 16;

/// Bytes of the longest word that fits a key.
pub const SHORT: usize = 15;

/// For each length the mask of its bytes, and the length itself in the last byte: so a word of NULs is not empty.
/// Lengths from 16 on have a key that is never stored.
const MASKS: [[u128; 2]; 17] = {
    let mut masks = [[0u128; 2]; 17];
    let mut len = 1;
    while len <= SHORT {
        masks[len] = [(1u128 << (8 * len)) - 1, (len as u128) << 120];
        len += 1;
    }
    masks[16] = [0, 0xff << 120];
    masks
};

#[repr(align(64))]
struct Aligned<T>(T);
static KEY_MASKS: Aligned<[[u128; 2]; 17]> = Aligned(MASKS);

/// 2^64 divided by the golden ratio, for multiplicative hashing.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
pub const ODD: u64 = 0xd6e8_feb8_6659_fd93;

/// Multiplies both halves and folds the product: a hash that every processor does in a few cycles.
#[inline(always)]
pub fn fold(key: u128) -> u64 {
    let product = u128::from(key as u64 ^ GOLDEN) * u128::from((key >> 64) as u64 ^ ODD);
    product as u64 ^ (product >> 64) as u64
}

/// The key of a word of at most [`SHORT`] bytes.
#[inline(always)]
pub fn key_of(word: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    bytes[..word.len()].copy_from_slice(word);
    bytes[SHORT] = word.len() as u8;
    u128::from_le_bytes(bytes)
}

/// The hash of a word of at least 16 bytes.
#[inline(always)]
pub fn hash_long(word: &[u8]) -> u64 {
    let mut hash = word.len() as u64;
    let (chunks, _) = word.as_chunks::<16>();
    for chunk in chunks {
        hash = fold(u128::from_le_bytes(*chunk) ^ u128::from(hash)).wrapping_add(hash.rotate_left(29));
    }
    if let Some(last) = word.last_chunk::<16>() {
        hash = fold(u128::from_le_bytes(*last) ^ u128::from(hash)).wrapping_add(hash.rotate_left(29));
    }
    hash ^ hash >> 32
}

impl Isa for Portable {
    #[inline(always)]
    fn least(self, lanes: &[u32]) -> u32 {
        // Eight at a time, so that the compiler can use what vectors there are.
        let mut low = [u32::MAX; 8];
        for eight in lanes.as_chunks::<8>().0 {
            for (low, lane) in low.iter_mut().zip(eight) {
                *low = (*low).min(*lane);
            }
        }
        low.into_iter().fold(u32::MAX, u32::min)
    }

    #[inline(always)]
    unsafe fn key(self, text: *const u8, len: usize, key: &mut u128) -> u32 {
        // SAFETY: the caller says that 16 bytes can be read.
        let bytes = u128::from_le(unsafe { text.cast::<u128>().read_unaligned() });
        let [mask, length] = KEY_MASKS.0[len];
        *key = bytes & mask | length;
        (fold(*key) >> 32) as u32
    }

    #[inline(always)]
    fn probe(self, line: &Line, key: &u128, value: &mut u128) -> bool {
        let second = line.keys[1] == *key;
        *value = line.values[usize::from(second)];
        !(second || line.keys[0] == *key)
    }

    #[inline(always)]
    unsafe fn unpack(self, value: u128, out: *mut u32) {
        for place in 0..6 {
            // SAFETY: the caller says that 8 ids can be written.
            unsafe { out.add(place).write((value >> (20 * place)) as u32 & 0xf_ffff) };
        }
    }

    #[inline(always)]
    fn classify(self, bytes: &[u8; 64], [low, high]: &[[u8; 16]; 2], kinds: [u8; 3], from: u8) -> [u64; 3] {
        let mut found = [0; 3];
        for (at, byte) in bytes.iter().enumerate() {
            let class = low[usize::from(byte & 15)] & high[usize::from(byte >> 4)];
            for k in 0..3 {
                found[k] |= u64::from(class & kinds[k] != 0) << at;
            }
            found[2] |= u64::from(*byte >= from) << at;
        }
        found
    }

    #[inline(never)]
    fn call<W: WithIsa>(self, work: W) -> W::Out {
        work.run(self)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{GOLDEN, Isa, KEY_MASKS, Line, ODD};
    use crate::pretoken::wide::Avx2;
    use std::arch::x86_64::*;

    impl Isa for Avx2 {
        #[inline(always)]
        fn least(self, lanes: &[u32]) -> u32 {
            // SAFETY: `self` exists only where AVX2 does; each load is of 8 of the lanes, and needs no alignment.
            unsafe {
                let mut low = _mm256_loadu_si256(lanes.as_ptr().cast());
                for eight in 1..lanes.len() / 8 {
                    low = _mm256_min_epu32(low, _mm256_loadu_si256(lanes.as_ptr().add(8 * eight).cast()));
                }
                let four = _mm_min_epu32(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low));
                let two = _mm_min_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
                let one = _mm_min_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
                _mm_cvtsi128_si32(one) as u32
            }
        }

        #[inline(always)]
        unsafe fn key(self, text: *const u8, len: usize, key: &mut u128) -> u32 {
            debug_assert!(len <= 16);
            // SAFETY: `self` exists only where AES does; the caller says that 16 bytes can be read at `text`; `len` is
            // at most 16, and each mask is 16 bytes on a border of 16.
            unsafe {
                let mask = KEY_MASKS.0.as_ptr().add(len).cast::<__m128i>();
                let bytes = _mm_loadu_si128(text.cast());
                let masked = _mm_or_si128(_mm_and_si128(bytes, _mm_load_si128(mask)), _mm_load_si128(mask.add(1)));
                _mm_storeu_si128(std::ptr::from_mut(key).cast(), masked);
                let round = _mm_set_epi64x(GOLDEN as i64, ODD as i64);
                _mm_cvtsi128_si32(_mm_aesenc_si128(_mm_aesenc_si128(masked, round), round)) as u32
            }
        }

        #[inline(always)]
        fn probe(self, line: &Line, key: &u128, value: &mut u128) -> bool {
            // SAFETY: `self` exists only where AVX2 does; a line is 64 bytes: two keys, two values.
            unsafe {
                let line = std::ptr::from_ref(line).cast::<__m128i>();
                let key = _mm256_broadcastsi128_si256(_mm_loadu_si128(std::ptr::from_ref(key).cast()));
                let same = _mm256_cmpeq_epi64(key, _mm256_load_si256(line.cast()));
                let halves = _mm256_movemask_pd(_mm256_castsi256_pd(same)) as u32;
                // Bits 0 and 1: both halves of the first key are equal; bits 2 and 3: of the second.
                let second = halves >> 3 & halves >> 2 & 1;
                let found = _mm_load_si128(line.add(2 + second as usize));
                _mm_storeu_si128(std::ptr::from_mut(value).cast(), found);
                (halves >> 1 & halves & 1) | second == 0
            }
        }

        #[inline(always)]
        unsafe fn unpack(self, value: u128, out: *mut u32) {
            // SAFETY: `self` exists only where AVX2 does; the caller says that 8 ids can be written.
            unsafe {
                let value = _mm256_broadcastsi128_si256(_mm_loadu_si128((&raw const value).cast()));
                // The bytes of each id, of which every other one begins in the middle of a byte.
                let pick = _mm256_setr_epi8(
                    0, 1, 2, -1, 2, 3, 4, -1, 5, 6, 7, -1, 7, 8, 9, -1, //
                    10, 11, 12, -1, 12, 13, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                );
                let shift = _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 0);
                let ids = _mm256_srlv_epi32(_mm256_shuffle_epi8(value, pick), shift);
                _mm256_storeu_si256(out.cast(), _mm256_and_si256(ids, _mm256_set1_epi32(0xf_ffff)));
            }
        }

        #[inline(always)]
        fn classify(self, bytes: &[u8; 64], [low, high]: &[[u8; 16]; 2], kinds: [u8; 3], from: u8) -> [u64; 3] {
            let mut found = [0; 3];
            // SAFETY: `self` exists only where AVX2 does; the loads are of 16 bytes of each table, and of 32 bytes of 64.
            unsafe {
                let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(low.as_ptr().cast()));
                let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(high.as_ptr().cast()));
                let nibble = _mm256_set1_epi8(15);
                for at in [0, 32] {
                    let x = _mm256_loadu_si256(bytes.as_ptr().add(at).cast());
                    let lows = _mm256_shuffle_epi8(low, _mm256_and_si256(x, nibble));
                    let highs = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16::<4>(x), nibble));
                    let class = _mm256_and_si256(lows, highs);
                    for k in 0..3 {
                        let some = _mm256_and_si256(class, _mm256_set1_epi8(kinds[k] as i8));
                        let none = _mm256_movemask_epi8(_mm256_cmpeq_epi8(some, _mm256_setzero_si256()));
                        found[k] |= u64::from(!none as u32) << at;
                    }
                    let above = _mm256_cmpeq_epi8(_mm256_max_epu8(x, _mm256_set1_epi8(from as i8)), x);
                    found[2] |= u64::from(_mm256_movemask_epi8(above) as u32) << at;
                }
            }
            found
        }

        #[inline(always)]
        fn with_bits(self, bytes: &[u8; 64], bits: u8) -> u64 {
            let mut found = 0;
            for at in [0, 32] {
                // SAFETY: `self` exists only where AVX2 does; the load is of 32 bytes of 64.
                unsafe {
                    let some = _mm256_loadu_si256(bytes.as_ptr().add(at).cast());
                    let some = _mm256_and_si256(some, _mm256_set1_epi8(bits as i8));
                    let none = _mm256_movemask_epi8(_mm256_cmpeq_epi8(some, _mm256_setzero_si256()));
                    found |= u64::from(!none as u32) << at;
                }
            }
            found
        }

        #[inline(always)]
        fn call<W: super::WithIsa>(self, work: W) -> W::Out {
            // SAFETY: `self` exists only where the features are.
            unsafe { super::root(self, work) }
        }
    }
}

/// Something to do with the instructions that this processor has.
pub trait WithIsa {
    /// What comes out.
    type Out;
    /// Does it. Must be `#[inline(always)]`, and so must all that it calls in a loop.
    fn run<I: Isa>(self, isa: I) -> Self::Out;
}

/// Which instructions to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// The best that this processor has.
    Best,
    /// At most AVX2.
    Avx2,
    /// Those that every processor has.
    Portable,
}

/// Runs `work` compiled for the best of the `allowed` instructions that this processor has.
pub fn with_isa<W: WithIsa>(allowed: Instructions, work: W) -> W::Out {
    #[cfg(target_arch = "x86_64")]
    {
        if allowed == Instructions::Best
            && let Some(isa) = super::avx512::Avx512::detect()
        {
            return isa.call(work);
        }
        if allowed != Instructions::Portable
            && let Some(isa) = Avx2::detect()
        {
            return isa.call(work);
        }
    }
    let _ = allowed;
    Portable.call(work)
}

/// # Safety
/// The processor has the features named here.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,aes")]
unsafe fn root<W: WithIsa>(isa: Avx2, work: W) -> W::Out {
    work.run(isa)
}
