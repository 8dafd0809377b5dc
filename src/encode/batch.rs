//! A batch of words -> ids, in four passes without a branch per word except where a word is new.
//!
//! ```text
//! 1. key    the first 16 bytes of each word, masked to its length; a hash; the cache line is fetched
//! 2. probe  two keys compared at once; values are copied aside, the places of misses listed
//! 3. miss   longer words, words seen earlier in the batch, tokens of the vocabulary, and at last merging
//! 4. write  six ids at a time, whether there are six or not
//! ```
//! Values are copied before anything is put in, so a new word may take the place of one that the batch still needs.

use super::added::Found;
use super::cache::{self, Cache, Lines, MOST_REPEATED, REPEATED, SPILLED, count, repeated_count, spill_range};
use super::isa::{BEYOND, Instructions, Isa, KEYS, SHORT, WithIsa, fold, hash_long, with_isa};
use super::lockstep::{GROUP, Group, LONGEST};
use super::normalize;
use super::shared::Shared;
use super::whole::WholeWords;
use super::wordpiece;
use super::{lockstep, long};
use crate::arrays::prefetch;
use crate::pretoken::block::BLOCK;
use std::sync::Arc;

/// Words in a batch, at least; the last block of a scan may add some.
pub const BATCH: usize = 4096;
/// Places for words: a scan adds up to a block of them to a batch that is not full, and writes several at a time.
pub const ROOM: usize = BATCH + BLOCK + BEYOND;
/// Words whose cache lines are fetched before the first of them is looked at.
const AHEAD: usize = 128;

/// Where the words of a batch start, relative to its text; word i ends where word i + 1 starts.
pub struct Words {
    pub starts: [u32; ROOM + 1],
    pub count: usize,
    /// Words whose value is known without looking them up, in order.
    pub known: Vec<(u16, u128)>,
}

/// Encodes words that are not in the cache.
pub trait Model: Sync {
    /// Whether `without_first` is ever true.
    const TRIMS: bool = false;

    /// Whether a word that begins with this byte has the ids of the word without it.
    #[inline(always)]
    fn without_first(&self, first: u8) -> bool {
        let _ = first;
        false
    }

    /// Whether `without_first` is true of all bytes up to the space, and of no others.
    #[inline(always)]
    fn trims_up_to_space(&self) -> bool {
        false
    }

    /// How many units merging `word` starts from; more than `lockstep::LONGEST` if it must go alone.
    fn units(&self, word: &[u8]) -> usize;

    /// Words that are one token.
    fn whole(&self) -> &WholeWords;

    /// Reads the tables that every new word needs.
    fn touch(&self);

    /// The ids of up to [`GROUP`] words of at most `LANES` - 2 units; `ends[i]` is where those of word i end.
    fn encode_group<I: Isa, const LANES: usize>(
        &self,
        isa: I,
        words: &[&[u8]],
        group: &mut Group<LANES>,
        scratch: &mut Scratch,
        ids: &mut [u32],
        ends: &mut [usize; GROUP],
    );

    /// The ids of one word of any length, appended to `ids`.
    fn encode_alone<I: Isa>(&self, isa: I, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>);
}

/// Buffers of models, one of each a thread.
#[derive(Default)]
pub struct Scratch {
    pub long: long::Scratch,
    pub wordpiece: wordpiece::Scratch,
    pub text: Vec<u8>,
}

/// Aligned to a processor cache line, so that storing four keys writes one line.
#[repr(align(64))]
struct Aligned<T>(T);

/// What comes between two words of a batch.
enum Between {
    Id(u32),
    /// The end of a document.
    End,
}

/// A cache and the arrays of a batch: what one thread needs, and keeps between calls.
pub struct Worker {
    pub cache: Cache,
    pub words: Box<Words>,
    /// Where in its buffer the first word of the batch starts.
    pub base: usize,
    /// Whether the last words of a document wait for those of the next one, which follows in the same buffer: with short
    /// documents, batches would have few words, and of those that are new hardly two could be merged at once.
    pub waits: bool,
    /// What comes after so many words of the batch.
    between: Vec<(usize, Between)>,
    /// Where documents ended: the ids before, with those that were drained.
    pub ended: Vec<usize>,
    pub drained: usize,
    keys: Box<Aligned<[u128; ROOM]>>,
    values: Box<Aligned<[u128; ROOM]>>,
    lines: Box<[u32; ROOM]>,
    missed: Box<[u16; ROOM + 1]>,
    /// Misses to be merged in groups, with their units, in the order of the text; `sorted` has the shortest first.
    waiting: Box<[(u8, u16); ROOM]>,
    sorted: Box<[u16; ROOM]>,
    /// Ids of the batch that do not fit a value.
    pub spill: Vec<u32>,
    alone: Vec<u32>,
    group_ids: Vec<u32>,
    pub scratch: Scratch,
    /// Ids of the documents in hand.
    pub out: Vec<u32>,
    /// A normalized document.
    pub normal: normalize::Scratch,
    /// Added tokens in a document, and in its normalized text.
    pub found: [Vec<Found>; 2],
    pub instructions: Instructions,
    /// Words that any thread has merged; None in a call with one thread.
    pub shared: Option<Arc<Shared>>,
}

