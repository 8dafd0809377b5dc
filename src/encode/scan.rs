//! A stretch of text -> batches of words -> the worker.
//!
//! A stretch is text that nothing but the split cuts: a document, or what lies between two added tokens. It lies in a
//! buffer that may go on behind it; keys are read from there without copying.

use super::alone::Alone;
use super::batch::{BATCH, Model, Words, Worker};
use super::cache::spilled_from;
use super::isa::{BEYOND, Isa, Portable, WithIsa, with_isa};
use super::joined::Joined;
use super::wordpiece::WordPiece;
use crate::error::Result;
use crate::pretoken::Split;
use crate::pretoken::block::BLOCK;
use crate::pretoken::fast::{Scanner, Text};
use crate::pretoken::wide::Characters;
use std::marker::PhantomData;

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

/// Says where the words of a text are.
pub trait Cut {
    /// Whether `starts` is worth asking.
    const IN_BLOCKS: bool;

    /// Whether `starts` knows all characters, if the instructions do.
    const WIDE: bool = false;

    /// The text.
    fn bytes(&self) -> &[u8];

    /// The end of the word that starts at `at`, which is inside the text.
    fn end(&self, at: usize) -> usize;

    /// Bit p is set where a word certainly starts p bytes after `at`, where `block` is and a word starts too, but bit 0
    /// is clear. No bit at all means: ask `end`.
    fn starts<I: Isa>(&self, isa: I, at: usize, block: &[u8; BLOCK], scratch: &mut InBlocks) -> u64;

    /// Appends the ids of characters from `at` on that stand alone, if any do; gives where they end.
    #[inline(always)]
    fn alone(&self, at: usize, _ids: &mut Vec<u32>) -> usize {
        at
    }
}

/// What cutting a block needs.
pub struct InBlocks<'a> {
    /// Where words may be cut further.
    joined: Option<&'a Joined>,
    /// Room for the characters of a block.
    characters: Characters,
}

/// The words of a split that has a scanner.
pub struct ByScanner<'t, S> {
    text: Text<'t>,
    scanner: PhantomData<S>,
}

impl<'t, S> ByScanner<'t, S> {
    /// Of a valid UTF-8 text.
    pub fn new(text: &'t [u8]) -> ByScanner<'t, S> {
        ByScanner { text: Text::new(text), scanner: PhantomData }
    }
}

impl<S: Scanner> Cut for ByScanner<'_, S> {
    const IN_BLOCKS: bool = S::IN_BLOCKS;
    const WIDE: bool = true;

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.text.bytes
    }

    #[inline(always)]
    fn end(&self, at: usize) -> usize {
        S::end(&self.text, at)
    }

    #[inline(always)]
    fn starts<I: Isa>(&self, isa: I, at: usize, block: &[u8; BLOCK], scratch: &mut InBlocks) -> u64 {
        let InBlocks { joined, characters } = scratch;
        let block = isa.block(block, self.text.classes, characters);
        let mut starts = S::starts(&self.text, at, &block);
        if let Some(joined) = joined
            && I::WIDE
            && !block.is_ascii()
        {
            let cuts = joined.wide_starts(isa, characters);
            // Up to the last start, or the last cut after which the rest of the word can be taken for a word.
            let last = 63 - (starts | cuts & block.resumes() | 1).leading_zeros();
            starts |= cuts & ((2 << last) - 1);
        }
        isa.spread(starts, block.chars)
    }
}

/// The words of WordPiece.
pub struct ByWordPiece<'t>(pub &'t WordPiece, pub &'t [u8]);

impl Cut for ByWordPiece<'_> {
    const IN_BLOCKS: bool = true;
    const WIDE: bool = true;

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.1
    }

    #[inline(always)]
    fn end(&self, at: usize) -> usize {
        self.0.end(self.1, at)
    }

    #[inline(always)]
    fn starts<I: Isa>(&self, isa: I, _: usize, block: &[u8; BLOCK], scratch: &mut InBlocks) -> u64 {
        self.0.starts(isa, block, &mut scratch.characters)
    }

    #[inline(always)]
    fn alone(&self, at: usize, ids: &mut Vec<u32>) -> usize {
        self.0.alone.run(None, self.1, at, ids)
    }
}

