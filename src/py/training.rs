//! Counting words and learning merges: `WordCounter`, `WordCounts`, `FlatCorpus`, `Learned`.

use super::arrays::pairs;
use super::pretoken::SplitSpec;
use super::progress::PyProgress;
use super::to_py;
use crate::bpe::balance::{self, Balance, Group};
use crate::bpe::corpus::{Corpus, Slot, deal};
use crate::bpe::{Learned, Plan, Start, merge};
use crate::count::{Counter, WordCounts, pieces};
use crate::error::{Error, Result};
use crate::lock;
use crate::progress::Progress;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use std::path::PathBuf;
use std::sync::Mutex;

#[pyclass(name = "WordCounter", frozen, module = "piecemill._core")]
pub struct PyWordCounter(Counter);

#[pymethods]
impl PyWordCounter {
    #[new]
    fn new(split: SplitSpec, memory: usize, spill_dir: PathBuf) -> PyResult<Self> {
        Ok(PyWordCounter(Counter::new(split.resolve().map_err(to_py)?, memory, spill_dir)))
    }

    #[pyo3(signature = (data, ends, tags=None))]
    fn add(
        &self,
        py: Python<'_>,
        data: PyReadonlyArray1<'_, u8>,
        ends: PyReadonlyArray1<'_, i64>,
        tags: Option<PyReadonlyArray1<'_, u16>>,
    ) -> PyResult<()> {
        let (data, ends) = (data.as_slice()?, ends.as_slice()?);
        let tags = tags.as_ref().map(|tags| tags.as_slice()).transpose()?;
        py.detach(|| self.0.add(data, ends, tags)).map_err(to_py)
    }

    fn add_counts(
        &self,
        py: Python<'_>,
        data: PyReadonlyArray1<'_, u8>,
        ends: PyReadonlyArray1<'_, i64>,
        counts: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<()> {
        let (data, ends, counts) = (data.as_slice()?, ends.as_slice()?, counts.as_slice()?);
        py.detach(|| self.0.add_counts(data, ends, counts)).map_err(to_py)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<PyWordCounts> {
        py.detach(|| self.0.finish()).map(PyWordCounts).map_err(to_py)
    }

    #[getter]
    fn distinct(&self) -> usize {
        self.0.distinct()
    }

    #[getter]
    fn spills(&self) -> (usize, u64) {
        self.0.spills()
    }
}

#[pyclass(name = "WordCounts", frozen, module = "piecemill._core")]
pub struct PyWordCounts(WordCounts);

type WordArrays<'py> = (Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<u64>>);

#[pymethods]
impl PyWordCounts {
    fn __len__(&self) -> usize {
        self.0.counts.len()
    }

    #[getter]
    fn total(&self) -> u64 {
        self.0.counts.iter().sum()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.0.data.len()
    }

    fn by_group(&self, py: Python<'_>, tags: Vec<(usize, u64)>, groups: usize) -> PyResult<Vec<PyWordCounts>> {
        let words = py.detach(|| self.0.by_group(&tags, groups)).map_err(to_py)?;
        Ok(words.into_iter().map(PyWordCounts).collect())
    }

    #[pyo3(signature = (ties=true))]
    fn arrays<'py>(&self, py: Python<'py>, ties: bool) -> WordArrays<'py> {
        let sorted = py.detach(|| self.0.in_order(&self.0.order(ties)));
        (sorted.data.into_pyarray(py), sorted.ends.into_pyarray(py), sorted.counts.into_pyarray(py))
    }
}

/// More threads than this wait for each other more than they merge.
const MOST_PARTS: usize = 8;

#[pyclass(name = "FlatCorpus", frozen, module = "piecemill._core")]
pub struct PyFlatCorpus {
    plan: Plan,
    corpus: Mutex<Option<AnyCorpus>>,
    /// The groups of words so far, of a corpus that has some.
    groups: Mutex<Vec<Group>>,
}

/// A [`Start`] as Python gives it: the bytes of each id, special ids, unreachable ids.
type GivenStart = (Vec<Vec<u8>>, Vec<u32>, Vec<u32>);

/// A corpus in the narrowest slots that hold the vocabulary, in a part for each thread.
enum AnyCorpus {
    Narrow(Vec<Corpus<u16>>),
    Wide(Vec<Corpus<u32>>),
}