impl Worker {
    /// With an empty cache that may grow to `cache_bytes`.
    pub fn new(cache_bytes: usize, instructions: Instructions) -> Worker {
        Worker {
            cache: Cache::new(cache_bytes),
            words: Box::new(Words { starts: [0; ROOM + 1], count: 0, known: vec![] }),
            base: 0,
            waits: false,
            between: vec![],
            ended: vec![],
            drained: 0,
            keys: Box::new(Aligned([0; ROOM])),
            values: Box::new(Aligned([0; ROOM])),
            lines: Box::new([0; ROOM]),
            missed: Box::new([0; ROOM + 1]),
            waiting: Box::new([(0, 0); ROOM]),
            sorted: Box::new([0; ROOM]),
            spill: vec![],
            alone: vec![],
            group_ids: vec![0; lockstep::GROUP_IDS * GROUP],
            scratch: Scratch::default(),
            out: vec![],
            normal: normalize::Scratch::default(),
            found: Default::default(),
            instructions,
            shared: None,
        }
    }

    /// Forgets what was begun; only the caches stay, and buffers of ids of at most `kept`.
    pub fn reset(&mut self, kept: usize) {
        self.words.count = 0;
        self.words.known.clear();
        self.spill.clear();
        self.waits = false;
        self.between.clear();
        self.ended.clear();
        self.drained = 0;
        self.out.clear();
        self.out.shrink_to(kept);
    }

    /// An id that is no word's.
    #[inline(always)]
    pub fn put(&mut self, id: u32) {
        match self.words.count {
            0 => self.out.push(id),
            words => self.between.push((words, Between::Id(id))),
        }
    }

    /// Where in their buffer the words of the batch end. (A word of a gigabyte, for which this is not known, never waits.)
    #[inline(always)]
    pub fn waiting_until(&self) -> usize {
        self.base + self.words.starts[self.words.count] as usize
    }

    /// Here a document ends.
    #[inline(always)]
    pub fn end_document(&mut self) {
        match self.words.count {
            0 => self.ended.push(self.drained + self.out.len()),
            words => self.between.push((words, Between::End)),
        }
    }

