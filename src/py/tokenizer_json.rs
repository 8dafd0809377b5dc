//! The vocabulary of a tokenizer.json, read and written.

use super::arrays::pairs;
use super::encode;
use super::to_py;
use crate::bpe::file;
use numpy::{PyArray2, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::collections::HashMap;

#[pyfunction]
pub fn bpe_parts(content: &[u8]) -> Option<(String, &[u8], &[u8])> {
    let parts = file::parts(str::from_utf8(content).ok()?)?;
    Some((parts.settings, parts.vocab.as_bytes(), parts.merges.as_bytes()))
}

/// Bytes of each id, merges and reachable ids.
type Vocabulary<'py> = (Vec<Bound<'py, PyBytes>>, Bound<'py, PyArray2<u32>>, Vec<u32>);

#[pyfunction]
pub fn bpe_vocabulary<'py>(
    py: Python<'py>,
    vocab: &[u8],
    merges: &[u8],
    special: Vec<(String, u32)>,
    partly: bool,
) -> PyResult<Option<Vocabulary<'py>>> {
    let (Ok(vocab), Ok(merges)) = (str::from_utf8(vocab), str::from_utf8(merges)) else { return Ok(None) };
    let found = py.detach(|| file::vocabulary(vocab, merges, &special, partly)).map_err(to_py)?;
    let Some(file::Vocabulary { tokens, merges, ranked }) = found else { return Ok(None) };
    Ok(Some((tokens.iter().map(|token| PyBytes::new(py, token)).collect(), pairs(py, merges)?, ranked)))
}

#[pyfunction]
pub fn bpe_body(
    py: Python<'_>,
    tokens: Vec<PyBackedBytes>,
    special: HashMap<u32, String>,
    merges: PyReadonlyArray2<'_, u32>,
) -> PyResult<String> {
    let tokens: Vec<&[u8]> = tokens.iter().map(|token| &**token).collect();
    let merges = encode::merges(Some(&merges))?.unwrap_or(&[]);
    Ok(py.detach(|| file::body(&tokens, &special, merges)))
}
