//! Short words -> symbols, several words at once.
//!
//! A word of n units lies in lanes 1 to n; lanes 0 and n + 1 are its borders. Lane p of `ranks` is the symbol that
//! merging the part at p with the next part makes, times 64, plus p: the least lane is the lowest rank and the leftmost
//! place at once. A round merges there and looks up the two pairs that are new. Several words go in step, so
//! that their memory accesses overlap, and no branch depends on them but the number of rounds; `avx512` does the same
//! for sixteen words in one register. The oracle is `Symbols::merge_plainly`.

use super::isa::Isa;
use super::pairs::{NOBODY, Pairs};
use super::vocabulary::IdsOfSymbols;

/// Words in a group.
pub const GROUP: usize = 16;

/// Words of a group that go in step here. (8, 12 and 16 were no faster: a round is bound by its instructions, not by memory.)
const IN_STEP: usize = 4;

/// Units of the longest word that fits: 64 lanes less the borders, and one more so that the shift below is not by 64.
pub const LONGEST: usize = 61;

/// A lane that has nothing to merge; more than any that has.
pub const NOTHING: u32 = NOBODY << 6;

/// Some words on their way. Where `LANES` are at most `Isa::LANE_BY_LANE`, lane p of word k is at `[p][k]`; else the
/// lanes of a word lie side by side.
#[repr(C, align(64))]
pub struct Group<const LANES: usize> {
    pub ranks: [[u32; GROUP]; LANES],
    pub symbols: [[u32; GROUP]; LANES],
    /// Bit p is set where a part begins at lane p, the borders included.
    pub alive: [u64; GROUP],
}

impl<const LANES: usize> Group<LANES> {
    /// Without a word.
    pub const EMPTY: Self =
        Group { ranks: [[NOTHING; GROUP]; LANES], symbols: [[NOBODY; GROUP]; LANES], alive: [1; GROUP] };

    /// Removes all words. Then come the units of some, at most `LANES` - 2 and 61 each, and `end` for each.
    ///
    /// (Loops instead of iterators here and below: what the standard library does with a closure is not compiled for the
    /// features of the root, and so not inlined into it.)
    #[inline(always)]
    pub fn begin(&mut self) {
        self.ranks = [[NOTHING; GROUP]; LANES];
        self.alive = [1; GROUP];
    }

    /// Where lane `lane` of a word is.
    #[inline(always)]
    fn at<I: Isa>(word: usize, lane: usize) -> usize {
        if LANES <= I::LANE_BY_LANE { lane * GROUP + word } else { word * LANES + lane }
    }

    /// Unit `place` of a word, counted from 0, with what merging it with the next unit makes.
    #[inline(always)]
    pub fn unit<I: Isa>(&mut self, _: I, word: usize, place: usize, symbol: u32, merged: u32) {
        let at = Self::at::<I>(word, place + 1);
        self.symbols.as_flattened_mut()[at] = symbol;
        self.ranks.as_flattened_mut()[at] = merged << 6 | (place as u32 + 1);
    }

    /// The number of units of a word.
    #[inline(always)]
    pub fn end<I: Isa>(&mut self, _: I, word: usize, units: usize) {
        self.symbols.as_flattened_mut()[Self::at::<I>(word, 0)] = NOBODY;
        self.symbols.as_flattened_mut()[Self::at::<I>(word, units + 1)] = NOBODY;
        self.alive[word] = (4u64 << units) - 1;
    }

    /// Writes the id of each symbol that is left of a word, from `at` on; returns the end offset.
    #[inline(always)]
    pub fn write<I: Isa>(&self, _: I, word: usize, ids: &IdsOfSymbols, out: &mut [u32], mut at: usize) -> usize {
        // All but the two borders.
        let mut alive = self.alive[word] & !1;
        alive ^= 1 << (63 - alive.leading_zeros());
        while alive != 0 {
            out[at] = ids.get(self.symbols.as_flattened()[Self::at::<I>(word, alive.trailing_zeros() as usize)]);
            at += 1;
            alive &= alive - 1;
        }
        at
    }
}

/// Ids of a word in a group, at most: three for every byte, which no model exceeds.
pub const GROUP_IDS: usize = 384;

/// Merges the first `words` words of a group whose words lie one after another.
#[inline(always)]
pub fn merge<I: Isa, const LANES: usize>(isa: I, pairs: &Pairs, group: &mut Group<LANES>, words: usize) {
    let (ranks, _) = group.ranks.as_flattened_mut().as_chunks_mut::<LANES>();
    let (symbols, _) = group.symbols.as_flattened_mut().as_chunks_mut::<LANES>();
    for from in (0..words).step_by(IN_STEP) {
        let to = (from + IN_STEP).min(words);
        merge_in_step(isa, pairs, &mut ranks[from..to], &mut symbols[from..to], &mut group.alive[from..to]);
    }
}

#[inline(always)]
fn merge_in_step<I: Isa, const LANES: usize>(
    isa: I,
    pairs: &Pairs,
    ranks: &mut [[u32; LANES]],
    symbols: &mut [[u32; LANES]],
    alive: &mut [u64],
) {
    loop {
        let mut least = NOTHING;
        for k in 0..ranks.len() {
            let (ranks, symbols, alive) = (&mut ranks[k], &mut symbols[k], &mut alive[k]);
            let best = isa.least(ranks);
            least = least.min(best);
            // With nothing left to merge the lane is 0, and all that follows changes nothing that counts.
            let best = best.min(NOTHING);
            let (merged, lane) = (best >> 6, best & 63);
            let above = *alive & !1u64 << lane;
            let right = above.trailing_zeros() & 63;
            let after = (above & above.wrapping_sub(1)).trailing_zeros() & 63;
            let below = *alive & !(!0u64 << lane);
            let before = 63 - (below | 1).leading_zeros();
            *alive &= !(u64::from(best < NOTHING) << right);
            // SAFETY: `alive` has bits below LANES only: lanes 0 to n + 1, and n + 2 <= LANES. Each of these is the place
            // of such a bit, or 0 where there is none.
            unsafe {
                let next_symbol = *symbols.get_unchecked(after as usize);
                let last_symbol = *symbols.get_unchecked(before as usize);
                *symbols.get_unchecked_mut(lane as usize) = merged;
                let with_next = pairs.get(merged, next_symbol);
                let with_last = pairs.get(last_symbol, merged);
                *ranks.get_unchecked_mut(before as usize) = with_last << 6 | before;
                *ranks.get_unchecked_mut(right as usize) = NOTHING;
                *ranks.get_unchecked_mut(lane as usize) = with_next << 6 | lane;
            }
        }
        if least >= NOTHING {
            return;
        }
    }
}