    /// Makes the cache ready for a text of this length: large at once is cheaper than by and by. True if it was smaller.
    pub fn expect(&mut self, text: usize) -> bool {
        struct Expect<'a>(&'a mut Cache, usize);
        impl WithIsa for Expect<'_> {
            type Out = ();
            #[inline(always)]
            fn run<I: Isa>(self, isa: I) {
                self.0.grow(self.1, |key| hash_of(isa, key));
            }
        }
        let lines = self.cache.lines_for(text);
        let grows = lines > self.cache.line_count();
        if grows {
            with_isa(self.instructions, Expect(&mut self.cache, lines));
        }
        grows
    }

    /// Appends the ids of the words in `self.words` to `self.out`. `text` begins where the first word does, and goes on
    /// beyond the last word as far as memory may be read.
    pub fn encode<M: Model>(&mut self, model: &M, text: &[u8]) {
        struct Encode<'a, M>(&'a mut Worker, &'a M, &'a [u8]);
        impl<M: Model> WithIsa for Encode<'_, M> {
            type Out = ();
            #[inline(always)]
            fn run<I: Isa>(self, isa: I) {
                self.0.encode_with(isa, self.1, self.2);
            }
        }
        with_isa(self.instructions, Encode(self, model, text));
    }

    #[inline(always)]
    fn encode_with<I: Isa, M: Model>(&mut self, isa: I, model: &M, text: &[u8]) {
        if self.cache.is_full() {
            self.cache.grow(self.cache.more_lines(), |key| hash_of(isa, key));
        }
        let n = self.words.count;
        let probe = Probe {
            model,
            text,
            starts: &self.words.starts[..=n],
            keys: &mut self.keys.0[..n],
            values: &mut self.values.0[..n],
            numbers: &mut self.lines[..n],
            missed: &mut self.missed[..=n],
            lines: self.cache.lines(),
        };
        let misses = isa.call(probe);
        if misses > 0 {
            self.encode_misses(isa, model, text, misses);
        }
        let bytes = self.words.starts[n] as usize;
        self.out.reserve(cache::PACKED * n + bytes + self.spill.len() + self.between.len() + cache::MOST_REPEATED);
        let mut from = 0;
        for k in 0..=self.between.len() {
            let to = self.between.get(k).map_or(n, |&(words, _)| words);
            let before = self.out.len();
            // SAFETY: room was reserved for six ids a word, for one a byte, for all that is in the spill, for all that comes
            // between words, and for those that are written at once; `written` of them were written.
            unsafe {
                let out = self.out.as_mut_ptr().add(before);
                let written = isa.call(Write { values: &self.values.0[from..to], spill: &self.spill, out });
                self.out.set_len(before + written);
            }
            match self.between.get(k) {
                Some(&(_, Between::Id(id))) => self.out.push(id),
                Some((_, Between::End)) => self.ended.push(self.drained + self.out.len()),
                None => {}
            }
            from = to;
        }
        self.between.clear();
        self.spill.clear();
        self.words.known.clear();
        self.words.count = 0;
    }

    #[inline(always)]
    fn encode_misses<I: Isa, M: Model>(&mut self, isa: I, model: &M, text: &[u8], misses: usize) {
        let mut known = 0;
        let mut waiting = 0;
        // A counting sort by units: first the count of each, then the start of its range, at last the end.
        let mut ends = [0u16; LONGEST + 1];
        for k in 0..misses {
            let i = self.missed[k];
            while let Some(&(place, value)) = self.words.known.get(known)
                && place <= i
            {
                self.values.0[usize::from(place)] = value;
                known += 1;
            }
            if known > 0 && self.words.known[known - 1].0 == i {
                continue;
            }
            let word = word_at(model, &self.words, text, i);
            let units = model.units(word);
            if units > LONGEST {
                self.values.0[usize::from(i)] = self.encode_one(isa, model, i, text);
                continue;
            }
            self.waiting[waiting] = (units as u8, i);
            waiting += 1;
            ends[units] += 1;
            if word.len() <= SHORT {
                let hash = fold(self.keys.0[usize::from(i)]);
                if let Some(shared) = &self.shared {
                    prefetch(shared.place(hash));
                }
                model.whole().fetch_short(hash);
            } else {
                // The key of a longer word has no other use.
                let hash = hash_long(word);
                self.keys.0[usize::from(i)] = u128::from(hash);
                prefetch(self.cache.long_slot(hash));
                model.whole().fetch_long(hash);
            }
        }
        // Sorted by length: words of about the same length take about as many rounds, and a group waits for its last word.
        let mut end = 0;
        for count in &mut ends {
            (*count, end) = (end, end + *count);
        }
        for k in 0..waiting {
            let (units, i) = self.waiting[k];
            let place = &mut ends[usize::from(units)];
            self.sorted[usize::from(*place)] = i;
            *place += 1;
        }
        self.encode_groups::<I, M, 8>(isa, model, text, 0, ends[6]);
        self.encode_groups::<I, M, 16>(isa, model, text, ends[6], ends[14]);
        self.encode_groups::<I, M, 24>(isa, model, text, ends[14], ends[22]);
        self.encode_groups::<I, M, 32>(isa, model, text, ends[22], ends[30]);
        self.encode_groups::<I, M, 64>(isa, model, text, ends[30], ends[LONGEST]);
    }

    /// Encodes words `from` to `to` of `sorted`, which have at most `LANES` - 2 units.
    #[inline(always)]
    fn encode_groups<I: Isa, M: Model, const LANES: usize>(
        &mut self,
        isa: I,
        model: &M,
        text: &[u8],
        from: u16,
        to: u16,
    ) {
        if from == to {
            return;
        }
        let (from, to) = (usize::from(from), usize::from(to));
        for k in from..to {
            let i = self.sorted[k];
            if word_at(model, &self.words, text, i).len() > SHORT {
                prefetch(self.cache.long_bytes(self.keys.0[usize::from(i)] as u64));
            }
        }
        let mut words: [&[u8]; GROUP] = [b""; GROUP];
        let mut places = [0u16; GROUP];
        let mut ends = [0; GROUP];
        let mut group = Group::<LANES>::EMPTY;
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut ids = std::mem::take(&mut self.group_ids);
        let mut size = 0;
        for k in from..to {
            let i = self.sorted[k];
            let word = word_at(model, &self.words, text, i);
            match self.known(model, i, word) {
                Some(value) => self.values.0[usize::from(i)] = value,
                None => {
                    (words[size], places[size]) = (word, i);
                    size += 1;
                }
            }
            if size == GROUP || size > 0 && k + 1 == to {
                model.encode_group::<I, LANES>(isa, &words[..size], &mut group, &mut scratch, &mut ids, &mut ends);
                let mut from = 0;
                for k in 0..size {
                    self.values.0[usize::from(places[k])] = self.publish(places[k], words[k], &ids[from..ends[k]]);
                    from = ends[k];
                }
                size = 0;
            }
        }
        (self.scratch, self.group_ids) = (scratch, ids);
    }

    /// The value of word `i`, if it is in the cache by now or is a token of the vocabulary.
    #[inline(always)]
    fn known<M: Model>(&mut self, model: &M, i: u16, word: &[u8]) -> Option<u128> {
        let key = self.keys.0[usize::from(i)];
        if word.len() > SHORT {
            let hash = key as u64;
            return match self.cache.long(hash, word, &mut self.spill) {
                None => model.whole().long(word, hash).map(|id| self.keep(i, word, &[id])),
                cached => cached,
            };
        }
        let line = self.lines[usize::from(i)];
        if let Some(value) = self.cache.again(line, key, &mut self.spill) {
            return Some(value);
        }
        let hash = fold(key);
        if let Some(id) = model.whole().short(key, hash) {
            return Some(self.keep(i, word, &[id]));
        }
        let value = self.shared.as_ref()?.get(key, hash)?;
        self.cache.put_value(line, key, value);
        Some(value)
    }

    /// Caches the ids of a word that was merged, for all threads if the word is short and its ids fit a value.
    #[inline(always)]
    fn publish(&mut self, i: u16, word: &[u8], ids: &[u32]) -> u128 {
        let value = self.keep(i, word, ids);
        if let Some(shared) = &self.shared
            && word.len() <= SHORT
            && count(value) <= cache::PACKED
        {
            let key = self.keys.0[usize::from(i)];
            shared.put(key, fold(key), value);
        }
        value
    }

    #[inline(always)]
    fn keep(&mut self, i: u16, word: &[u8], ids: &[u32]) -> u128 {
        let key = self.keys.0[usize::from(i)];
        if word.len() <= SHORT {
            self.cache.put(self.lines[usize::from(i)], key, ids, &mut self.spill)
        } else {
            self.cache.put_long(key as u64, word, ids, &mut self.spill)
        }
    }

    /// A word that is not merged in lockstep.
    #[inline(always)]
    fn encode_one<I: Isa, M: Model>(&mut self, isa: I, model: &M, i: u16, text: &[u8]) -> u128 {
        let word = word_at(model, &self.words, text, i);
        if word.len() > SHORT {
            self.keys.0[usize::from(i)] = u128::from(hash_long(word));
        }
        if let Some(value) = self.known(model, i, word) {
            return value;
        }
        let mut ids = std::mem::take(&mut self.alone);
        ids.clear();
        model.encode_alone(isa, word, &mut self.scratch, &mut ids);
        let value = self.keep(i, word, &ids);
        self.alone = ids;
        // One word of a gigabyte must not be remembered by the size of this buffer.
        self.alone.shrink_to(1 << 16);
        value
    }
}

