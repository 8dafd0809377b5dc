//! The encoder for processors with AVX-512 (Intel from Ice Lake on, AMD from Zen 4 on).
//!
//! What differs from AVX2: the classes of a block come from one table lookup, the starts of words and the keys of four
//! words from a few instructions, and sixteen words are merged in step, one in each lane of a register. The oracle is
//! the portable path; tests compare both on every kind of word.

use super::cache::Line;
use super::isa::{GOLDEN, Isa, KEYS, ODD, SHORT, WithIsa};
use super::joined::Joined;
use super::lockstep::{self, GROUP, Group, NOTHING};
use super::pairs::{KEY_BITS, NOBODY, Pairs, VALUE_BITS};
pub use crate::pretoken::wide::Avx512;
use crate::pretoken::wide::{Characters, NUMBERS};
use std::arch::x86_64::*;

/// # Safety
/// The processor has the features named here.
#[inline(never)]
#[target_feature(
    enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,vaes,aes,avx2,bmi1,bmi2,lzcnt,popcnt"
)]
unsafe fn root<W: WithIsa>(isa: Avx512, work: W) -> W::Out {
    work.run(isa)
}

/// The shuffle that spreads the lengths of four words over their keys. A length is four bytes: the first (bytes to keep)
/// goes to bytes 0 to 14 of the key, the second (the last byte of the key) to byte 15.
const OF_LENGTHS: [u8; 64] = {
    let mut from = [0; 64];
    let mut i = 0;
    while i < 64 {
        from[i] = (i / 16 * 4 + (i % 16 == SHORT) as usize) as u8;
        i += 1;
    }
    from
};

/// The offset of each byte in its key. The last byte holds the length, so its offset is above every length.
const IN_KEY: [u8; 64] = {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 64 {
        places[i] = if i % 16 == SHORT { 0xff } else { i as u8 % 16 };
        i += 1;
    }
    places
};
const LAST_BYTES: u64 = 0x8000_8000_8000_8000;
const FIRST_BYTES: u64 = 0x0001_0001_0001_0001;

#[inline(always)]
unsafe fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 bytes; the caller has AVX-512.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Writes sixteen bytes as numbers of 32 bits, each plus `first`.
#[inline(always)]
unsafe fn write_sixteen(bytes: __m128i, first: u32, out: *mut u32) {
    // SAFETY: the caller has AVX-512, and room for sixteen.
    unsafe {
        let numbers = _mm512_add_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(first as i32));
        _mm512_storeu_si512(out.cast(), numbers);
    }
}

impl Isa for Avx512 {
    #[inline(always)]
    fn least(self, lanes: &[u32]) -> u32 {
        self.avx2().least(lanes)
    }

    #[inline(always)]
    unsafe fn key(self, text: *const u8, len: usize, key: &mut u128) -> u32 {
        debug_assert!(len <= 16);
        // SAFETY: `self` exists only where AVX-512 does; bytes that are masked out are not read.
        unsafe {
            let (kept, length) = if len > SHORT { (0, 0xff) } else { ((1u32 << len) - 1, len) };
            let masked = _mm_maskz_loadu_epi8(kept as u16, text.cast());
            let masked = _mm_mask_set1_epi8(masked, 1 << SHORT, length as i8);
            _mm_storeu_si128(std::ptr::from_mut(key).cast(), masked);
            let round = _mm_set_epi64x(GOLDEN as i64, ODD as i64);
            _mm_cvtsi128_si32(_mm_aesenc_si128(_mm_aesenc_si128(masked, round), round)) as u32
        }
    }

