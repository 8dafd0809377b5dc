//! The loops of `piecemill.preparing`: choosing documents, laying out tokens, finding copies.

use super::arrays::documents;
use super::to_py;
use crate::arrays;
use crate::dedup::{self, PieceHashes};
use crate::sources::walk;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;

/// `chosen`, once every number in it is known to be a document's.
fn numbers<'a>(chosen: &'a PyReadonlyArray1<'_, i64>, count: usize) -> PyResult<&'a [i64]> {
    let chosen = chosen.as_slice()?;
    match chosen.iter().find(|&&n| n < 0 || n as usize >= count) {
        Some(n) => Err(PyValueError::new_err(format!("chosen: {n}; expected numbers of the {count} documents"))),
        None => Ok(chosen),
    }
}

#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn gather_documents<'py>(
    py: Python<'py>,
    data: PyReadonlyArray1<'py, u8>,
    ends: PyReadonlyArray1<'py, i64>,
    chosen: PyReadonlyArray1<'py, i64>,
) -> PyResult<(Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<i64>>)> {
    let (data, ends) = documents(&data, &ends)?;
    let chosen = numbers(&chosen, ends.len())?;
    let (data, ends) = py.detach(|| arrays::gather_documents(data, ends, chosen));
    Ok((data.into_pyarray(py), ends.into_pyarray(py)))
}

#[pyfunction]
#[pyo3(signature = (ids, ends, chosen, *, bos, eos, narrow))]
pub fn gather_tokens<'py>(
    py: Python<'py>,
    ids: PyReadonlyArray1<'py, u32>,
    ends: PyReadonlyArray1<'py, i64>,
    chosen: PyReadonlyArray1<'py, i64>,
    bos: Option<u32>,
    eos: Option<u32>,
    narrow: bool,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>)> {
    let (ids, ends) = (ids.as_slice()?, ends.as_slice()?);
    if !arrays::ends_fit(ids.len(), ends) {
        return Err(PyValueError::new_err(format!("ends: expected rising ends that finish at {} ids", ids.len())));
    }
    let chosen = numbers(&chosen, ends.len())?;
    let too_large = |id| PyValueError::new_err(format!("id {id} does not fit in 16 bits"));
    if narrow {
        let out = py.detach(|| arrays::gather_tokens::<u16>(ids, ends, chosen, bos, eos));
        let (ids, ends) = out.map_err(too_large)?;
        Ok((ids.into_pyarray(py).into_any(), ends.into_pyarray(py)))
    } else {
        let out = py.detach(|| arrays::gather_tokens::<u32>(ids, ends, chosen, bos, eos));
        let (ids, ends) = out.map_err(too_large)?;
        Ok((ids.into_pyarray(py).into_any(), ends.into_pyarray(py)))
    }
}

#[pyfunction]
pub fn first_match<'py>(
    py: Python<'py>,
    patterns: Vec<String>,
    paths: Vec<PathBuf>,
) -> PyResult<Bound<'py, PyArray1<i32>>> {
    let found = py.detach(|| walk::first_match(&patterns, &paths)).map_err(to_py)?;
    Ok(found.into_pyarray(py))
}

#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn sort_hashes<'py>(
    py: Python<'py>,
    hashes: PyReadonlyArray2<'py, u64>,
) -> PyResult<(Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<u32>>)> {
    let (rows, width) = hashes.as_array().dim();
    if width != 2 || rows > u32::MAX as usize {
        return Err(PyValueError::new_err(format!(
            "hashes: {rows} rows of {width}; expected rows of 2 (low, high), fewer than 2^32 of them"
        )));
    }
    let halves = hashes.as_slice()?;
    let piece = py.detach(|| PieceHashes::sort(halves));
    Ok((piece.starts.into_pyarray(py), piece.run.into_pyarray(py), piece.copies.into_pyarray(py)))
}

#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn later_copies<'py>(
    py: Python<'py>,
    runs: Vec<PyReadonlyArray1<'py, u8>>,
) -> PyResult<(Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<i64>>)> {
    let runs = runs.iter().map(|run| Ok(run.as_slice()?)).collect::<PyResult<Vec<&[u8]>>>()?;
    let (documents, starts) = py.detach(|| dedup::later_copies(&runs))?;
    Ok((documents.into_pyarray(py), starts.into_pyarray(py)))
}