/// Passes 1 and 2; returns the number of misses.
struct Probe<'a, M> {
    model: &'a M,
    text: &'a [u8],
    starts: &'a [u32],
    keys: &'a mut [u128],
    values: &'a mut [u128],
    numbers: &'a mut [u32],
    missed: &'a mut [u16],
    lines: Lines<'a>,
}

impl<M: Model> WithIsa for Probe<'_, M> {
    type Out = usize;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> usize {
        let Probe { model, text, starts, keys, values, numbers, missed, lines } = self;
        let n = keys.len();
        assert!(starts.len() > n && starts[n] as usize <= text.len());
        assert!(values.len() == n && numbers.len() == n && missed.len() > n);
        debug_assert!(starts.is_sorted());
        // The last words of a text end too near the end of its memory for 16 bytes to be read.
        let mut inside = n;
        while inside > 0 && starts[inside - 1] as usize + 17 > text.len() {
            inside -= 1;
        }
        let trims_up_to_space = model.trims_up_to_space();
        let mut misses = 0;
        let mut from = 0;
        while from < n {
            let to = (from + AHEAD).min(n);
            let full = from + (inside.clamp(from, to) - from) / KEYS * KEYS;
            let mut i = from;
            while i < full {
                // SAFETY: all arrays have `n` places or more, as was asserted, and `starts` one more. They rise up to the
                // length of the text, and up to word `inside` 16 bytes can be read. Line numbers are those of `lines`.
                unsafe {
                    let mut begins = *starts.as_ptr().add(i).cast::<[u32; KEYS]>();
                    let ends = &*starts.as_ptr().add(i + 1).cast::<[u32; KEYS]>();
                    let keys = &mut *keys.as_mut_ptr().add(i).cast::<[u128; KEYS]>();
                    let found = if M::TRIMS && trims_up_to_space {
                        isa.keys::<true>(text.as_ptr(), &begins, ends, keys, lines.shift())
                    } else {
                        for begin in &mut begins {
                            *begin = start_of(model, text, *begin as usize) as u32;
                        }
                        isa.keys::<false>(text.as_ptr(), &begins, ends, keys, lines.shift())
                    };
                    *numbers.as_mut_ptr().add(i).cast::<[u32; KEYS]>() = found;
                    for number in found {
                        prefetch(lines.at(number));
                    }
                }
                i += KEYS;
            }
            for i in full..to {
                let start = start_of(model, text, starts[i] as usize);
                let len = (starts[i + 1] as usize - start).min(16);
                let mut last = [0; 16];
                last[..len].copy_from_slice(&text[start..start + len]);
                // SAFETY: 16 bytes.
                numbers[i] = unsafe { isa.key(last.as_ptr(), len, &mut keys[i]) } >> lines.shift();
            }
            // SAFETY: as above; `misses` is at most `i`.
            unsafe {
                for i in from..to {
                    let line = lines.at(*numbers.get_unchecked(i));
                    let miss = isa.probe(line, keys.get_unchecked(i), values.get_unchecked_mut(i));
                    *missed.get_unchecked_mut(misses) = i as u16;
                    misses += usize::from(miss);
                }
            }
            from = to;
        }
        misses
    }
}