/// Words between positions that no token crosses: a function finds the end of one word, `joined` those of many at once.
pub struct ByJoined<'t, F>(pub &'t Joined, pub Option<&'t Alone>, pub ByEnds<'t, F>);

impl<F: Fn(&[u8], usize) -> usize> Cut for ByJoined<'_, F> {
    const IN_BLOCKS: bool = true;

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.2.bytes()
    }

    #[inline(always)]
    fn end(&self, at: usize) -> usize {
        self.2.end(at)
    }

    #[inline(always)]
    fn starts<I: Isa>(&self, _: I, _: usize, block: &[u8; BLOCK], _: &mut InBlocks) -> u64 {
        self.0.starts(block)
    }

    #[inline(always)]
    fn alone(&self, at: usize, ids: &mut Vec<u32>) -> usize {
        match self.1 {
            Some(alone) => alone.run(Some(self.0), self.2.0, at, ids),
            None => at,
        }
    }
}

/// Words whose ends a function tells.
pub struct ByEnds<'t, F>(pub &'t [u8], pub F);

impl<F: Fn(&[u8], usize) -> usize> Cut for ByEnds<'_, F> {
    const IN_BLOCKS: bool = false;

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.0
    }

    #[inline(always)]
    fn end(&self, at: usize) -> usize {
        (self.1)(self.0, at)
    }

    #[inline(always)]
    fn starts<I: Isa>(&self, _: I, _: usize, _: &[u8; BLOCK], _: &mut InBlocks) -> u64 {
        0
    }
}

/// How far a scan has come.
struct Cursor {
    at: usize,
    /// Up to here the scan goes one word at a time.
    one_by_one_until: usize,
    patience: usize,
    /// The end of a word of which parts are words already.
    inside_until: usize,
}

/// Words of more bytes than this are cut further, if they are not ASCII. (With 15, as much as fits a key, Chinese was at
/// 0.67x: most words of three to five characters are new, their parts are not.)
const CUT_FROM: usize = 6;

/// Encodes a stretch whose text `cut` cuts into words. Where there is a `joined`, words that are not ASCII are cut
/// further, at places that no token crosses: a run of Chinese is then a few short words that the cache knows.
pub fn encode<C: Cut, M: Model>(
    worker: &mut Worker,
    model: &M,
    stretch: Stretch,
    cut: &C,
    joined: Option<&Joined>,
    drain: Drain,
) -> Result<()> {
    let mut cursor = Cursor { at: 0, one_by_one_until: 0, patience: BLOCK, inside_until: 0 };
    let len = stretch.end - stretch.start;
    meet(worker, model, stretch, drain)?;
    while cursor.at < len {
        if worker.words.count == 0 {
            worker.base = stretch.start + cursor.at;
        }
        let Worker { words, spill, base, .. } = worker;
        let base = base.wrapping_sub(stretch.start);
        with_isa(worker.instructions, Fill { cut, joined, cursor: &mut cursor, base, words, spill });
        let full = worker.words.count >= BATCH || cursor.at < len || cursor.at.wrapping_sub(base) > GIANT;
        if full || !worker.waits {
            flush(worker, model, stretch.buffer, stretch.start + cursor.at, drain)?;
        }
    }
    Ok(())
}

/// Encodes a stretch that a regex or a sequence of splits cuts.
pub fn by_split<M: Model>(worker: &mut Worker, model: &M, stretch: Stretch, split: &Split, drain: Drain) -> Result<()> {
    let mut at = stretch.start;
    let mut failed = Ok(());
    meet(worker, model, stretch, drain)?;
    split.for_each(stretch.as_str(), |word| {
        if failed.is_err() {
            return;
        }
        if worker.words.count == BATCH || worker.words.count > 0 && at + word.len() - worker.base > GIANT {
            failed = flush(worker, model, stretch.buffer, at, drain);
        }
        if worker.words.count == 0 {
            worker.base = at;
        }
        at += word.len();
        let words = &mut worker.words;
        words.count += 1;
        words.starts[words.count] = (at - worker.base) as u32;
    })?;
    failed?;
    let giant = worker.words.count > 0 && at - worker.base > GIANT;
    if giant || !worker.waits { flush(worker, model, stretch.buffer, at, drain) } else { Ok(()) }
}

