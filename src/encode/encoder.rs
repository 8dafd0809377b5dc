//! One document -> ids: added tokens, normalizing, and what lies between.

use super::added::{Added, AddedToken, Finder, Found, Special};
use super::batch::{Model, Worker};
use super::bpe::{Bytes, Characters};
use super::isa::Instructions;
use super::normalize::Normalizer;
use super::scan::{self, ByEnds, ByJoined, ByScanner, ByWordPiece, Drain, Stretch};
use super::shared::Shared;
use super::vocabulary::Symbols;
use super::wordpiece::WordPiece;
use crate::error::{Error, Result};
use crate::lock;
use crate::pretoken::Split;
use crate::pretoken::fast::Scanner;
use crate::pretoken::split::Visitor;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Capacity of the largest buffer of ids that is kept between calls: 8 MiB.
const KEPT_IDS: usize = 4 * scan::FULL;

/// A space that is put before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// None.
    Never,
    /// Before the document.
    First,
    /// Before every stretch between added tokens.
    Always,
    /// Before the document, unless it begins with a space.
    FirstUnlessSpace,
    /// Before every stretch, unless it begins with a space.
    AlwaysUnlessSpace,
}

/// What an encoder has beside its vocabulary.
pub struct Settings {
    /// What is done to a text first.
    pub normalizer: Option<Normalizer>,
    /// Texts that are tokens by themselves.
    pub added: Vec<AddedToken>,
    /// A space before the text.
    pub prefix: Prefix,
    /// Memory that the cache of each thread may take.
    pub cache_bytes: usize,
    /// Which instructions may be used; the ids are the same with all.
    pub instructions: Instructions,
}

enum Kind {
    Bytes { model: Box<Bytes>, split: Split },
    Characters(Box<Characters>),
    WordPiece(Box<WordPiece>),
}

/// Texts of at least this many bytes have so many new words that reading the tables in order first takes less time.
const TOUCHED_FROM: usize = 1 << 20;

/// A vocabulary, ready to encode. Threads share it; each has a worker of its own while it encodes.
pub struct Encoder {
    kind: Kind,
    normalizer: Option<Normalizer>,
    added: Added,
    prefix: Prefix,
    cache_bytes: AtomicUsize,
    instructions: Instructions,
    largest_id: u32,
    idle: Mutex<Vec<Worker>>,
    /// Buffers for chunks of ids, from one call to the next.
    spare: Mutex<Vec<Vec<u32>>>,
    shared: Mutex<Option<Arc<Shared>>>,
}

impl Encoder {
    /// Byte-level BPE.
    pub fn bytes(model: Bytes, split: Split, settings: Settings) -> Result<Encoder> {
        let largest_id = model.largest_id();
        Encoder::new(Kind::Bytes { model: Box::new(model), split }, largest_id, settings)
    }

    /// BPE over characters.
    pub fn characters(model: Characters, settings: Settings) -> Result<Encoder> {
        let largest_id = model.largest_id();
        Encoder::new(Kind::Characters(Box::new(model)), largest_id, settings)
    }

    /// WordPiece.
    pub fn wordpiece(model: WordPiece, settings: Settings) -> Result<Encoder> {
        let largest_id = model.largest_id();
        Encoder::new(Kind::WordPiece(Box::new(model)), largest_id, settings)
    }