impl AnyCorpus {
    fn new(plan: &Plan, threads: usize) -> Self {
        let parts = threads.clamp(1, MOST_PARTS);
        if plan.vocab_size <= u16::LARGEST {
            AnyCorpus::Narrow((0..parts).map(|_| Corpus::new(plan)).collect())
        } else {
            AnyCorpus::Wide((0..parts).map(|_| Corpus::new(plan)).collect())
        }
    }

    fn push(&mut self, word: &[u8], weight: u64) {
        match self {
            AnyCorpus::Narrow(parts) => deal(parts, |part| part.push(word, weight)),
            AnyCorpus::Wide(parts) => deal(parts, |part| part.push(word, weight)),
        }
    }

    fn push_ids(&mut self, word: &[u32], weight: u64) {
        match self {
            AnyCorpus::Narrow(parts) => deal(parts, |part| part.push_ids(word, weight)),
            AnyCorpus::Wide(parts) => deal(parts, |part| part.push_ids(word, weight)),
        }
    }

    /// The words to come are of this group.
    fn begin_group(&mut self, group: u32) {
        match self {
            AnyCorpus::Narrow(parts) => parts.iter_mut().for_each(|part| part.group = group),
            AnyCorpus::Wide(parts) => parts.iter_mut().for_each(|part| part.group = group),
        }
    }

    fn train(self, plan: &Plan, balance: Option<Balance>, progress: &Progress) -> Result<Learned> {
        match (self, balance) {
            (AnyCorpus::Narrow(parts), None) => merge::train(parts, plan, progress),
            (AnyCorpus::Wide(parts), None) => merge::train(parts, plan, progress),
            (AnyCorpus::Narrow(parts), Some(balance)) => balance::train(parts, plan, balance, progress),
            (AnyCorpus::Wide(parts), Some(balance)) => balance::train(parts, plan, balance, progress),
        }
    }
}

#[pymethods]
impl PyFlatCorpus {
    #[new]
    #[pyo3(signature = (vocab_size, min_frequency, max_token_bytes, special_tokens, threads=1, start=None, max_words=None))]
    fn new(
        vocab_size: u32,
        min_frequency: u64,
        max_token_bytes: Option<u32>,
        special_tokens: Vec<Vec<u8>>,
        threads: usize,
        start: Option<GivenStart>,
        max_words: Option<u32>,
    ) -> PyResult<Self> {
        let start = start.map(|(tokens, special, unreachable)| Start { tokens, special, unreachable });
        let plan = Plan { vocab_size, min_frequency, max_token_bytes, max_words, special_tokens, start };
        plan.check().map_err(to_py)?;
        let corpus = Mutex::new(Some(AnyCorpus::new(&plan, threads)));
        Ok(PyFlatCorpus { plan, corpus, groups: Mutex::default() })
    }

    fn add(&self, py: Python<'_>, data: PyReadonlyArray1<'_, u8>, ends: PyReadonlyArray1<'_, i64>) -> PyResult<()> {
        let (data, ends) = (data.as_slice()?, ends.as_slice()?);
        let add = || {
            if self.plan.start.is_some() {
                return Err(Error::Training("training goes on from a vocabulary: add_ids takes its ids".into()));
            }
            let mut corpus = lock(&self.corpus);
            let corpus = corpus.as_mut().ok_or_else(used_up)?;
            pieces(data, ends)?.for_each(|document| corpus.push(document, 1));
            Ok(())
        };
        py.detach(add).map_err(to_py)
    }

    fn add_words(&self, py: Python<'_>, words: &PyWordCounts, group: usize) -> PyResult<()> {
        let add = || {
            let words = &words.0;
            let mut size = Group::default();
            let mut corpus = lock(&self.corpus);
            let corpus = corpus.as_mut().ok_or_else(used_up)?;
            corpus.begin_group(group as u32);
            for at in words.order(false) {
                let (word, count) = (words.word(at), words.counts[at]);
                size.add(word.len(), word.len(), count);
                corpus.push(word, count);
            }
            self.end_group(group, size)
        };
        py.detach(add).map_err(to_py)
    }