    #[inline(always)]
    unsafe fn keys<const TRIM: bool>(
        self,
        text: *const u8,
        begins: &[u32; KEYS],
        ends: &[u32; KEYS],
        keys: &mut [u128; KEYS],
        shift: u32,
    ) -> [u32; KEYS] {
        // SAFETY: `self` exists only where AVX-512 does; the caller says that 16 bytes can be read at each beginning.
        unsafe {
            let mut word = [_mm_setzero_si128(); KEYS];
            for k in 0..KEYS {
                word[k] = _mm_loadu_si128(text.add(begins[k] as usize).cast());
            }
            let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(word[0]), word[1]);
            let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(word[2]), word[3]);
            let mut words = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            let mut len = _mm_sub_epi32(_mm_loadu_si128(ends.as_ptr().cast()), _mm_loadu_si128(begins.as_ptr().cast()));
            if TRIM {
                let white = _mm512_mask_cmple_epu8_mask(FIRST_BYTES, words, _mm512_set1_epi8(b' ' as i8));
                words = _mm512_mask_mov_epi8(words, white * 0xffff, _mm512_bsrli_epi128::<1>(words));
                len = _mm_mask_sub_epi32(len, _pext_u64(white, FIRST_BYTES) as u8, len, _mm_set1_epi32(1));
            }
            // First byte: how many bytes to keep; second byte: the last byte of the key. Longer words: 0 and 0xff.
            let long = _mm_cmpgt_epu32_mask(len, _mm_set1_epi32(SHORT as i32));
            let twice = _mm_or_si128(len, _mm_slli_epi32::<8>(len));
            let twice = _mm_mask_mov_epi32(twice, long, _mm_set1_epi32(0xff00));
            let lengths = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(twice), load(&OF_LENGTHS));
            let kept = _mm512_cmplt_epu8_mask(load(&IN_KEY), lengths);
            let masked = _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(kept, words), LAST_BYTES, lengths);
            _mm512_storeu_si512(keys.as_mut_ptr().cast(), masked);
            let round = _mm512_broadcast_i32x4(_mm_set_epi64x(GOLDEN as i64, ODD as i64));
            let mixed = _mm512_aesenc_epi128(_mm512_aesenc_epi128(masked, round), round);
            let hashes = _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, mixed));
            let mut numbers = [0; KEYS];
            let shifted = _mm_srl_epi32(hashes, _mm_cvtsi32_si128(shift as i32));
            _mm_storeu_si128(numbers.as_mut_ptr().cast(), shifted);
            numbers
        }
    }

    #[inline(always)]
    unsafe fn places(self, bits: u64, first: u32, out: *mut u32) {
        // SAFETY: `self` exists only where AVX-512 does; the caller says that there is room for as many as there are
        // bits, and for those that the last sixteen have beyond.
        unsafe {
            let places = _mm512_maskz_compress_epi8(bits, load(&NUMBERS));
            let count = bits.count_ones();
            write_sixteen(_mm512_castsi512_si128(places), first, out);
            if count > 16 {
                write_sixteen(_mm512_extracti32x4_epi32::<1>(places), first, out.add(16));
                if count > 32 {
                    write_sixteen(_mm512_extracti32x4_epi32::<2>(places), first, out.add(32));
                    write_sixteen(_mm512_extracti32x4_epi32::<3>(places), first, out.add(48));
                }
            }
        }
    }

    #[inline(always)]
    fn probe(self, line: &Line, key: &u128, value: &mut u128) -> bool {
        // SAFETY: `self` exists only where AVX-512 does; a line is 64 bytes: two keys, two values.
        unsafe {
            let line = _mm512_load_si512(std::ptr::from_ref(line).cast());
            let key = _mm256_broadcastsi128_si256(_mm_loadu_si128(std::ptr::from_ref(key).cast()));
            let same = _mm256_cmpeq_epi64_mask(key, _mm512_castsi512_si256(line));
            // Keeps each half of a value where the same half of its key is equal.
            let found = _mm512_maskz_compress_epi64(same << 4, line);
            _mm_storeu_si128(std::ptr::from_mut(value).cast(), _mm512_castsi512_si128(found));
            // A hit: both halves of the first key are equal, or both of the second and none of the first. Both of the
            // second and one of the first is rare and counts as a miss, which compares whole keys.
            const FOUND: u32 = 1 << 0b0011 | 1 << 0b0111 | 1 << 0b1011 | 1 << 0b1100;
            FOUND >> same & 1 == 0
        }
    }

    #[inline(always)]
    unsafe fn unpack(self, value: u128, out: *mut u32) {
        // SAFETY: the caller says that 8 ids can be written.
        unsafe { self.avx2().unpack(value, out) }
    }

    #[inline(always)]
    fn classify(self, bytes: &[u8; 64], [low, high]: &[[u8; 16]; 2], kinds: [u8; 3], from: u8) -> [u64; 3] {
        // SAFETY: `self` exists only where AVX-512 does; the loads are of 16 bytes of each table, and of 64 bytes.
        unsafe {
            let low = _mm512_broadcast_i32x4(_mm_loadu_si128(low.as_ptr().cast()));
            let high = _mm512_broadcast_i32x4(_mm_loadu_si128(high.as_ptr().cast()));
            let nibble = _mm512_set1_epi8(15);
            let x = load(bytes);
            let lows = _mm512_shuffle_epi8(low, _mm512_and_si512(x, nibble));
            let highs = _mm512_shuffle_epi8(high, _mm512_and_si512(_mm512_srli_epi16::<4>(x), nibble));
            let class = _mm512_and_si512(lows, highs);
            let mut found = [0, 0, _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(from as i8))];
            for k in 0..3 {
                found[k] |= _mm512_test_epi8_mask(class, _mm512_set1_epi8(kinds[k] as i8));
            }
            found
        }
    }

    #[inline(always)]
    fn with_bits(self, bytes: &[u8; 64], bits: u8) -> u64 {
        // SAFETY: `self` exists only where AVX-512 does.
        unsafe { _mm512_test_epi8_mask(load(bytes), _mm512_set1_epi8(bits as i8)) }
    }

    const CUTS: u32 = 10;

    #[inline(always)]
    fn cuts(self, joined: &Joined, characters: &Characters, asked: u64) -> u64 {
        // SAFETY: `self` exists only where AVX-512 does.
        unsafe { joined.cuts_avx512(characters, asked) }
    }

    const LANE_BY_LANE: usize = 16;

    #[inline(always)]
    fn merge<const LANES: usize>(self, pairs: &Pairs, group: &mut Group<LANES>, words: usize) {
        if LANES > Self::LANE_BY_LANE {
            return lockstep::merge(self, pairs, group, words);
        }
        // SAFETY: `self` exists only where AVX-512 does.
        unsafe { merge_sixteen(pairs, group) }
    }

    #[inline(always)]
    fn call<W: WithIsa>(self, work: W) -> W::Out {
        // SAFETY: `self` exists only where the features are.
        unsafe { root(self, work) }
    }
}