    fn new(kind: Kind, largest_id: u32, settings: Settings) -> Result<Encoder> {
        let Settings { normalizer, added, prefix, cache_bytes, instructions } = settings;
        let added = Added::new(added, normalizer.as_ref())?;
        let largest_id = largest_id.max(added.largest_id());
        Ok(Encoder {
            kind,
            normalizer,
            added,
            prefix,
            cache_bytes: AtomicUsize::new(cache_bytes),
            instructions,
            largest_id,
            idle: Mutex::default(),
            spare: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    /// The symbols of byte-level BPE; None for other models.
    pub fn symbols(&self) -> Option<&Symbols> {
        match &self.kind {
            Kind::Bytes { model, .. } => Some(model.symbols()),
            _ => None,
        }
    }

    /// The largest id that it can write.
    pub fn largest_id(&self) -> u32 {
        self.largest_id
    }

    /// What looks for the special tokens that a call asks for.
    pub fn finder(&self, special: &Special) -> Result<Arc<Finder>> {
        self.added.finder(special)
    }

    /// Whether documents need not be UTF-8: byte-level BPE without a split, where nothing is looked for in them.
    pub fn takes_bytes(&self, finder: &Finder) -> bool {
        let Kind::Bytes { split, .. } = &self.kind else { return false };
        split.is_none() && self.normalizer.is_none() && finder.raw.is_none() && finder.normalized.is_none()
    }

    /// Lends a worker to `work`; it keeps its cache for the next call.
    pub fn with_worker<T>(&self, work: impl FnOnce(&mut Worker) -> T) -> T {
        let idle = || lock(&self.idle);
        let taken = idle().pop();
        let bytes = self.cache_bytes();
        let mut worker = taken.unwrap_or_else(|| Worker::new(bytes, self.instructions));
        let result = work(&mut worker);
        // The ids of one huge word must not be remembered by the capacity of the buffer.
        worker.reset(KEPT_IDS);
        let mut idle = idle();
        // Unless the bound was changed meanwhile.
        if self.cache_bytes() == bytes {
            idle.push(worker);
        }
        result
    }

    /// Memory that the cache of each thread may take.
    pub fn cache_bytes(&self) -> usize {
        self.cache_bytes.load(Ordering::Relaxed)
    }

    /// Changes the bound from the next call on; all caches are emptied.
    pub fn set_cache_bytes(&self, bytes: usize) {
        let mut idle = lock(&self.idle);
        self.cache_bytes.store(bytes, Ordering::Relaxed);
        idle.clear();
    }

    /// Makes a worker ready for a text of this length.
    pub fn expect(&self, worker: &mut Worker, text: usize) {
        if worker.expect(text) && text >= TOUCHED_FROM {
            match &self.kind {
                Kind::Bytes { model, .. } => model.touch(),
                Kind::Characters(model) => model.touch(),
                Kind::WordPiece(model) => model.touch(),
            }
        }
    }

    /// Takes the buffers that earlier calls left.
    pub fn take_spare(&self) -> Vec<Vec<u32>> {
        std::mem::take(&mut *lock(&self.spare))
    }

    /// Leaves at most `most` buffers to later calls, none of them huge.
    pub fn keep_spare(&self, mut buffers: Vec<Vec<u32>>, most: usize) {
        buffers.retain(|buffer| buffer.capacity() <= KEPT_IDS);
        buffers.truncate(most);
        *lock(&self.spare) = buffers;
    }

    /// What the threads of a call share: the table of earlier calls, unless these had far fewer threads.
    pub fn shared(&self, threads: usize) -> Arc<Shared> {
        let mut shared = lock(&self.shared);
        let kept = shared.take().filter(|kept| kept.suits(threads));
        shared.insert(kept.unwrap_or_else(|| Arc::new(Shared::new(threads)))).clone()
    }

    /// The ids of one text.
    pub fn encode(&self, text: &str, special: &Special) -> Result<Vec<u32>> {
        let finder = self.finder(special)?;
        self.with_worker(|worker| {
            let stretch = Stretch { buffer: text.as_bytes(), start: 0, end: text.len() };
            let mut ids = vec![];
            let done = self.document(worker, stretch, &finder, &mut |out| {
                ids.append(out);
                Ok(())
            });
            done.map_err(|error| match error {
                Error::Tokenizer(why) => Error::Tokenizer(format!("text: {why}")),
                other => other,
            })?;
            ids.append(&mut worker.out);
            Ok(ids)
        })
    }

    /// Appends the ids of a document to the worker's. The document is valid UTF-8, unless the encoder takes bytes. If the
    /// worker waits, its last words may be left to `settle`.
    pub fn document(&self, worker: &mut Worker, document: Stretch, finder: &Finder, drain: Drain) -> Result<()> {
        let Some(search) = &finder.raw else {
            return self.normalized(worker, document, finder, true, drain);
        };
        let mut found = std::mem::take(&mut worker.found[0]);
        search.find(document.as_str(), &mut found);
        let result = self.between(worker, document, &found, drain, |worker, stretch, first, drain| {
            self.normalized(worker, stretch, finder, first, drain)
        });
        worker.found[0] = found;
        result
    }

    /// What lies between the tokens `found` goes to `text`, with whether it is the start of the document.
    #[inline(always)]
    fn between(
        &self,
        worker: &mut Worker,
        stretch: Stretch,
        found: &[Found],
        drain: Drain,
        mut text: impl FnMut(&mut Worker, Stretch, bool, Drain) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        for one in found {
            if one.start > at {
                text(worker, stretch.part(at, one.start), at == 0, drain)?;
            }
            worker.put(one.id);
            at = one.end;
        }
        let len = stretch.end - stretch.start;
        if at < len { text(worker, stretch.part(at, len), at == 0, drain) } else { Ok(()) }
    }

    /// Encodes the words that wait, which are in `buffer`.
    pub fn settle(&self, worker: &mut Worker, buffer: &[u8], drain: Drain) -> Result<()> {
        let end = worker.waiting_until();
        match &self.kind {
            Kind::Bytes { model, .. } => scan::flush(worker, &**model, buffer, end, drain),
            Kind::Characters(model) => scan::flush(worker, &**model, buffer, end, drain),
            Kind::WordPiece(model) => scan::flush(worker, &**model, buffer, end, drain),
        }
    }

    fn normalized(
        &self,
        worker: &mut Worker,
        stretch: Stretch,
        finder: &Finder,
        first: bool,
        drain: Drain,
    ) -> Result<()> {
        let mut scratch = std::mem::take(&mut worker.normal);
        let normal = match &self.normalizer {
            None => stretch,
            Some(normalizer) => {
                let text = stretch.as_str();
                let normal = normalizer.apply(text, &mut scratch);
                // The same text where nothing was to do: then it stays where more memory can be read behind it.
                match std::ptr::eq(normal, text) {
                    true => stretch,
                    false => Stretch { buffer: normal.as_bytes(), start: 0, end: normal.len() },
                }
            }
        };
        let waits = worker.waits;
        if !std::ptr::eq(normal.buffer, stretch.buffer) {
            self.settle(worker, stretch.buffer, drain)?;
            worker.waits = false;
        }
        let result = match &finder.normalized {
            None => self.prefixed(worker, normal, first, drain),
            Some(search) => {
                let mut found = std::mem::take(&mut worker.found[1]);
                search.find(normal.as_str(), &mut found);
                let result = self.between(worker, normal, &found, drain, |worker, stretch, start, drain| {
                    self.prefixed(worker, stretch, first && start, drain)
                });
                worker.found[1] = found;
                result
            }
        };
        worker.waits = waits;
        scratch.shrink();
        worker.normal = scratch;
        result
    }

    fn prefixed(&self, worker: &mut Worker, stretch: Stretch, first: bool, drain: Drain) -> Result<()> {
        let begins_with_space = || {
            let text = stretch.text();
            text.starts_with(b" ")
                || matches!(self.kind, Kind::Characters(_)) && text.starts_with("\u{2581}".as_bytes())
        };
        let prefix = stretch.end > stretch.start
            && match self.prefix {
                Prefix::Never => false,
                Prefix::First => first,
                Prefix::Always => true,
                Prefix::FirstUnlessSpace => first && !begins_with_space(),
                Prefix::AlwaysUnlessSpace => !begins_with_space(),
            };
        if !prefix {
            return self.stretch(worker, stretch, drain);
        }
        let text = stretch.text();
        // Characters are cut between any two that no token joins, so only the first word needs the space.
        let end = match &self.kind {
            Kind::Bytes { .. } | Kind::WordPiece(_) => text.len(),
            Kind::Characters(model) => model.end(text, 0),
        };
        self.settle(worker, stretch.buffer, drain)?;
        let mut with_space = std::mem::take(&mut worker.scratch.text);
        with_space.clear();
        with_space.push(b' ');
        with_space.extend_from_slice(&text[..end]);
        let waits = std::mem::replace(&mut worker.waits, false);
        let mut result = self.stretch(worker, Stretch { buffer: &with_space, start: 0, end: with_space.len() }, drain);
        worker.waits = waits;
        if result.is_ok() {
            result = self.stretch(worker, stretch.part(end, text.len()), drain);
        }
        with_space.shrink_to(1 << 20);
        worker.scratch.text = with_space;
        result
    }

    /// A stretch that only the split cuts.
    fn stretch(&self, worker: &mut Worker, stretch: Stretch, drain: Drain) -> Result<()> {
        match &self.kind {
            Kind::Bytes { model, split } => {
                let is_utf8 = !split.is_none() || simdutf8::basic::from_utf8(stretch.text()).is_ok();
                model.alphabet().check(stretch.text(), is_utf8)?;
                split.visit(Bytewise { worker, model, stretch, is_utf8, drain })
            }
            Kind::Characters(model) => {
                let cut = ByEnds(stretch.text(), |text: &[u8], at| model.end(text, at));
                match model.joined() {
                    Some((joined, alone)) => {
                        scan::encode(worker, &**model, stretch, &ByJoined(joined, Some(alone), cut), None, drain)
                    }
                    None => scan::encode(worker, &**model, stretch, &cut, None, drain),
                }
            }
            Kind::WordPiece(model) => {
                scan::encode(worker, &**model, stretch, &ByWordPiece(model, stretch.text()), None, drain)
            }
        }
    }
}

/// A stretch of byte-level BPE on its way to the scanner of its split.
struct Bytewise<'a, 'd> {
    worker: &'a mut Worker,
    model: &'a Bytes,
    stretch: Stretch<'a>,
    is_utf8: bool,
    drain: Drain<'d>,
}

impl Visitor for Bytewise<'_, '_> {
    type Out = Result<()>;

    fn scanner<S: Scanner>(self) -> Result<()> {
        let cut = ByScanner::<S>::new(self.stretch.text());
        scan::encode(self.worker, self.model, self.stretch, &cut, Some(self.model.joined()), self.drain)
    }

    /// Whole texts are cut where no token has both sides of the place.
    fn whole(self) -> Result<()> {
        let joined = self.model.joined();
        let Some(adjacent) = self.model.adjacent() else {
            let cut = ByEnds(self.stretch.text(), |text: &[u8], _| text.len());
            return scan::encode(self.worker, self.model, self.stretch, &cut, None, self.drain);
        };
        if !self.is_utf8 {
            let cut = ByEnds(self.stretch.text(), |text: &[u8], at| adjacent.end(text, at));
            return scan::encode(self.worker, self.model, self.stretch, &cut, None, self.drain);
        }
        let ends = ByEnds(self.stretch.text(), |text: &[u8], at| joined.end(text, at, text.len()));
        let cut = ByJoined(joined, None, ends);
        scan::encode(self.worker, self.model, self.stretch, &cut, None, self.drain)
    }

    fn general(self, split: &Split) -> Result<()> {
        scan::by_split(self.worker, self.model, self.stretch, split, self.drain)
    }
}
