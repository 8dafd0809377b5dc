//! Many documents -> ids, on several threads.
//!
//! Documents go to threads in chunks, in order. A thread encodes a chunk into a buffer of its own that stays in the
//! processor's cache; the output offset of the chunk is known once every chunk before it has been counted. A thread does
//! not wait for that: it leaves the ids to the thread that finishes the chunk before, and takes the next chunk. So the
//! ids are in the order of the documents for any number of threads. A chunk with very many ids waits for its turn and
//! then drains its buffer repeatedly.

use super::added::{Finder, Special};
use super::batch::{self, Worker};
use super::encoder::Encoder;
use super::memory::prefer_large_pages;
use super::scan::{Drain, Stretch};
use crate::error::{Error, Result};
use crate::lock;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of text that go to a thread at once, at most. Larger documents go alone. (A chunk ends with a batch that is not
/// full, and with 256 KiB 16 threads were 3% slower; with 1 MiB the ids leave the processor's own cache.)
const CHUNK: usize = 512 << 10;
/// The same, at least: with little text, chunks are smaller, so that all threads finish at about the same time.
const LEAST_CHUNK: usize = 64 << 10;
/// Bytes of text that one thread alone checks to be UTF-8 before it encodes them.
const CHECKED: usize = 256 << 10;

/// Ids that a batch may reserve beyond those it writes, so that the last ones do not make the buffer grow.
const SLACK: usize = 8 * batch::ROOM;

/// How documents are to be encoded.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// An id before every document.
    pub bos: Option<u32>,
    /// An id after every document.
    pub eos: Option<u32>,
    /// Which special tokens are looked for.
    pub special: &'a Special,
    /// At least 1.
    pub threads: usize,
}

impl Encoder {
    /// The ids of all documents, and where each ends. `ends` rise, and the last is the length of `data`; the documents
    /// are checked to be valid UTF-8, unless the encoder takes bytes. `buffer` allocates a buffer for a number of ids, or
    /// returns one that was used before.
    pub fn documents<T: Id>(
        &self,
        data: &[u8],
        ends: &[i64],
        options: Options,
        buffer: impl FnMut(usize) -> Vec<T>,
    ) -> Result<(Vec<T>, Vec<i64>)> {
        let chunk = (data.len() / (4 * options.threads)).clamp(LEAST_CHUNK, CHUNK);
        self.documents_in_chunks(data, ends, options, chunk, buffer)
    }

    /// As [`Encoder::documents`], with `chunk` bytes of text to a thread at once: with few of them, small inputs are
    /// enough for several threads.
    pub(crate) fn documents_in_chunks<T: Id>(
        &self,
        data: &[u8],
        ends: &[i64],
        options: Options,
        chunk: usize,
        mut buffer: impl FnMut(usize) -> Vec<T>,
    ) -> Result<(Vec<T>, Vec<i64>)> {
        let largest = [Some(self.largest_id()), options.bos, options.eos].into_iter().flatten().max().unwrap_or(0);
        if largest > T::LARGEST {
            return Err(Error::Tokenizer(format!(
                "ids go up to {largest}, which 16 bits cannot hold; expected at most {}. Ask for uint32.",
                T::LARGEST
            )));
        }
        let finder = self.finder(options.special)?;
        // A token is a byte at least, unless normalizing makes a text longer; then the call is done again with more.
        let marks = usize::from(options.bos.is_some()) + usize::from(options.eos.is_some()) + 1;
        let mut room = data.len() + marks * ends.len() + SLACK.min(8 * data.len() + 64);
        loop {
            let mut id_ends = vec![0; ends.len()];
            let how = (options, chunk, room);
            match self.encode_into(data, ends, how, &finder, buffer(room), &mut id_ends)? {
                Some(ids) => return Ok((ids, id_ends)),
                None => room = 4 * room + 64,
            }
        }
    }

