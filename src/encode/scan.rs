//! A stretch of text -> batches of words -> the worker.
//!
//! A stretch is text that nothing but the split cuts: a document, or what lies between two added tokens. It lies in a
//! buffer that may go on behind it; keys are read from there without copying.

use super::batch::{BATCH, Model, Worker, Words};
use super::isa::{Isa, WithIsa, with_isa};
use crate::error::Result;
use crate::pretoken::{BLOCK, Block, Scanner, Split, Text};

/// Where a stretch lies: valid UTF-8 from `start` to `end`.
#[derive(Clone, Copy)]
pub struct Stretch<'t> {
    pub buffer: &'t [u8],
    pub start: usize,
    pub end: usize,
}

impl<'t> Stretch<'t> {
    /// The text itself.
    pub fn text(self) -> &'t [u8] {
        &self.buffer[self.start..self.end]
    }

    /// The text itself.
    pub fn as_str(self) -> &'t str {
        // SAFETY: documents are checked before they become stretches, and are parted between characters only.
        unsafe { std::str::from_utf8_unchecked(self.text()) }
    }

    /// From byte `from` to byte `to` of the text.
    pub fn part(self, from: usize, to: usize) -> Stretch<'t> {
        Stretch { buffer: self.buffer, start: self.start + from, end: self.start + to }
    }
}

/// Takes ids out of the worker when there are many, so that a document of any size needs little memory.
pub type Drain<'a> = &'a mut dyn FnMut(&mut Vec<u32>) -> Result<()>;

/// Ids in a worker from which on they are drained: 2 MiB, about what a core's own cache holds.
pub const FULL: usize = 1 << 19;

/// Words longer than this are not part of a batch, whose places are 32 bits.
const GIANT: usize = 1 << 30;

/// How far a scan has come.
struct Cursor {
    at: usize,
    /// Up to here the scan goes one word at a time.
    one_by_one_until: usize,
    patience: usize,
}

/// Encodes a stretch that a scanner cuts.
pub fn by_scanner<S: Scanner, M: Model>(
    worker: &mut Worker,
    model: &M,
    stretch: Stretch,
    portable: bool,
    drain: Drain,
) -> Result<()> {
    let text = Text::new(stretch.text());
    let mut cursor = Cursor { at: 0, one_by_one_until: 0, patience: BLOCK };
    let len = stretch.end - stretch.start;
    while cursor.at < len {
        let base = cursor.at;
        with_isa(portable, Fill::<S> { text: &text, cursor: &mut cursor, words: &mut worker.words, scanner: std::marker::PhantomData });
        flush(worker, model, stretch, base, cursor.at, drain)?;
    }
    Ok(())
}

/// Encodes a stretch in which `end` says where each word ends.
#[inline(always)]
pub fn by_ends<M: Model>(
    worker: &mut Worker,
    model: &M,
    stretch: Stretch,
    end: impl Fn(&[u8], usize) -> usize,
    drain: Drain,
) -> Result<()> {
    let text = stretch.text();
    let mut at = 0;
    while at < text.len() {
        let base = at;
        let words = &mut worker.words;
        words.count = 0;
        while at < text.len() && words.count < BATCH {
            let end = end(text, at);
            if end - base > GIANT && words.count > 0 {
                break;
            }
            at = end;
            words.count += 1;
            words.starts[words.count] = (at - base) as u32;
            if at - base > GIANT {
                break;
            }
        }
        flush(worker, model, stretch, base, at, drain)?;
    }
    Ok(())
}

/// Encodes a stretch that a regex or a sequence of splits cuts.
pub fn by_split<M: Model>(worker: &mut Worker, model: &M, stretch: Stretch, split: &Split, drain: Drain) -> Result<()> {
    let text = stretch.as_str();
    let (mut base, mut at) = (0, 0);
    let mut failed = Ok(());
    worker.words.count = 0;
    split.for_each(text, |word| {
        if failed.is_err() {
            return;
        }
        if worker.words.count == BATCH || at + word.len() - base > GIANT {
            failed = flush(worker, model, stretch, base, at, drain);
            base = at;
        }
        at += word.len();
        let words = &mut worker.words;
        words.count += 1;
        words.starts[words.count] = (at - base) as u32;
    })?;
    failed?;
    flush(worker, model, stretch, base, at, drain)
}

/// Encodes the words that were found from `base` to `at`.
fn flush<M: Model>(
    worker: &mut Worker,
    model: &M,
    stretch: Stretch,
    base: usize,
    at: usize,
    drain: Drain,
) -> Result<()> {
    if at - base > GIANT && worker.words.count == 1 {
        let word = &stretch.text()[base..at];
        let Worker { scratch, out, .. } = worker;
        model.encode_alone(word, scratch, out);
    } else if worker.words.count > 0 {
        worker.encode(model, &stretch.buffer[stretch.start + base..]);
    }
    worker.words.count = 0;
    if worker.out.len() >= FULL { drain(&mut worker.out) } else { Ok(()) }
}

struct Fill<'a, 't, S> {
    text: &'a Text<'t>,
    cursor: &'a mut Cursor,
    words: &'a mut Words,
    scanner: std::marker::PhantomData<S>,
}

impl<S: Scanner> WithIsa for Fill<'_, '_, S> {
    type Out = ();

    /// Fills a batch with the words from the cursor on. As `pretoken::fast::for_each`, but it writes starts, eight at a
    /// time, whether there are eight or not.
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        let Fill { text, cursor, words, .. } = self;
        let bytes = text.bytes();
        let base = cursor.at;
        let mut at = base;
        let mut count = 0;
        while at < bytes.len() && count < BATCH {
            if at >= cursor.one_by_one_until {
                if let Some(block) = bytes[at..].first_chunk::<BLOCK>() {
                    let mut starts = S::starts(text, at, &Block::new(block));
                    if starts != 0 {
                        cursor.patience = BLOCK;
                        let found = starts.count_ones() as usize;
                        let first = (at - base) as u32;
                        at += 63 - starts.leading_zeros() as usize;
                        let mut place = count + 1;
                        count += found;
                        while starts != 0 {
                            // At most BATCH - 1 words before, 64 here, and eight at a time.
                            let eight = &mut words.starts[place..place + 8];
                            for start in eight {
                                *start = first.wrapping_add(starts.trailing_zeros());
                                starts &= starts.wrapping_sub(1);
                            }
                            place += 8;
                        }
                        continue;
                    }
                }
                cursor.one_by_one_until = at + cursor.patience;
                cursor.patience = (2 * cursor.patience).min(16 * BLOCK);
            }
            let end = S::end(text, at);
            if end - base > GIANT && count > 0 {
                break;
            }
            at = end;
            count += 1;
            words.starts[count] = (at - base) as u32;
            if at - base > GIANT {
                break;
            }
        }
        cursor.at = at;
        words.count = count;
    }
}
