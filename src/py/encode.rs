//! `Encoder` and `Decoder`: texts to ids and back, over flat buffers.

use super::arrays::{documents, pairs};
use super::to_py;
use crate::arrays::slices;
use crate::encode::{
    AddedToken, Bytes, Characters, Decoder, Encoder, Id, Instructions, Normalizer, NormalizerScratch, Options, Prefix,
    Settings, Special, Step, Unknown, WordPiece, WordPieceOptions,
};
use crate::error::Error;
use crate::lock;
use crate::pretoken::Split;
use numpy::ndarray::ArrayView1;
use numpy::{Element, IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, ToPyArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::any::Any;
use std::sync::Mutex;

impl<'py> FromPyObject<'_, 'py> for Special {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Special> {
        if let Ok(name) = given.cast::<PyString>() {
            return match name.to_str()? {
                "plain" => Ok(Special::Plain),
                "parse" => Ok(Special::Parse),
                other => Err(PyValueError::new_err(format!("special={other:?}: expected 'plain', 'parse' or a list"))),
            };
        }
        Ok(Special::Set(given.extract()?))
    }
}

/// Buffers of all encoders that came back from Python, to be used again: a new one costs a page fault for every 4 KiB
/// of ids.
static WIDE: Mutex<Vec<Vec<u32>>> = Mutex::new(vec![]);
static NARROW: Mutex<Vec<Vec<u16>>> = Mutex::new(vec![]);

/// Bytes of ids that the kept buffers of one width may have held together, and how many are kept: one is often still
/// being written while the next is filled.
const KEPT_BYTES: usize = 12 << 20;
const KEPT: usize = 2;

fn take<T>(kept: &Mutex<Vec<Vec<T>>>, room: usize) -> Vec<T> {
    let mut kept = lock(kept);
    match kept.iter().position(|buffer| buffer.capacity() >= room) {
        Some(at) => kept.swap_remove(at),
        None => Vec::new(),
    }
}

fn give_back<T>(kept: &Mutex<Vec<Vec<T>>>, buffer: Vec<T>) {
    let size = size_of_val(&buffer[..]);
    if size > KEPT_BYTES {
        return;
    }
    let mut kept = lock(kept);
    let held: usize = kept.iter().map(|one| size_of_val(&one[..])).sum();
    if kept.len() == KEPT || held + size > KEPT_BYTES {
        if kept.iter().any(|one| one.capacity() >= buffer.capacity()) {
            return;
        }
        kept.clear();
    }
    kept.push(buffer);
}

/// Ids that an array shows; when it is garbage, they go back.
struct Lent<T: 'static> {
    ids: Vec<T>,
    kept: &'static Mutex<Vec<Vec<T>>>,
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        give_back(self.kept, std::mem::take(&mut self.ids));
    }
}

#[pyclass(name = "_Ids", frozen, module = "piecemill._core")]
pub struct PyIds(#[expect(dead_code, reason = "it only lives as long as the array")] Box<dyn Any + Send + Sync>);

#[pyclass(name = "Encoder", frozen, module = "piecemill._core")]
pub struct PyEncoder {
    encoder: Encoder,
}

type Tokens<'py> = (PyReadonlyArray1<'py, u8>, PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, u32>);
type Added = (String, u32, u32);
/// Bytes, ends, ids, halves, and which encode to themselves.
type Symbols<'py> = (
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray2<u32>>,
    Bound<'py, PyArray1<bool>>,
);

/// The tokens one by one, and their ids.
fn tokens<'a>((data, ends, ids): &'a Tokens<'_>) -> PyResult<(Vec<&'a [u8]>, &'a [u32])> {
    let (data, ends) = documents(data, ends)?;
    let ids = ids.as_slice()?;
    if ids.len() != ends.len() {
        return Err(PyValueError::new_err(format!("{} ids for {} tokens; expected as many", ids.len(), ends.len())));
    }
    Ok((slices(data, ends).collect(), ids))
}

pub fn merges<'a>(given: Option<&'a PyReadonlyArray2<'_, u32>>) -> PyResult<Option<&'a [[u32; 2]]>> {
    let Some(given) = given else { return Ok(None) };
    let (pairs, []) = given.as_slice()?.as_chunks::<2>() else {
        return Err(PyValueError::new_err("merges: expected pairs"));
    };
    Ok(Some(pairs))
}

fn steps(given: &[Vec<String>]) -> PyResult<Normalizer> {
    let steps = given.iter().map(|step| Step::parse(step)).collect::<Result<Vec<_>, Error>>();
    steps.and_then(Normalizer::new).map_err(to_py)
}

#[pyfunction]
pub fn normalize(text: &str, steps: Vec<Vec<String>>) -> PyResult<String> {
    Ok(self::steps(&steps)?.apply(text, &mut NormalizerScratch::default()).to_owned())
}