    /// The ids of all documents, in the buffer `ids`, which is cleared first; None if there are more than `room`.
    fn encode_into<T: Id>(
        &self,
        data: &[u8],
        ends: &[i64],
        (options, chunk, room): (Options, usize, usize),
        finder: &Finder,
        mut ids: Vec<T>,
        id_ends: &mut [i64],
    ) -> Result<Option<Vec<T>>> {
        ids.clear();
        ids.reserve(room);
        prefer_large_pages(&mut ids);
        let threads = options.threads.clamp(1, data.len() / chunk + 1);
        if threads == 1
            && let Some(wide) = T::wide(&mut ids)
        {
            self.encode_in_order(data, ends, options, finder, wide, id_ends)?;
            return Ok(Some(ids));
        }
        let run = Run {
            encoder: self,
            data,
            ends,
            options,
            chunk_bytes: chunk,
            threads,
            finder,
            next: AtomicUsize::new(0),
            turn: Mutex::new(Turn { most_waiting: 2 * threads, spare: self.take_spare(), ..Turn::default() }),
            changed: Condvar::new(),
            out: Place(ids.as_mut_ptr()),
            room,
            id_ends: Place(id_ends.as_mut_ptr()),
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| self.with_worker(|worker| run.work(worker, data.len() / threads)));
            }
            self.with_worker(|worker| run.work(worker, data.len() / threads));
        });
        let mut turn = run.turn.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.keep_spare(std::mem::take(&mut turn.spare), 2 * threads);
        match turn.failed {
            Some((_, error)) if !turn.overflowed => Err(error),
            _ if turn.overflowed => Ok(None),
            _ => {
                // SAFETY: every id up to `offset` was written, and the capacity is at least `offset`.
                unsafe { ids.set_len(turn.offset) };
                Ok(Some(ids))
            }
        }
    }
}

impl Encoder {
    /// Encodes all documents on this thread, directly into `ids`.
    fn encode_in_order(
        &self,
        data: &[u8],
        ends: &[i64],
        options: Options,
        finder: &Finder,
        ids: &mut Vec<u32>,
        id_ends: &mut [i64],
    ) -> Result<()> {
        self.with_worker(|worker| {
            self.expect(worker, data.len());
            std::mem::swap(&mut worker.out, ids);
            worker.waits = true;
            let mut done = Ok(());
            let (mut from, mut start) = (0, 0);
            let mut placed = 0;
            while from < ends.len() && done.is_ok() {
                let to = chunk_end(ends, from, start + CHECKED);
                done = self.check(finder, data, ends, from, to).and_then(|()| {
                    for (document, &end) in (from..to).zip(&ends[from..to]) {
                        let stretch = Stretch { buffer: data, start, end: end as usize };
                        self.marked(worker, stretch, document, (options, finder), &mut |_| Ok(()))?;
                        start = stretch.end;
                    }
                    if to == ends.len() { self.settle(worker, data, &mut |_| Ok(())) } else { Ok(()) }
                });
                for end in worker.ended.drain(..) {
                    id_ends[placed] = end as i64;
                    placed += 1;
                }
                from = to;
            }
            std::mem::swap(&mut worker.out, ids);
            done
        })
    }

    /// One document, with the ids before and after it.
    fn marked(
        &self,
        worker: &mut Worker,
        stretch: Stretch,
        number: usize,
        (options, finder): (Options, &Finder),
        drain: Drain,
    ) -> Result<()> {
        if let Some(bos) = options.bos {
            worker.put(bos);
        }
        self.document(worker, stretch, finder, drain).map_err(|error| named(error, number))?;
        if let Some(eos) = options.eos {
            worker.put(eos);
        }
        worker.end_document();
        Ok(())
    }

    /// Refuses documents that are not UTF-8, where that is needed.
    fn check(&self, finder: &Finder, data: &[u8], ends: &[i64], from: usize, to: usize) -> Result<()> {
        if self.takes_bytes(finder) { Ok(()) } else { check_utf8(data, ends, from, to) }
    }
}

/// The end of the documents from `from` on that end at `goal` or before; at least one.
fn chunk_end(ends: &[i64], from: usize, goal: usize) -> usize {
    (from + ends[from..].partition_point(|&end| end as usize <= goal)).max(from + 1)
}

/// Adds the number of the document to the error of a split, or of a byte without a token.
fn named(error: Error, document: usize) -> Error {
    match error {
        Error::Split(why) => Error::Split(format!("texts[{document}]: {why}")),
        Error::Tokenizer(why) => Error::Tokenizer(format!("texts[{document}]: {why}")),
        other => other,
    }
}

fn start_of(ends: &[i64], document: usize) -> usize {
    if document == 0 { 0 } else { ends[document - 1] as usize }
}

/// Whether the documents from `from` to `to` are valid UTF-8, each by itself.
fn check_utf8(data: &[u8], ends: &[i64], from: usize, to: usize) -> Result<()> {
    let text = &data[start_of(ends, from)..ends[to - 1] as usize];
    let begins_inside = |document: &usize| {
        let start = start_of(ends, *document);
        data.get(start).is_some_and(|byte| byte & 0xc0 == 0x80) && start < ends[*document] as usize
    };
    if simdutf8::basic::from_utf8(text).is_ok() && !(from..to).any(|document| begins_inside(&document)) {
        return Ok(());
    }
    for document in from..to {
        let text = &data[start_of(ends, document)..ends[document] as usize];
        if let Err(wrong) = std::str::from_utf8(text) {
            let at = wrong.valid_up_to();
            return Err(Error::Tokenizer(format!(
                "texts[{document}]: byte {at} is {:#04x}, which is not valid UTF-8. Repair the text first, for \
                 example with decode('utf-8', 'replace').",
                text[at]
            )));
        }
    }
    Ok(())
}

