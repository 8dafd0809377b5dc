//! One thread's share of the corpus: its slots, the places of the listed pairs in them, and what a merge does there.
//!
//! Words are dealt out over the parts, and no pair reaches across a word's end, so parts are worked on side by side
//! without a lock. Which pair is next, and what is listed, is for [`super::merge`] to say: it adds up what the parts
//! found. Sums do not depend on who adds first, so merges do not depend on the number of parts.

use super::corpus::{Corpus, Slot};
use crate::arrays::prefetch;

/// A position in the slots: 32 bits while they suffice, else 64.
pub trait Place: Copy + Send + Sync + 'static {
    /// The place of slot `index`.
    fn of(index: usize) -> Self;
    /// The slot's index.
    fn index(self) -> usize;
}

impl Place for u32 {
    fn of(index: usize) -> Self {
        index as u32
    }
    fn index(self) -> usize {
        self as usize
    }
}

impl Place for u64 {
    fn of(index: usize) -> Self {
        index as u64
    }
    fn index(self) -> usize {
        self as usize
    }
}

/// How far ahead of the walk slots are fetched: places of a rare pair are cache misses, one each.
const AHEAD: usize = 12;

/// Where a pair begins, ascending; may name places where it no longer is.
///
/// Lists made at the start of a round lie one after another in one array: filling them is then a store and an
/// increment for each position of the corpus, with no branch to mispredict.
pub(super) enum Places<P> {
    Shared(std::ops::Range<usize>),
    Own(Vec<P>),
}

impl<P> Places<P> {
    const NONE: Self = Places::Shared(0..0);

    fn len(&self) -> usize {
        match self {
            Places::Shared(range) => range.len(),
            Places::Own(places) => places.len(),
        }
    }
}

/// What one merge did to the pairs with one neighbour.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) weight: u64,
    /// Which list takes the new pair's places, plus 1; 0 if it is too rare for one.
    pub(super) list: u32,
}

/// The neighbours on one side of a merge, by id, and which of them to reset afterwards.
pub(super) struct Side {
    pub(super) tallies: Vec<Tally>,
    pub(super) seen: Vec<u32>,
}

impl Side {
    const NONE: Self = Side { tallies: Vec::new(), seen: Vec::new() };

    #[inline]
    fn add(&mut self, id: u32, weight: u64) {
        let tally = &mut self.tallies[id as usize];
        if tally.weight == 0 {
            self.seen.push(id);
        }
        tally.weight += weight;
    }

    fn absorb(&mut self, other: &mut Side) {
        for &id in &other.seen {
            self.add(id, other.tallies[id as usize].weight);
        }
        other.reset();
    }

    fn reset(&mut self) {
        for id in self.seen.drain(..) {
            self.tallies[id as usize] = Tally::default();
        }
    }
}

/// The neighbours of the present merge.
pub(super) struct Neighbours {
    pub(super) left: Side,
    pub(super) right: Side,
    /// Weight of the new token beside itself.
    pub(super) both: u64,
    /// Places where the pair was, and their weight.
    pub(super) merged: u64,
    pub(super) weight: u64,
}

impl Neighbours {
    pub(super) const NONE: Self = Neighbours { left: Side::NONE, right: Side::NONE, both: 0, merged: 0, weight: 0 };

    /// Makes room for `ids` ids.
    pub(super) fn grow(&mut self, ids: usize) {
        for side in [&mut self.left, &mut self.right] {
            side.tallies.resize(side.tallies.len().max(ids), Tally::default());
        }
    }

    /// Takes over what `other` found, and empties it.
    pub(super) fn absorb(&mut self, other: &mut Neighbours) {
        self.left.absorb(&mut other.left);
        self.right.absorb(&mut other.right);
        self.both += std::mem::take(&mut other.both);
        self.merged += std::mem::take(&mut other.merged);
        self.weight += std::mem::take(&mut other.weight);
    }

    pub(super) fn reset(&mut self) {
        self.left.reset();
        self.right.reset();
        (self.both, self.merged, self.weight) = (0, 0, 0);
    }
}

/// A merge: `a` and `b`, with the slots each spans, become `n`.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    pub(super) a: u32,
    pub(super) b: u32,
    pub(super) n: u32,
    pub(super) a_span: usize,
    pub(super) b_span: usize,
}

/// One thread's share.
pub(super) struct Part<S, P> {
    pub(super) corpus: Corpus<S>,
    /// The places of each listed pair, by its number.
    pub(super) places: Vec<Places<P>>,
    /// The lists of the pairs that were there when the round began.
    pub(super) shared: Vec<P>,
    /// Places in all lists.
    pub(super) held: u64,
    /// What this part found, when parts are worked on side by side.
    pub(super) found: Neighbours,
    /// The list of the pair being merged, and how many places at its front the pair really was in.
    taken: Places<P>,
    kept: usize,
}

impl<S: Slot, P: Place> Part<S, P> {
    pub(super) fn new(corpus: Corpus<S>) -> Self {
        Part {
            corpus,
            places: Vec::new(),
            shared: Vec::new(),
            held: 0,
            found: Neighbours::NONE,
            taken: Places::NONE,
            kept: 0,
        }
    }