fn settings(
    normalizer: &[Vec<String>],
    added: Vec<Added>,
    prefix: Prefix,
    cache_bytes: usize,
    instructions: &str,
) -> PyResult<Settings> {
    let normalizer = if normalizer.is_empty() { None } else { Some(steps(normalizer)?) };
    let added = added
        .into_iter()
        .map(|(text, id, flags)| AddedToken {
            text,
            id,
            special: flags & 1 != 0,
            normalized: flags & 2 != 0,
            single_word: flags & 4 != 0,
            left_strip: flags & 8 != 0,
            right_strip: flags & 16 != 0,
        })
        .collect();
    let instructions = instructions_named(instructions)?;
    Ok(Settings { normalizer, added, prefix, cache_bytes, instructions })
}

fn instructions_named(name: &str) -> PyResult<Instructions> {
    match name {
        "best" => Ok(Instructions::Best),
        "avx2" => Ok(Instructions::Avx2),
        "portable" => Ok(Instructions::Portable),
        _ => Err(PyValueError::new_err(format!("instructions={name:?}: expected best, avx2 or portable"))),
    }
}

fn prefix_named(name: &str) -> PyResult<Prefix> {
    match name {
        "never" => Ok(Prefix::Never),
        "first" => Ok(Prefix::First),
        "always" => Ok(Prefix::Always),
        "first-unless-space" => Ok(Prefix::FirstUnlessSpace),
        "always-unless-space" => Ok(Prefix::AlwaysUnlessSpace),
        _ => Err(PyValueError::new_err(format!("prefix={name:?}: no such rule"))),
    }
}

/// Ids, and where each document ends.
type Encoded<'py> = (Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>);

impl PyEncoder {
    /// The ids in an array whose memory is taken from `kept`, and goes back there.
    fn documents<'py, T: Id + Element>(
        &self,
        py: Python<'py>,
        (data, ends): (&[u8], &[i64]),
        options: Options,
        kept: &'static Mutex<Vec<Vec<T>>>,
    ) -> PyResult<Encoded<'py>> {
        let documents = || self.encoder.documents(data, ends, options, |room| take(kept, room));
        let (ids, ends) = py.detach(documents).map_err(to_py)?;
        let lent = Lent { ids, kept };
        // SAFETY: the array keeps its owner alive, and the owner never touches the ids until it is dropped.
        let array = unsafe {
            let view = ArrayView1::from_shape_ptr(lent.ids.len(), lent.ids.as_ptr());
            PyArray1::borrow_from_array(&view, Bound::new(py, PyIds(Box::new(lent)))?.into_any())
        };
        Ok((array.into_any(), ends.into_pyarray(py)))
    }
}

#[pymethods]
impl PyEncoder {
    #[staticmethod]
    #[pyo3(signature = (tokens_data, token_ends, ids, merges, *, split, whole_words, normalizer = vec![], added = vec![], prefix = "never", cache_bytes = 24 << 20, instructions = "best"))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword in Python")]
    fn bpe(
        py: Python<'_>,
        tokens_data: PyReadonlyArray1<'_, u8>,
        token_ends: PyReadonlyArray1<'_, i64>,
        ids: PyReadonlyArray1<'_, u32>,
        merges: Option<PyReadonlyArray2<'_, u32>>,
        split: Vec<String>,
        whole_words: bool,
        normalizer: Vec<Vec<String>>,
        added: Vec<Added>,
        prefix: &str,
        cache_bytes: usize,
        instructions: &str,
    ) -> PyResult<PyEncoder> {
        let flat = (tokens_data, token_ends, ids);
        let (tokens, ids) = tokens(&flat)?;
        let merges = self::merges(merges.as_ref())?;
        let settings = settings(&normalizer, added, prefix_named(prefix)?, cache_bytes, instructions)?;
        let encoder = py.detach(|| {
            let model = Bytes::new(&tokens, ids, merges, whole_words)?;
            Encoder::bytes(model, Split::sequence(&split)?, settings)
        });
        Ok(PyEncoder { encoder: encoder.map_err(to_py)? })
    }

