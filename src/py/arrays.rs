//! Loops over flat buffers that every room shares.

use crate::arrays;
use numpy::ndarray::Array2;
use numpy::{PyArray2, PyReadonlyArray1, PyReadwriteArray1, ToPyArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3;

/// `data` and `ends` as slices, once they are known to fit together: the loops index without asking again.
pub fn documents<'a>(
    data: &'a PyReadonlyArray1<'_, u8>,
    ends: &'a PyReadonlyArray1<'_, i64>,
) -> PyResult<(&'a [u8], &'a [i64])> {
    let (data, ends) = (data.as_slice()?, ends.as_slice()?);
    if !arrays::ends_fit(data.len(), ends) {
        let last = ends.last().copied().unwrap_or(0);
        return Err(PyValueError::new_err(format!(
            "ends: the last is {last} and data has {} bytes; expected rising ends that finish where data does",
            data.len()
        )));
    }
    Ok((data, ends))
}

#[pyfunction]
fn hash_documents<'py>(
    py: Python<'py>,
    data: PyReadonlyArray1<'py, u8>,
    ends: PyReadonlyArray1<'py, i64>,
) -> PyResult<Bound<'py, PyArray2<u64>>> {
    let (data, ends) = documents(&data, &ends)?;
    let hashes = py.detach(|| arrays::hash_documents(data, ends));
    let rows =
        Array2::from_shape_vec((ends.len(), 2), hashes).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(rows.to_pyarray(py))
}

#[pyfunction]
fn count_ids(py: Python<'_>, ids: &Bound<'_, PyAny>, mut counts: PyReadwriteArray1<'_, u64>) -> PyResult<()> {
    let counts = counts.as_slice_mut()?;
    let size = counts.len();
    let counted = if let Ok(ids) = ids.extract::<PyReadonlyArray1<'_, u16>>() {
        let ids = ids.as_slice()?;
        py.detach(|| arrays::count_ids(ids, counts))
    } else {
        let ids = ids.extract::<PyReadonlyArray1<'_, u32>>()?;
        let ids = ids.as_slice()?;
        py.detach(|| arrays::count_ids(ids, counts))
    };
    counted.map_err(|id| PyValueError::new_err(format!("id {id} of a vocabulary of {size} tokens")))
}

/// Boxed: it must begin at a multiple of 64 bytes, and an object of Python begins at any multiple of 16.
#[pyclass(name = "Xxh3", frozen, module = "piecemill._core")]
struct PyXxh3(Mutex<Box<xxh3::Xxh3>>);

#[pymethods]
impl PyXxh3 {
    #[new]
    fn new() -> Self {
        PyXxh3(Mutex::new(Box::new(xxh3::Xxh3::new())))
    }

    fn update(&self, py: Python<'_>, data: PyReadonlyArray1<'_, u8>) -> PyResult<()> {
        let data = data.as_slice()?;
        py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).update(data));
        Ok(())
    }

    fn hexdigest(&self) -> String {
        format!("{:016x}", self.0.lock().unwrap_or_else(PoisonError::into_inner).digest())
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyXxh3>()?;
    module.add_function(wrap_pyfunction!(count_ids, module)?)?;
    module.add_function(wrap_pyfunction!(hash_documents, module)?)
}