    /// Places listed for pair number `at`.
    pub(super) fn listed(&self, at: u32) -> usize {
        self.places[at as usize].len()
    }

    /// Drops the list of pair number `at`.
    pub(super) fn forget(&mut self, at: u32) {
        let places = std::mem::replace(&mut self.places[at as usize], Places::NONE);
        self.held -= places.len() as u64;
    }

    /// Opens an empty list for pair number `at`, with room for `room` places.
    pub(super) fn open(&mut self, at: u32, room: usize) {
        if self.places.len() <= at as usize {
            self.places.resize_with(at as usize + 1, || Places::NONE);
        }
        self.places[at as usize] = Places::Own(Vec::with_capacity(room));
    }

    /// Drops every list.
    pub(super) fn clear(&mut self) {
        (self.places, self.shared, self.held) = (Vec::new(), Vec::new(), 0);
    }

    /// Takes the list of pair number `at`, whose time has come.
    pub(super) fn take(&mut self, at: u32) {
        self.taken = std::mem::replace(&mut self.places[at as usize], Places::NONE);
        self.held -= self.taken.len() as u64;
        self.kept = 0;
    }

    /// The places that were taken.
    pub(super) fn taken(&self) -> &[P] {
        match &self.taken {
            Places::Shared(range) => &self.shared[range.clone()],
            Places::Own(places) => places,
        }
    }

    /// As `rewrite`, with the neighbours, of `ids` ids, kept here.
    pub(super) fn rewrite_alone<const WEIGHTED: bool>(&mut self, rule: Rule, ids: usize) {
        let mut found = std::mem::replace(&mut self.found, Neighbours::NONE);
        found.grow(ids);
        self.rewrite::<WEIGHTED>(rule, &mut found, 0..self.taken.len());
        self.found = found;
    }

    /// Writes `n` over every (a, b) in a range of the taken list, moves the places where it was to the front of the
    /// list, behind those of earlier ranges, and tallies the neighbours.
    pub(super) fn rewrite<const WEIGHTED: bool>(
        &mut self,
        rule: Rule,
        found: &mut Neighbours,
        range: std::ops::Range<usize>,
    ) {
        let places = match &mut self.taken {
            Places::Shared(range) => &mut self.shared[range.clone()],
            Places::Own(places) => &mut places[..],
        };
        let slots = &mut self.corpus.slots[..];
        let runs = &self.corpus.runs[..];
        let (a_span, span) = (rule.a_span, rule.a_span + rule.b_span);
        let (a, b, n) = (S::of(rule.a), S::of(rule.b), S::of(rule.n));
        let (mut run, mut weight, mut kept) = (0, 1, self.kept);
        let before = kept;
        if WEIGHTED && range.start > 0 {
            run = runs.partition_point(|run| run.end <= places[range.start].index());
        }
        for i in range {
            if let Some(ahead) = places.get(i + AHEAD) {
                prefetch(slots.as_ptr().wrapping_add(ahead.index()));
            }
            let place = places[i].index();
            if slots[place] != a || slots[place + a_span] != b {
                continue;
            }
            if WEIGHTED {
                while runs[run].end <= place {
                    run += 1;
                }
                weight = runs[run].weight;
            }
            let (x, y) = (slots[place - 1], slots[place + span]);
            slots[place + a_span - 1] = S::DEAD;
            slots[place + a_span] = S::DEAD;
            slots[place] = n;
            slots[place + span - 1] = n;
            places[kept] = P::of(place);
            kept += 1;
            found.weight += weight;
            if x == n {
                found.both += weight;
            } else if x != S::END {
                found.left.add(x.id(), weight);
            }
            if y != S::END {
                found.right.add(y.id(), weight);
            }
        }
        self.kept = kept;
        found.merged += (kept - before) as u64;
    }

    /// Writes the places of the pairs that came with `n` into the lists that `found` names.
    pub(super) fn fill(&mut self, rule: Rule, found: &Neighbours, spans: &[u32]) {
        let places = match &self.taken {
            Places::Shared(range) => &self.shared[range.clone()][..self.kept],
            Places::Own(places) => &places[..self.kept],
        };
        let span = rule.a_span + rule.b_span;
        let n = S::of(rule.n);
        let slots = &self.corpus.slots[..];
        let (lists, held) = (&mut self.places[..], &mut self.held);
        let mut append = |list: u32, place: usize| {
            if let Places::Own(places) = &mut lists[list as usize - 1] {
                places.push(P::of(place));
                *held += 1;
            }
        };
        for (i, place) in places.iter().enumerate() {
            if let Some(ahead) = places.get(i + AHEAD) {
                prefetch(slots.as_ptr().wrapping_add(ahead.index()));
            }
            let place = place.index();
            let (x, y) = (slots[place - 1], slots[place + span]);
            if x != S::END && x != n {
                let list = found.left.tallies[x.id() as usize].list;
                if list != 0 {
                    append(list, place - spans[x.id() as usize] as usize);
                }
            }
            if y != S::END {
                let list = found.right.tallies[y.id() as usize].list;
                if list != 0 {
                    append(list, place);
                }
            }
        }
    }

    /// Gives back the list that was taken.
    pub(super) fn done(&mut self) {
        self.taken = Places::NONE;
    }
}