    #[pyo3(signature = (ids, ends, counts=None, group=None))]
    fn add_ids(
        &self,
        py: Python<'_>,
        ids: PyReadonlyArray1<'_, u32>,
        ends: PyReadonlyArray1<'_, i64>,
        counts: Option<PyReadonlyArray1<'_, u64>>,
        group: Option<usize>,
    ) -> PyResult<()> {
        let (ids, ends) = (ids.as_slice()?, ends.as_slice()?);
        let counts = counts.as_ref().map(|counts| counts.as_slice()).transpose()?;
        let add = || {
            let known = self.plan.first_merge_id();
            if let Some(id) = ids.iter().find(|&&id| id >= known) {
                return Err(Error::Training(format!("ids: {id} does not exist; expected 0 to {}", known - 1)));
            }
            if counts.is_some_and(|counts| counts.len() != ends.len() || !counts.is_sorted_by(|a, b| a >= b)) {
                return Err(Error::Training("counts: expected one for each word, the largest first".into()));
            }
            let mut corpus = lock(&self.corpus);
            let corpus = corpus.as_mut().ok_or_else(used_up)?;
            corpus.begin_group(group.unwrap_or(0) as u32);
            for (at, word) in pieces(ids, ends)?.enumerate() {
                corpus.push_ids(word, counts.map_or(1, |counts| counts[at]));
            }
            let Some(group) = group else { return Ok(()) };
            let mut size = Group::default();
            let tokens = self.plan.start.as_ref().map_or(&[][..], |start| &start.tokens);
            for (at, word) in pieces(ids, ends)?.enumerate() {
                let bytes = word.iter().map(|&id| tokens.get(id as usize).map_or(1, Vec::len)).sum();
                size.add(bytes, word.len(), counts.map_or(1, |counts| counts[at]));
            }
            self.end_group(group, size)
        };
        py.detach(add).map_err(to_py)
    }

    #[pyo3(signature = (progress, balance=None, vocab_size=None))]
    fn train(
        &self,
        py: Python<'_>,
        progress: &PyProgress,
        balance: Option<(bool, usize, usize)>,
        vocab_size: Option<u32>,
    ) -> PyResult<PyLearned> {
        let train = || {
            let mut plan = self.plan.clone();
            plan.vocab_size = vocab_size.unwrap_or(plan.vocab_size).min(plan.vocab_size);
            plan.check()?;
            let corpus = lock(&self.corpus).take();
            let groups = std::mem::take(&mut *lock(&self.groups));
            let balance = balance.map(|(measured, after, window)| Balance { groups, measured, after, window });
            corpus.ok_or_else(used_up)?.train(&plan, balance, &progress.0)
        };
        PyLearned::new(py, py.detach(train).map_err(to_py)?)
    }
}

impl PyFlatCorpus {
    /// Takes note of a group whose words are all laid out.
    fn end_group(&self, group: usize, size: Group) -> Result<()> {
        let mut groups = lock(&self.groups);
        if group != groups.len() {
            return Err(Error::Training(format!("group {group}: expected {}, the next one", groups.len())));
        }
        groups.push(size);
        Ok(())
    }
}

fn used_up() -> Error {
    Error::Training("this corpus was used up by train(); make a new one".into())
}

#[pyclass(name = "Learned", frozen, get_all, module = "piecemill._core")]
pub struct PyLearned {
    merges: Py<PyArray2<u32>>,
    counts: Py<PyArray1<u64>>,
    vocab_size: u32,
    full: bool,
    groups: Vec<(u64, u64)>,
    stats: Py<PyDict>,
}

impl PyLearned {
    fn new(py: Python<'_>, learned: Learned) -> PyResult<Self> {
        let stats = [
            ("rounds", u64::from(learned.stats.rounds)),
            ("occurrences", learned.stats.occurrences),
            ("peak_live_pairs", learned.stats.peak_live_pairs),
            ("peak_queue", learned.stats.peak_queue),
            ("queue_per_mille", learned.stats.queue_per_mille),
            ("peak_places", learned.stats.peak_places),
        ];
        Ok(PyLearned {
            merges: pairs(py, learned.merges)?.unbind(),
            counts: learned.counts.into_pyarray(py).unbind(),
            vocab_size: learned.vocab_size,
            full: learned.full,
            groups: learned.groups.iter().map(|group| (group.bytes, group.tokens)).collect(),
            stats: stats.into_py_dict(py)?.unbind(),
        })
    }
}