/// Pass 4; returns the number of ids written. At `out` there is room for six ids a word, the spill, and eight more.
struct Write<'a> {
    values: &'a [u128],
    spill: &'a [u32],
    out: *mut u32,
}

impl WithIsa for Write<'_> {
    type Out = usize;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> usize {
        let mut written = 0;
        for &value in self.values {
            let ids = count(value);
            // SAFETY: whoever made this says that there is room.
            unsafe {
                let out = self.out.add(written);
                if ids < REPEATED as usize {
                    isa.unpack(value, out);
                    written += ids;
                } else if ids == SPILLED as usize {
                    let range = spill_range(value);
                    let from = self.spill.as_ptr().add(range.start);
                    std::ptr::copy_nonoverlapping(from, out, range.len());
                    written += range.len();
                } else {
                    isa.unpack(value, out);
                    let repeated = *out.add(2);
                    for place in 3..MOST_REPEATED {
                        out.add(place).write(repeated);
                    }
                    written += repeated_count(value);
                }
            }
        }
        written
    }
}

#[inline(always)]
fn hash_of<I: Isa>(isa: I, key: &u128) -> u32 {
    let mut same = 0;
    // SAFETY: a key is 16 bytes: a word, and its length in the last byte.
    unsafe { isa.key(std::ptr::from_ref(key).cast(), (key >> 120) as usize, &mut same) }
}

#[inline(always)]
fn start_of<M: Model>(model: &M, text: &[u8], start: usize) -> usize {
    if M::TRIMS { start + usize::from(model.without_first(text[start])) } else { start }
}

#[inline(always)]
fn word_at<'t, M: Model>(model: &M, words: &Words, text: &'t [u8], i: u16) -> &'t [u8] {
    let i = usize::from(i);
    &text[start_of(model, text, words.starts[i] as usize)..words.starts[i + 1] as usize]
}
