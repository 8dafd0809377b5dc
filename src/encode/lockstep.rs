//! Short words -> symbols, several words at once.
//!
//! A word of n units lies in lanes 1 to n; lanes 0 and n + 1 are its borders. Lane p of `ranks` is the symbol that
//! merging the part at p with the next part makes, times 64, plus p: the least lane is the lowest rank and the leftmost
//! place at once. A round merges there and looks up the two pairs that are new. The words of a group go in step, so
//! that their memory accesses overlap, and no branch depends on them but the number of rounds. The oracle is
//! `Symbols::merge_plainly`.

use super::isa::Isa;
use super::pairs::{NOBODY, Pairs};
use super::vocabulary::IdsOfSymbols;

/// Words in a group. (8, 12 and 16 were no faster: a round is bound by its instructions, not by memory.)
pub const GROUP: usize = 4;

/// Units of the longest word that fits: 64 lanes less the borders, and one more so that the shift below is not by 64.
pub const LONGEST: usize = 61;

/// A lane that has nothing to merge; more than any that has.
pub const NOTHING: u32 = NOBODY << 6;

/// One word on its way.
#[repr(C, align(64))]
pub struct Lanes<const LANES: usize> {
    ranks: [u32; LANES],
    symbols: [u32; LANES],
    /// Bit p is set where a part begins at lane p, the borders included.
    alive: u64,
}

impl<const LANES: usize> Lanes<LANES> {
    /// Without a word.
    pub const EMPTY: Self = Lanes { ranks: [NOTHING; LANES], symbols: [NOBODY; LANES], alive: 0 };

    /// Begins a new word. Then come its units, at most `LANES` - 2 and 61, and then `end`.
    ///
    /// (Loops instead of iterators here and below: what the standard library does with a closure is not compiled for the
    /// features of the root, and so not inlined into it.)
    #[inline(always)]
    pub fn begin(&mut self) {
        self.ranks = [NOTHING; LANES];
        self.symbols[0] = NOBODY;
        self.alive = 1;
    }

    /// Unit `place`, counted from 0, with what merging it with the next unit makes.
    #[inline(always)]
    pub fn unit(&mut self, place: usize, symbol: u32, merged: u32) {
        self.symbols[place + 1] = symbol;
        self.ranks[place + 1] = merged << 6 | (place as u32 + 1);
    }

    /// The number of units.
    #[inline(always)]
    pub fn end(&mut self, units: usize) {
        self.symbols[units + 1] = NOBODY;
        self.alive = (4u64 << units) - 1;
    }

    /// Writes the id of each symbol that is left, from `at` on; returns the end offset.
    #[inline(always)]
    pub fn write(&self, ids: &IdsOfSymbols, out: &mut GroupIds, mut at: usize) -> usize {
        // All but the two borders.
        let mut alive = self.alive & !1;
        alive ^= 1 << (63 - alive.leading_zeros());
        while alive != 0 {
            out[at] = ids.get(self.symbols[alive.trailing_zeros() as usize & 63]);
            at += 1;
            alive &= alive - 1;
        }
        at
    }
}

/// Room for the ids of a group: three for every byte, which no model exceeds.
pub type GroupIds = [u32; 192 * GROUP];

/// Merges every word of `group` until nothing can be merged.
#[inline(always)]
pub fn merge<I: Isa, const LANES: usize>(isa: I, pairs: &Pairs, group: &mut [Lanes<LANES>]) {
    loop {
        let mut least = NOTHING;
        for word in group.iter_mut() {
            let best = isa.least(&word.ranks);
            least = least.min(best);
            // With nothing left to merge the lane is 0, and all that follows changes nothing that counts.
            let best = best.min(NOTHING);
            let (merged, lane) = (best >> 6, best & 63);
            let above = word.alive & !1u64 << lane;
            let right = above.trailing_zeros() & 63;
            let after = (above & above.wrapping_sub(1)).trailing_zeros() & 63;
            let below = word.alive & !(!0u64 << lane);
            let before = 63 - (below | 1).leading_zeros();
            word.alive &= !(u64::from(best < NOTHING) << right);
            // SAFETY: `alive` has bits below LANES only: lanes 0 to n + 1, and n + 2 <= LANES. Each of these is the place
            // of such a bit, or 0 where there is none.
            unsafe {
                let next_symbol = *word.symbols.get_unchecked(after as usize);
                let last_symbol = *word.symbols.get_unchecked(before as usize);
                *word.symbols.get_unchecked_mut(lane as usize) = merged;
                let with_next = pairs.get(merged, next_symbol);
                let with_last = pairs.get(last_symbol, merged);
                *word.ranks.get_unchecked_mut(before as usize) = with_last << 6 | before;
                *word.ranks.get_unchecked_mut(right as usize) = NOTHING;
                *word.ranks.get_unchecked_mut(lane as usize) = with_next << 6 | lane;
            }
        }
        if least >= NOTHING {
            return;
        }
    }
}