    #[staticmethod]
    #[pyo3(signature = (tokens_data, token_ends, ids, merges, *, byte_ids, unk, fuse_unk, prefix, normalizer = vec![], added = vec![], cache_bytes = 24 << 20, instructions = "best"))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword in Python")]
    fn characters(
        py: Python<'_>,
        tokens_data: PyReadonlyArray1<'_, u8>,
        token_ends: PyReadonlyArray1<'_, i64>,
        ids: PyReadonlyArray1<'_, u32>,
        merges: Option<PyReadonlyArray2<'_, u32>>,
        byte_ids: Option<Vec<u32>>,
        unk: Option<u32>,
        fuse_unk: bool,
        prefix: &str,
        normalizer: Vec<Vec<String>>,
        added: Vec<Added>,
        cache_bytes: usize,
        instructions: &str,
    ) -> PyResult<PyEncoder> {
        let flat = (tokens_data, token_ends, ids);
        let (tokens, ids) = tokens(&flat)?;
        let merges = self::merges(merges.as_ref())?;
        let unknown = match (byte_ids.map(<[u32; 256]>::try_from), unk) {
            (Some(Ok(of_bytes)), _) => Unknown::Bytes(Box::new(of_bytes)),
            (Some(Err(other)), _) => {
                return Err(PyValueError::new_err(format!("byte_ids: {} ids; expected 256", other.len())));
            }
            (None, Some(id)) => Unknown::Id { id, fuse: fuse_unk },
            (None, None) => return Err(PyValueError::new_err("either byte_ids or unk must be given")),
        };
        let settings = settings(&normalizer, added, prefix_named(prefix)?, cache_bytes, instructions)?;
        let encoder = py.detach(|| Encoder::characters(Characters::new(&tokens, ids, merges, unknown)?, settings));
        Ok(PyEncoder { encoder: encoder.map_err(to_py)? })
    }

    #[staticmethod]
    #[pyo3(signature = (tokens_data, token_ends, ids, *, unk, prefix, max_chars, clean, chinese, strip_accents, lowercase, added = vec![], cache_bytes = 24 << 20, instructions = "best"))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword in Python")]
    fn wordpiece(
        py: Python<'_>,
        tokens_data: PyReadonlyArray1<'_, u8>,
        token_ends: PyReadonlyArray1<'_, i64>,
        ids: PyReadonlyArray1<'_, u32>,
        unk: u32,
        prefix: String,
        max_chars: usize,
        clean: bool,
        chinese: bool,
        strip_accents: bool,
        lowercase: bool,
        added: Vec<Added>,
        cache_bytes: usize,
        instructions: &str,
    ) -> PyResult<PyEncoder> {
        let flat = (tokens_data, token_ends, ids);
        let (tokens, ids) = tokens(&flat)?;
        let tokens: Vec<(&[u8], u32)> = tokens.into_iter().zip(ids.iter().copied()).collect();
        let options = WordPieceOptions { unk, prefix, max_chars, clean, chinese, strip_accents, lowercase };
        let settings = settings(&[], added, Prefix::Never, cache_bytes, instructions)?;
        let encoder = py.detach(|| Encoder::wordpiece(WordPiece::new(&tokens, &options)?, settings));
        Ok(PyEncoder { encoder: encoder.map_err(to_py)? })
    }

    fn symbols<'py>(&self, py: Python<'py>) -> PyResult<Symbols<'py>> {
        let symbols = self.encoder.symbols().ok_or_else(|| PyValueError::new_err("this is not byte-level BPE"))?;
        let (bytes, ends) = symbols.flat();
        let halves = symbols.halves.iter().map(|&(left, right)| [left, right]).collect();
        let itself = (0..symbols.len() as u32).map(|symbol| symbols.is_itself(symbol)).collect::<Vec<bool>>();
        Ok((
            bytes.to_pyarray(py),
            ends[1..].to_pyarray(py),
            symbols.ids.all().to_pyarray(py),
            pairs(py, halves)?,
            itself.into_pyarray(py),
        ))
    }

    /// Memory that the cache of each thread may take. Setting it makes all caches begin anew.
    #[getter]
    fn cache_bytes(&self) -> usize {
        self.encoder.cache_bytes()
    }

    #[setter]
    fn set_cache_bytes(&self, bytes: usize) {
        self.encoder.set_cache_bytes(bytes);
    }

    fn encode<'py>(&self, py: Python<'py>, text: &str, special: Special) -> PyResult<Bound<'py, PyArray1<u32>>> {
        // Letting go of the interpreter costs more than a short text.
        let ids = match text.len() {
            ..4096 => self.encoder.encode(text, &special),
            _ => py.detach(|| self.encoder.encode(text, &special)),
        };
        Ok(ids.map_err(to_py)?.into_pyarray(py))
    }

    #[pyo3(signature = (data, ends, *, bos, eos, narrow, special, threads))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword in Python")]
    fn encode_flat<'py>(
        &self,
        py: Python<'py>,
        data: PyReadonlyArray1<'py, u8>,
        ends: PyReadonlyArray1<'py, i64>,
        bos: Option<u32>,
        eos: Option<u32>,
        narrow: bool,
        special: Special,
        threads: usize,
    ) -> PyResult<Encoded<'py>> {
        let texts = documents(&data, &ends)?;
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            some => some,
        };
        let options = Options { bos, eos, special: &special, threads };
        if narrow { self.documents(py, texts, options, &NARROW) } else { self.documents(py, texts, options, &WIDE) }
    }
}