/// An id as it is written: of 16 or 32 bits.
pub trait Id: Copy + Send + Sync {
    /// The largest there is.
    const LARGEST: u32;

    /// The same id, which is at most the largest.
    fn of(id: u32) -> Self;

    /// The ids as `u32`, the type that a worker writes; None for a narrower type.
    fn wide(ids: &mut Vec<Self>) -> Option<&mut Vec<u32>>;
}

impl Id for u32 {
    const LARGEST: u32 = u32::MAX;

    #[inline(always)]
    fn of(id: u32) -> u32 {
        id
    }

    fn wide(ids: &mut Vec<u32>) -> Option<&mut Vec<u32>> {
        Some(ids)
    }
}

impl Id for u16 {
    const LARGEST: u32 = u16::MAX as u32;

    #[inline(always)]
    fn of(id: u32) -> u16 {
        id as u16
    }

    fn wide(_: &mut Vec<u16>) -> Option<&mut Vec<u32>> {
        None
    }
}

/// Memory that several threads write, each a part of its own.
struct Place<T>(*mut T);

// SAFETY: the parts that threads write do not overlap: each chunk owns its documents, and its ids from its offset on.
unsafe impl<T: Send> Sync for Place<T> {}
// SAFETY: plain memory of the caller, which waits for all threads.
unsafe impl<T: Send> Send for Place<T> {}

/// Whose ids may be written next, and where.
#[derive(Default)]
struct Turn {
    /// The first document of the chunk whose turn it is.
    document: usize,
    offset: usize,
    /// Chunks that are encoded but whose offset is not known yet, by their first document: the document after them, and
    /// their ids.
    waiting: HashMap<usize, (usize, Vec<u32>)>,
    most_waiting: usize,
    /// Buffers of written chunks, for reuse. They are allocated with the capacity of the largest chunk: growing would
    /// unmap memory, which stalls all other threads.
    spare: Vec<Vec<u32>>,
    /// The first document that failed, and why.
    failed: Option<(usize, Error)>,
    overflowed: bool,
}

struct Run<'a, T> {
    encoder: &'a Encoder,
    data: &'a [u8],
    ends: &'a [i64],
    options: Options<'a>,
    /// Bytes of text that go to a thread at once.
    chunk_bytes: usize,
    threads: usize,
    finder: &'a Finder,
    /// The first document that no chunk has yet.
    next: AtomicUsize,
    turn: Mutex<Turn>,
    changed: Condvar,
    out: Place<T>,
    /// How many ids there is room for.
    room: usize,
    id_ends: Place<i64>,
}

/// A chunk that is being encoded.
struct Chunk {
    from: usize,
    to: usize,
    /// Where its next ids go, once it is its turn.
    offset: Option<usize>,
    /// Ids that were drained already.
    drained: usize,
}

/// Wakes the waiting threads if this thread panics.
struct Unwinding<'a, 'r, T>(&'a Run<'r, T>);

impl<T> Drop for Unwinding<'_, '_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.turn).overflowed = true;
            self.0.changed.notify_all();
        }
    }
}

