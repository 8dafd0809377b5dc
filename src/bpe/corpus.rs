//! The corpus as merging sees it: one flat array of slots.
//!
//! Laid out, a word is its bytes' ids, one per slot, between two sentinels; a document is a word that nothing
//! cut. A token of `n` slots keeps its id in its first and its last slot, so both neighbours of a token are one
//! read away and nothing is ever shifted; inner slots are marked dead. Every occurrence of a token spans the
//! same number of slots, also after `compact`, which gives each token one slot.
//!
//! A word that occurred `w` times is laid out once; words are sorted by `w`, so the weight of a position is a
//! short table of runs. Where words are of several groups (`balance`), they are sorted by group first.

use super::Plan;

/// A slot: 16 bits while the vocabulary fits, else 32. The two largest values are markers.
pub trait Slot: Copy + Eq + Send + Sync + 'static {
    /// Stands between words: no pair reaches across it.
    const END: Self;
    /// An inner slot of a token.
    const DEAD: Self;
    /// The largest id that is not a marker.
    const LARGEST: u32;
    /// The slot holding `id`, which is at most `LARGEST`.
    fn of(id: u32) -> Self;
    /// The id in this slot.
    fn id(self) -> u32;
}

impl Slot for u16 {
    const END: Self = u16::MAX;
    const DEAD: Self = u16::MAX - 1;
    const LARGEST: u32 = u16::MAX as u32 - 2;
    fn of(id: u32) -> Self {
        id as u16
    }
    fn id(self) -> u32 {
        self.into()
    }
}

impl Slot for u32 {
    const END: Self = u32::MAX;
    const DEAD: Self = u32::MAX - 1;
    const LARGEST: u32 = u32::MAX - 2;
    fn of(id: u32) -> Self {
        id
    }
    fn id(self) -> u32 {
        self
    }
}

/// A run of slots whose words share one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Slots before this index and after the previous run's end belong to this run.
    pub end: usize,
    /// How often each word of the run occurred.
    pub weight: u64,
    /// The group that the words of the run are of.
    pub group: u32,
}

/// Deals words out over `parts`: `push` lays one out, in the shortest of them.
pub fn deal<S: Slot>(parts: &mut [Corpus<S>], push: impl FnOnce(&mut Corpus<S>)) {
    if let Some(part) = parts.iter_mut().min_by_key(|part| part.slots.len()) {
        push(part);
    }
}

/// Words laid out in slots, heaviest first.
pub struct Corpus<S> {
    /// `END word END word ... END`
    pub slots: Vec<S>,
    /// Weights, by ascending `end`; the last run ends with the slots.
    pub runs: Vec<Run>,
    /// The group of the words to come.
    pub group: u32,
    ids: [u32; 256],
}

impl<S: Slot> Corpus<S> {
    /// An empty corpus whose bytes will have the ids that `plan` gives them.
    pub fn new(plan: &Plan) -> Self {
        Corpus { slots: vec![S::END], runs: Vec::new(), group: 0, ids: plan.byte_ids() }
    }

    /// Lays out one more word. Words of a group must come by falling weight; one without a pair in it is left out.
    pub fn push(&mut self, word: &[u8], weight: u64) {
        if word.len() < 2 {
            return;
        }
        self.slots.extend(word.iter().map(|&byte| S::of(self.ids[byte as usize])));
        self.end_word(weight);
    }

    /// As `push`, for a word of tokens that exist already. Each has one slot, as after `compact`.
    pub fn push_ids(&mut self, word: &[u32], weight: u64) {
        if word.len() < 2 {
            return;
        }
        self.slots.extend(word.iter().map(|&id| S::of(id)));
        self.end_word(weight);
    }

    fn end_word(&mut self, weight: u64) {
        self.slots.push(S::END);
        match self.runs.last_mut() {
            Some(run) if run.weight == weight && run.group == self.group => run.end = self.slots.len(),
            _ => self.runs.push(Run { end: self.slots.len(), weight, group: self.group }),
        }
    }

    /// Whether every word has weight 1, so that weights need not be looked up.
    pub fn is_unweighted(&self) -> bool {
        self.runs.iter().all(|run| run.weight == 1)
    }

    /// Slots, each as often as its word occurred.
    pub fn weighted_slots(&self) -> u64 {
        let starts = std::iter::once(0).chain(self.runs.iter().map(|run| run.end));
        let slots = starts.zip(&self.runs).map(|(start, run)| run.weight.saturating_mul((run.end - start) as u64));
        slots.fold(0, u64::saturating_add)
    }

    /// Gives every token, which spans as many slots as `spans` says, one slot, and drops words that have become one
    /// token.
    pub fn compact(&mut self, spans: &[u32]) {
        let slots = &mut self.slots;
        let (mut read, mut write) = (1, 1);
        for run in &mut self.runs {
            while read < run.end {
                let start = write;
                while slots[read] != S::END {
                    slots[write] = slots[read];
                    write += 1;
                    read += spans[slots[read].id() as usize] as usize;
                }
                read += 1;
                if write - start > 1 {
                    slots[write] = S::END;
                    write += 1;
                } else {
                    write = start;
                }
            }
            run.end = write;
        }
        slots.truncate(write);
        slots.shrink_to_fit();
        self.runs.dedup_by(|next, kept| next.end == kept.end);
    }
}