/// Bytes one after another, and where each row ends.
type Flat<'py> = (Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<i64>>);

#[pyclass(name = "Decoder", frozen, module = "piecemill._core")]
pub struct PyDecoder(Decoder);

/// Ids of any integer type.
#[derive(FromPyObject)]
enum AnyIds<'py> {
    U32(PyReadonlyArray1<'py, u32>),
    U16(PyReadonlyArray1<'py, u16>),
    I64(PyReadonlyArray1<'py, i64>),
    I32(PyReadonlyArray1<'py, i32>),
    List(Vec<i64>),
}

impl AnyIds<'_> {
    fn decode(&self, decoder: &Decoder, from: usize, to: Option<usize>, out: &mut Vec<u8>) -> Result<(), Error> {
        fn part<T: Copy + Into<i64>>(ids: &[T], from: usize, to: Option<usize>) -> impl Iterator<Item = i64> {
            ids[from..to.unwrap_or(ids.len())].iter().map(|&id| id.into())
        }
        let rows = |why: numpy::AsSliceError| Error::Tokenizer(format!("decode: {why}; expected one row of ids."));
        match self {
            AnyIds::U32(ids) => decoder.decode(part(ids.as_slice().map_err(rows)?, from, to), out),
            AnyIds::U16(ids) => decoder.decode(part(ids.as_slice().map_err(rows)?, from, to), out),
            AnyIds::I64(ids) => decoder.decode(part(ids.as_slice().map_err(rows)?, from, to), out),
            AnyIds::I32(ids) => decoder.decode(part(ids.as_slice().map_err(rows)?, from, to), out),
            AnyIds::List(ids) => decoder.decode(part(ids, from, to), out),
        }
    }

    fn len(&self) -> usize {
        match self {
            AnyIds::U32(ids) => ids.len().unwrap_or(0),
            AnyIds::U16(ids) => ids.len().unwrap_or(0),
            AnyIds::I64(ids) => ids.len().unwrap_or(0),
            AnyIds::I32(ids) => ids.len().unwrap_or(0),
            AnyIds::List(ids) => ids.len(),
        }
    }
}

#[pymethods]
impl PyDecoder {
    #[new]
    #[pyo3(signature = (tokens_data, token_ends, *, first = None, missing = vec![]))]
    fn new(
        tokens_data: PyReadonlyArray1<'_, u8>,
        token_ends: PyReadonlyArray1<'_, i64>,
        first: Option<(PyReadonlyArray1<'_, u8>, PyReadonlyArray1<'_, i64>)>,
        missing: Vec<usize>,
    ) -> PyResult<PyDecoder> {
        let tokens = documents(&tokens_data, &token_ends)?;
        let first = first.as_ref().map(|(data, ends)| documents(data, ends)).transpose()?;
        if first.is_some_and(|(_, ends)| ends.len() != tokens.1.len()) {
            return Err(PyValueError::new_err("first: expected as many tokens as in the table"));
        }
        Ok(PyDecoder(Decoder::new(tokens, first, missing)))
    }

    fn decode<'py>(&self, py: Python<'py>, ids: AnyIds<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let mut out = vec![];
        ids.decode(&self.0, 0, None, &mut out).map_err(to_py)?;
        Ok(PyBytes::new(py, &out))
    }

    fn decode_text<'py>(&self, py: Python<'py>, ids: AnyIds<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut out = vec![];
        ids.decode(&self.0, 0, None, &mut out).map_err(to_py)?;
        match std::str::from_utf8(&out) {
            Ok(text) => Ok(PyString::new(py, text).into_any()),
            Err(_) => PyBytes::new(py, &out).call_method1("decode", ("utf-8", "replace")),
        }
    }

    fn decode_flat<'py>(
        &self,
        py: Python<'py>,
        ids: AnyIds<'py>,
        ends: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Flat<'py>> {
        let ends = ends.as_slice()?;
        if !crate::arrays::ends_fit(ids.len(), ends) {
            return Err(PyValueError::new_err("ends: expected rising ends that finish where ids do"));
        }
        let (mut out, mut out_ends) = (vec![], Vec::with_capacity(ends.len()));
        let mut from = 0;
        for (row, &end) in ends.iter().enumerate() {
            ids.decode(&self.0, from, Some(end as usize), &mut out).map_err(|error| match error {
                Error::Tokenizer(why) => to_py(Error::Tokenizer(format!("row {row}: {why}"))),
                other => to_py(other),
            })?;
            out_ends.push(out.len() as i64);
            from = end as usize;
        }
        Ok((out.into_pyarray(py), out_ends.into_pyarray(py)))
    }
}