impl<T: Id> Run<'_, T> {
    /// Encodes chunks until there are no more, or one failed.
    fn work(&self, worker: &mut Worker, text: usize) {
        self.encoder.expect(worker, text);
        worker.shared = (self.threads > 1).then(|| self.encoder.shared(self.threads));
        self.chunks(worker);
        worker.shared = None;
    }

    fn chunks(&self, worker: &mut Worker) {
        let _guard = Unwinding(self);
        while let Some((from, to)) = self.take() {
            if let Err(error) = self.chunk(worker, from, to) {
                let mut turn = self.lock();
                if turn.failed.as_ref().is_none_or(|(first, _)| from < *first) {
                    turn.failed = Some((from, error));
                }
                self.changed.notify_all();
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turn> {
        lock(&self.turn)
    }

    /// The documents of the next chunk.
    fn take(&self) -> Option<(usize, usize)> {
        let mut from = self.next.load(Ordering::Relaxed);
        loop {
            if from >= self.ends.len() {
                return None;
            }
            let to = chunk_end(self.ends, from, start_of(self.ends, from) + self.chunk_bytes);
            match self.next.compare_exchange_weak(from, to, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some((from, to)),
                Err(now) => from = now,
            }
        }
    }

    fn chunk(&self, worker: &mut Worker, from: usize, to: usize) -> Result<()> {
        self.encoder.check(self.finder, self.data, self.ends, from, to)?;
        let mut chunk = Chunk { from, to, offset: None, drained: 0 };
        worker.reset(usize::MAX);
        worker.waits = true;
        worker.out.reserve(CHUNK + SLACK);
        let mut drain = |ids: &mut Vec<u32>| self.drain(&mut chunk, ids);
        for document in from..to {
            let (start, end) = (start_of(self.ends, document), self.ends[document] as usize);
            let stretch = Stretch { buffer: self.data, start, end };
            self.encoder.marked(worker, stretch, document, (self.options, self.finder), &mut drain)?;
        }
        self.encoder.settle(worker, self.data, &mut drain)?;
        for (document, &end) in (from..to).zip(&worker.ended) {
            // SAFETY: the documents of a chunk belong to it alone, and there is an end for each document.
            unsafe { self.id_ends.0.add(document).write(end as i64) };
        }
        self.finish(&chunk, &mut worker.out)
    }

    /// Writes the ids of a complete chunk, and those of all chunks that waited for it. If the chunk before is not done,
    /// queues them instead; the thread that finishes that chunk writes them.
    fn finish(&self, chunk: &Chunk, ids: &mut Vec<u32>) -> Result<()> {
        let mut turn = self.lock();
        while turn.document != chunk.from {
            self.check_turn(&turn, chunk)?;
            if turn.waiting.len() < turn.most_waiting {
                let spare = turn.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK + SLACK));
                turn.waiting.insert(chunk.from, (chunk.to, std::mem::replace(ids, spare)));
                return Ok(());
            }
            turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        let offset = chunk.offset.unwrap_or(turn.offset);
        let mut end = offset + ids.len();
        let mut others = vec![];
        let mut next = chunk.to;
        while let Some((to, ids)) = turn.waiting.remove(&next) {
            let offset = end;
            end += ids.len();
            others.push((offset, next, to, ids));
            next = to;
        }
        turn.document = next;
        turn.offset = end;
        turn.overflowed |= end > self.room;
        let overflowed = turn.overflowed;
        drop(turn);
        self.changed.notify_all();
        if overflowed {
            return Err(Error::Stopped);
        }
        self.write(offset, ids);
        self.place(chunk.from, chunk.to, offset - chunk.drained);
        for (offset, from, to, ids) in &others {
            self.write(*offset, ids);
            self.place(*from, *to, *offset);
        }
        self.lock().spare.extend(others.into_iter().map(|(.., ids)| ids));
        Ok(())
    }

    /// Writes some of the ids of a chunk that is not complete: waits until it is its turn, and keeps it.
    fn drain(&self, chunk: &mut Chunk, ids: &mut Vec<u32>) -> Result<()> {
        let offset = match chunk.offset {
            Some(offset) => offset,
            None => {
                let mut turn = self.lock();
                while turn.document != chunk.from {
                    self.check_turn(&turn, chunk)?;
                    turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
                }
                turn.offset
            }
        };
        let end = offset + ids.len();
        if end > self.room {
            self.lock().overflowed = true;
            self.changed.notify_all();
            return Err(Error::Stopped);
        }
        self.write(offset, ids);
        chunk.drained += ids.len();
        chunk.offset = Some(end);
        ids.clear();
        Ok(())
    }

    /// Whether the turn of `chunk` may still come.
    fn check_turn(&self, turn: &Turn, chunk: &Chunk) -> Result<()> {
        let failed_before = turn.failed.as_ref().is_some_and(|(first, _)| *first < chunk.from);
        if failed_before || turn.overflowed { Err(Error::Stopped) } else { Ok(()) }
    }

    fn write(&self, offset: usize, ids: &[u32]) {
        // SAFETY: the memory from the chunk's offset on belongs to this chunk and is within the capacity; nothing reads it
        // before the end of the call.
        let out = unsafe { std::slice::from_raw_parts_mut(self.out.0.add(offset).cast::<MaybeUninit<T>>(), ids.len()) };
        for (out, &id) in out.iter_mut().zip(ids) {
            out.write(T::of(id));
        }
    }

    /// The ids of these documents begin at `offset`.
    fn place(&self, from: usize, to: usize, offset: usize) {
        for document in from..to {
            // SAFETY: the documents of a chunk belong to whoever writes it, and there is an end for each document.
            unsafe { *self.id_ends.0.add(document) += offset as i64 };
        }
    }
}
