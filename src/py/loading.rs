//! The loops of `piecemill.loading`: mapping files, gathering windows.

use crate::gather::{self, Id, Rows, Tokens};
use memmap2::Mmap;
use numpy::ndarray::ArrayView1;
use numpy::{Element, PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray2};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::fs::File;
use std::path::PathBuf;

/// A mapped file; the base of the arrays that show it.
#[pyclass(frozen, module = "piecemill._core")]
struct Mapped(Mmap);

#[pyfunction]
pub fn map_file<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let file = File::open(path)?;
    // SAFETY: the map is read-only. Somebody who cuts the file while it is mapped ends the process, as with any map;
    // shards are never written to once they have their name.
    let mapped = Bound::new(py, Mapped(unsafe { Mmap::map(&file)? }))?;
    let view = ArrayView1::from(&mapped.get().0[..]);
    // SAFETY: the bytes are those of `mapped`, which is the array's base and does not change; the array is made
    // read-only before anybody sees it.
    let array = unsafe { PyArray1::borrow_from_array(&view, mapped.clone().into_any()) };
    array.readwrite().make_nonwriteable();
    Ok(array)
}

enum Held<'py> {
    Narrow(PyReadonlyArray1<'py, u16>),
    Wide(PyReadonlyArray1<'py, u32>),
}

impl<'py> Held<'py> {
    fn new(array: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(narrow) = array.extract() {
            return Ok(Held::Narrow(narrow));
        }
        let wide = array.extract().map_err(|_| PyTypeError::new_err("tokens: expected uint16 or uint32, one row each"));
        Ok(Held::Wide(wide?))
    }

    fn tokens(&self) -> PyResult<Tokens<'_>> {
        Ok(match self {
            Held::Narrow(array) => Tokens::Narrow(array.as_slice()?),
            Held::Wide(array) => Tokens::Wide(array.as_slice()?),
        })
    }
}

#[pyfunction]
#[pyo3(signature = (tokens, pieces, masked, inputs, labels, *, pad))]
pub fn gather_windows<'py>(
    py: Python<'py>,
    tokens: Vec<Bound<'py, PyAny>>,
    pieces: PyReadonlyArray2<'py, i64>,
    masked: PyReadonlyArray1<'py, i64>,
    inputs: &Bound<'py, PyAny>,
    labels: &Bound<'py, PyAny>,
    pad: i64,
) -> PyResult<()> {
    if let (Ok(inputs), Ok(labels)) = (inputs.extract(), labels.extract()) {
        return fill::<i64>(py, &tokens, &pieces, &masked, inputs, labels, pad);
    }
    if let (Ok(inputs), Ok(labels)) = (inputs.extract(), labels.extract()) {
        return fill::<i32>(py, &tokens, &pieces, &masked, inputs, labels, pad);
    }
    Err(PyTypeError::new_err("inputs, labels: expected writable int32 or int64, rows by columns, the same of both"))
}

fn fill<T: Id + Element>(
    py: Python<'_>,
    tokens: &[Bound<'_, PyAny>],
    pieces: &PyReadonlyArray2<'_, i64>,
    masked: &PyReadonlyArray1<'_, i64>,
    mut inputs: PyReadwriteArray2<'_, T>,
    mut labels: PyReadwriteArray2<'_, T>,
    pad: i64,
) -> PyResult<()> {
    let held = tokens.iter().map(Held::new).collect::<PyResult<Vec<_>>>()?;
    let tokens = held.iter().map(Held::tokens).collect::<PyResult<Vec<_>>>()?;
    if pieces.as_array().ncols() != 4 {
        return Err(PyValueError::new_err("pieces: expected four columns: row, file, start, length"));
    }
    let window = inputs.as_array().ncols();
    let rows = Rows { tokens: &tokens, pieces: pieces.as_slice()?, masked: masked.as_slice()?, window, pad };
    let (inputs, labels) = (inputs.as_slice_mut()?, labels.as_slice_mut()?);
    py.detach(|| gather::gather(&rows, inputs, labels)).map_err(PyValueError::new_err)
}