/// Encodes the words that wait, unless they end where the stretch starts: a word ends where the next one starts.
fn meet<M: Model>(worker: &mut Worker, model: &M, stretch: Stretch, drain: Drain) -> Result<()> {
    let waiting_until = worker.waiting_until();
    if waiting_until == stretch.start { Ok(()) } else { flush(worker, model, stretch.buffer, waiting_until, drain) }
}

/// Encodes the words of the batch, which end at `at`.
pub fn flush<M: Model>(worker: &mut Worker, model: &M, buffer: &[u8], at: usize, drain: Drain) -> Result<()> {
    if worker.words.count == 1 && at - worker.base > GIANT {
        let Worker { scratch, out, .. } = worker;
        model.encode_alone(Portable, &buffer[worker.base..at], scratch, out);
        worker.words.count = 0;
    } else if worker.words.count > 0 {
        worker.encode(model, &buffer[worker.base..]);
    }
    if worker.out.len() >= FULL {
        let before = worker.out.len();
        drain(&mut worker.out)?;
        worker.drained += before - worker.out.len();
    }
    Ok(())
}

struct Fill<'a, C> {
    cut: &'a C,
    joined: Option<&'a Joined>,
    cursor: &'a mut Cursor,
    /// Where the batch begins, relative to the text; wrapped, if that is in a text before it.
    base: usize,
    words: &'a mut Words,
    /// Ids of words that stand alone.
    spill: &'a mut Vec<u32>,
}

impl<C: Cut> WithIsa for Fill<'_, C> {
    type Out = ();

    /// Adds the words from the cursor on to a batch.
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Fill { cut, joined, cursor, base, words, spill } = self;
        let bytes = cut.bytes();
        let mut at = cursor.at;
        let mut count = words.count;
        let mut scratch = InBlocks { joined, characters: Characters::default() };
        while at < bytes.len() && count < BATCH {
            if bytes[at] >= 0xe0 {
                let from = spill.len();
                let end = cut.alone(at, spill);
                if end > at {
                    words.known.push((count as u16, spilled_from(spill, from)));
                    at = end;
                    count += 1;
                    words.starts[count] = at.wrapping_sub(base) as u32;
                    // What comes next is short, mostly.
                    cursor.one_by_one_until = cursor.one_by_one_until.max(at + BLOCK);
                    continue;
                }
            }
            if C::IN_BLOCKS && at >= cursor.one_by_one_until && at >= cursor.inside_until {
                let left = bytes.len() - at;
                // Continuation bytes stand for what is beyond the text: they are no characters.
                let mut padded = [0x80; BLOCK];
                let block = match bytes[at..].first_chunk::<BLOCK>() {
                    Some(block) => block,
                    None => {
                        padded[..left].copy_from_slice(&bytes[at..]);
                        &padded
                    }
                };
                let mut starts = cut.starts(isa, at, block, &mut scratch);
                if left < BLOCK {
                    starts &= (1 << left) - 1;
                }
                if starts != 0 {
                    cursor.patience = BLOCK;
                    let first = at.wrapping_sub(base) as u32;
                    at += 63 - starts.leading_zeros() as usize;
                    let found = starts.count_ones() as usize;
                    let room = &mut words.starts[count + 1..][..BLOCK + BEYOND];
                    // SAFETY: at most BATCH - 1 words came before, and at most 64 are here: there is room.
                    unsafe { isa.places(starts, first, room.as_mut_ptr()) };
                    count += found;
                    continue;
                }
                // Where one block gave nothing (a script beyond ASCII, mostly), the next would not either: wait, and
                // longer each time.
                if !(C::WIDE && I::WIDE) {
                    cursor.one_by_one_until = at + cursor.patience;
                    cursor.patience = (2 * cursor.patience).min(16 * BLOCK);
                }
            }
            let mut end = if at < cursor.inside_until { cursor.inside_until } else { cut.end(at) };
            if let Some(joined) = joined
                && end - at > CUT_FROM
                && (at < cursor.inside_until || !bytes[at..end].is_ascii())
            {
                cursor.inside_until = end;
                end = joined.end(bytes, at, end);
            }
            let len = end.wrapping_sub(base);
            if len > GIANT && count > 0 {
                break;
            }
            at = end;
            count += 1;
            words.starts[count] = len as u32;
            if len > GIANT {
                break;
            }
        }
        cursor.at = at;
        words.count = count;
    }
}