/// As `lockstep::merge`, with lane p of all sixteen words in one register. Unused words of the group stay unchanged.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "rows of several arrays, and their number is a constant")]
unsafe fn merge_sixteen<const LANES: usize>(pairs: &Pairs, group: &mut Group<LANES>) {
    const { assert!(GROUP == 16) };
    assert!(LANES <= 32);
    // SAFETY: the caller says that the instructions are there. Rows of a group are 64 bytes on a border of 64.
    unsafe {
        let zero = _mm512_setzero_si512();
        let one = _mm512_set1_epi32(1);
        let nothing = _mm512_set1_epi32(NOTHING as i32);
        let nobody = _mm512_set1_epi32(NOBODY as i32);
        let mut ranks = [zero; LANES];
        let mut best = nothing;
        for p in 1..LANES - 1 {
            ranks[p] = _mm512_load_si512(group.ranks[p].as_ptr().cast());
            best = _mm512_min_epu32(best, ranks[p]);
        }
        let alive_low = _mm512_cvtepi64_epi32(_mm512_loadu_si512(group.alive.as_ptr().cast()));
        let alive_high = _mm512_cvtepi64_epi32(_mm512_loadu_si512(group.alive.as_ptr().add(8).cast()));
        let mut alive = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(alive_low), alive_high);
        loop {
            let going = _mm512_cmplt_epu32_mask(best, nothing);
            if going == 0 {
                break;
            }
            let merged = _mm512_srli_epi32::<6>(best);
            let lane = _mm512_and_si512(best, _mm512_set1_epi32(63));
            // The lowest two bits of `alive` above the lane, and the highest below it.
            let bit = _mm512_sllv_epi32(one, lane);
            let above = _mm512_and_si512(alive, _mm512_sub_epi32(zero, _mm512_add_epi32(bit, bit)));
            let right_bit = _mm512_and_si512(above, _mm512_sub_epi32(zero, above));
            let beyond = _mm512_xor_si512(above, right_bit);
            let after_bit = _mm512_and_si512(beyond, _mm512_sub_epi32(zero, beyond));
            let below = _mm512_and_si512(alive, _mm512_sub_epi32(bit, one));
            let (right, after, before) = (highest(right_bit), highest(after_bit), highest(below));
            alive = _mm512_mask_xor_epi32(alive, going, alive, right_bit);

            // The symbols at `after` and `before`. (Two gathers take twice as long on Zen 4.)
            let (mut next, mut last) = (nobody, nobody);
            for p in 1..LANES - 1 {
                let at = _mm512_set1_epi32(p as i32);
                let symbol = _mm512_load_si512(group.symbols[p].as_ptr().cast());
                next = _mm512_mask_mov_epi32(next, _mm512_cmpeq_epi32_mask(after, at), symbol);
                last = _mm512_mask_mov_epi32(last, _mm512_cmpeq_epi32_mask(before, at), symbol);
            }
            let with_next = _mm512_or_si512(_mm512_slli_epi32::<6>(look_up(pairs, going, merged, next)), lane);
            let with_last = _mm512_or_si512(_mm512_slli_epi32::<6>(look_up(pairs, going, last, merged)), before);
            best = nothing;
            for p in 1..LANES - 1 {
                let at = _mm512_set1_epi32(p as i32);
                let here = _mm512_mask_cmpeq_epi32_mask(going, lane, at);
                let mut rank = _mm512_mask_mov_epi32(ranks[p], here, with_next);
                rank = _mm512_mask_mov_epi32(rank, _mm512_mask_cmpeq_epi32_mask(going, before, at), with_last);
                rank = _mm512_mask_mov_epi32(rank, _mm512_mask_cmpeq_epi32_mask(going, right, at), nothing);
                ranks[p] = rank;
                best = _mm512_min_epu32(best, rank);
                _mm512_mask_store_epi32(group.symbols[p].as_mut_ptr().cast(), here, merged);
            }
        }
        let low = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(alive));
        let high = _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(alive));
        _mm512_storeu_si512(group.alive.as_mut_ptr().cast(), low);
        _mm512_storeu_si512(group.alive.as_mut_ptr().add(8).cast(), high);
    }
}

