//! Loops over flat buffers that every room shares.

use crate::arrays;
use crate::lock;
use numpy::{IntoPyArray, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Mutex;
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

/// Pairs of ids as an array of n x 2.
pub fn pairs(py: Python<'_>, pairs: Vec<[u32; 2]>) -> PyResult<Bound<'_, PyArray2<u32>>> {
    let rows = pairs.len();
    pairs.into_flattened().into_pyarray(py).reshape([rows, 2])
}

#[pyfunction]
pub fn hash_documents<'py>(
    py: Python<'py>,
    data: PyReadonlyArray1<'py, u8>,
    ends: PyReadonlyArray1<'py, i64>,
) -> PyResult<Bound<'py, PyArray2<u64>>> {
    let (data, ends) = documents(&data, &ends)?;
    let hashes = py.detach(|| arrays::hash_documents(data, ends));
    hashes.into_pyarray(py).reshape([ends.len(), 2])
}

#[pyfunction]
pub fn count_ids(py: Python<'_>, ids: &Bound<'_, PyAny>, mut counts: PyReadwriteArray1<'_, u64>) -> PyResult<()> {
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
pub struct PyXxh3(Mutex<Box<xxh3::Xxh3>>);

#[pymethods]
impl PyXxh3 {
    #[new]
    fn new() -> Self {
        PyXxh3(Mutex::new(Box::new(xxh3::Xxh3::new())))
    }

    fn update(&self, py: Python<'_>, data: PyReadonlyArray1<'_, u8>) -> PyResult<()> {
        let data = data.as_slice()?;
        py.detach(|| lock(&self.0).update(data));
        Ok(())
    }

    fn hexdigest(&self) -> String {
        format!("{:016x}", lock(&self.0).digest())
    }
}