/// The place of the highest bit of each of sixteen.
#[inline(always)]
unsafe fn highest(bits: __m512i) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_sub_epi32(_mm512_set1_epi32(31), _mm512_lzcnt_epi32(bits)) }
}

/// `Pairs::get` for sixteen pairs. The result is undefined where the bit of `asked` is clear.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
unsafe fn look_up(pairs: &Pairs, asked: __mmask16, left: __m512i, right: __m512i) -> __m512i {
    // SAFETY: the caller says that the instructions are there.
    unsafe {
        let low = look_up_eight(pairs, asked as u8, _mm512_castsi512_si256(left), _mm512_castsi512_si256(right));
        let (left, right) = (_mm512_extracti64x4_epi64::<1>(left), _mm512_extracti64x4_epi64::<1>(right));
        let high = look_up_eight(pairs, (asked >> 8) as u8, left, right);
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }
}

#[inline(always)]
unsafe fn look_up_eight(pairs: &Pairs, asked: __mmask8, left: __m256i, right: __m256i) -> __m256i {
    // SAFETY: the caller says that the instructions are there. What is gathered is as in `Pairs::get`.
    unsafe {
        let key = _mm512_slli_epi64::<KEY_BITS>(_mm512_cvtepu32_epi64(left));
        let key = _mm512_or_si512(key, _mm512_cvtepu32_epi64(right));
        let hash = _mm512_mullo_epi64(key, _mm512_set1_epi64(pairs.multiplier as i64));
        let group = _mm512_srli_epi64::<26>(hash);
        let group = _mm512_and_si512(group, _mm512_set1_epi64(pairs.groups.len() as i64 - 1));
        let none = _mm512_setzero_si512();
        let group = _mm512_mask_i64gather_epi64::<8>(none, asked, group, pairs.groups.as_ptr().cast());
        let filter = _mm512_and_si512(_mm512_srli_epi64::<20>(hash), _mm512_set1_epi64(31));
        let maybe = _mm512_test_epi64_mask(group, _mm512_sllv_epi64(_mm512_set1_epi64(1 << 32), filter));
        let slot = _mm512_srl_epi64(hash, _mm_cvtsi32_si128(pairs.shift as i32));
        let slot = _mm512_xor_si512(slot, _mm512_and_si512(group, _mm512_set1_epi64(0xffff_ffff)));
        let entry = _mm512_mask_i64gather_epi64::<8>(_mm512_set1_epi64(-1), maybe, slot, pairs.slots.as_ptr().cast());
        let found = _mm512_cmpeq_epi64_mask(_mm512_srli_epi64::<VALUE_BITS>(entry), key);
        let merged = _mm512_and_si512(entry, _mm512_set1_epi64((1 << VALUE_BITS) - 1));
        _mm512_cvtepi64_epi32(_mm512_mask_mov_epi64(_mm512_set1_epi64(NOBODY as i64), found, merged))
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::{BEYOND, Portable};
    use super::*;
    use crate::pretoken::block::{BLOCK, Block};
    use crate::random::Random;

    /// Some bytes; the same for each call.
    fn noise(len: usize) -> Vec<u8> {
        let mut random = Random(1);
        (0..len).map(|_| random.below(256) as u8).collect()
    }

    struct EqualToPortable;

    impl WithIsa for EqualToPortable {
        type Out = ();

        fn run<I: Isa>(self, isa: I) {
            let text = noise(400);
            // Keys of all lengths, in fours and alone.
            for start in 0..300u32 {
                let begins = [start, start + 3, start + 20, start + 21];
                let ends = [start + start % 18, start + 3 + start % 5, start + 35, start + 37 + start % 16];
                let (mut four, mut plain) = ([0; KEYS], [0; KEYS]);
                // SAFETY: all of it lies inside the text.
                let hashes = unsafe { isa.keys::<false>(text.as_ptr(), &begins, &ends, &mut four, 7) };
                for k in 0..KEYS {
                    let len = (ends[k] - begins[k]).min(16) as usize;
                    let (mut one, at) = (0, &text[begins[k] as usize..]);
                    // SAFETY: as above.
                    let hash = unsafe { isa.key(at.as_ptr(), len, &mut one) };
                    // SAFETY: as above.
                    unsafe { Portable.key(at.as_ptr(), len, &mut plain[k]) };
                    assert_eq!((four[k], hashes[k]), (one, hash >> 7), "{len}");
                }
                assert_eq!(four, plain);
                // Without a first byte up to the space.
                let begins = begins.map(|begin| begin - u32::from(begin > 0 && start % 3 == 0));
                let mut blanks = text.clone();
                blanks.iter_mut().for_each(|byte| *byte %= 64);
                let ends = [ends[0].max(begins[0] + 1), ends[1].max(begins[1] + 1), ends[2], ends[3]];
                // SAFETY: as above.
                unsafe {
                    isa.keys::<true>(blanks.as_ptr(), &begins, &ends, &mut four, 7);
                    Portable.keys::<true>(blanks.as_ptr(), &begins, &ends, &mut plain, 7);
                }
                assert_eq!(four, plain);
            }
            // Places of bits.
            for bits in noise(8 * 300).as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes)) {
                for bits in [bits, bits & bits >> 1, bits | bits << 3, 0, u64::MAX] {
                    let (mut found, mut want) = ([0; BLOCK + BEYOND], [0; BLOCK + BEYOND]);
                    // SAFETY: there is room for 64, and for those beyond.
                    unsafe {
                        isa.places(bits, 1000, found.as_mut_ptr());
                        Portable.places(bits, 1000, want.as_mut_ptr());
                    }
                    let count = bits.count_ones() as usize;
                    assert_eq!(found[..count], want[..count]);
                }
            }
            // Lines in which no key, one, or halves of keys are equal.
            let halves = [1u64, 2, 3];
            let keys: Vec<u128> =
                halves.iter().flat_map(|&low| halves.map(|high| u128::from(high) << 64 | u128::from(low))).collect();
            for &key in &keys {
                for &first in &keys {
                    for &second in keys.iter().filter(|&&second| second != first) {
                        let line = Line { keys: [first, second], values: [7, 8] };
                        let (mut found, mut want) = (0, 0);
                        let missed = isa.probe(&line, &key, &mut found);
                        let absent = Portable.probe(&line, &key, &mut want);
                        assert!(missed || !absent && found == want);
                        // A miss too many only where half of the other key is equal as well.
                        assert!(
                            !missed || absent || second == key && (first ^ key) as u64 == 0 || first >> 64 == key >> 64
                        );
                    }
                }
            }
            // Classes.
            let bytes: [u8; 64] = noise(64).try_into().expect("64 bytes");
            let halves = [noise(16), noise(32)[16..].to_vec()].map(|half| half.try_into().expect("16 bytes"));
            for kinds in [[1, 2, 4], [0x18, 0x80, 0x40]] {
                assert_eq!(isa.classify(&bytes, &halves, kinds, 0xe0), Portable.classify(&bytes, &halves, kinds, 0xe0));
            }
            for block in noise(64 * 500).as_chunks().0 {
                let ascii = block.map(|byte| byte & 0x7f);
                assert_eq!(isa.ascii(&ascii), Block::new(&ascii));
            }
        }
    }

    #[test]
    fn every_operation_gives_what_the_portable_one_gives() {
        if let Some(isa) = Avx512::detect() {
            isa.call(EqualToPortable);
        }
    }
}
