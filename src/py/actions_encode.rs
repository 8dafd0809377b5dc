//! The loops of `piecemill.actions`: sequences of items to tokens.

use crate::actions::encode::{Segmenter, Sequences, Way};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

type Encoded<'py> = (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<i64>>);

#[pyclass(name = "ActionSegmenter", frozen, module = "piecemill._core")]
pub struct PySegmenter(Segmenter);

/// A [`Way`] as Python gives it: seed, epoch and rows, or a name.
#[derive(FromPyObject)]
enum GivenWay<'py> {
    Shuffled(u64, u64, PyReadonlyArray1<'py, i64>),
    Named(String),
}

/// The arrays as slices, once every number in them is known to be in reach.
fn sequences<'a>(
    table: &'a PyReadonlyArray2<'_, u32>,
    items: &'a PyReadonlyArray1<'_, i64>,
    starts: &'a PyReadonlyArray1<'_, i64>,
    stops: &'a PyReadonlyArray1<'_, i64>,
) -> PyResult<Sequences<'a>> {
    let (rows, width) = (table.shape()[0], table.shape()[1]);
    let (table, items) = (table.as_slice()?, items.as_slice()?);
    let (starts, stops) = (starts.as_slice()?, stops.as_slice()?);
    if width == 0 || u32::try_from(width).is_err() {
        return Err(PyValueError::new_err("table: expected at least one token per item"));
    }
    if let Some(item) = items.iter().find(|&&item| item < 0 || item as usize >= rows) {
        return Err(PyValueError::new_err(format!("items: {item}; expected numbers of the {rows} items")));
    }
    let wrong =
        starts.iter().zip(stops).find(|&(&start, &stop)| start < 0 || start > stop || stop as usize > items.len());
    if wrong.is_some() || starts.len() != stops.len() {
        return Err(PyValueError::new_err(format!(
            "starts and stops: {} and {}, of which {wrong:?} is the first pair outside 0 to {} items",
            starts.len(),
            stops.len(),
            items.len()
        )));
    }
    // Tokens are counted in 32 bits within a sequence, and a sequence this long would be a mistake.
    if starts.iter().zip(stops).any(|(start, stop)| (stop - start) as usize >= u32::MAX as usize / width) {
        return Err(PyValueError::new_err("a sequence has more than 2^32 tokens"));
    }
    Ok(Sequences { table, width, items, starts, stops })
}

#[pymethods]
impl PySegmenter {
    #[new]
    fn new(first: u32, merges: PyReadonlyArray2<'_, u32>, priority: PyReadonlyArray1<'_, f64>) -> PyResult<Self> {
        let pairs: Vec<[u32; 2]> = merges.as_slice()?.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
        let priority = priority.as_slice()?;
        if merges.shape()[1] != 2 || priority.len() != first as usize + pairs.len() {
            return Err(PyValueError::new_err("expected merges of two tokens each, and one priority per token"));
        }
        if pairs.iter().flatten().any(|&token| token == 0) {
            return Err(PyValueError::new_err("merges: 0 is padding and is never merged"));
        }
        Ok(PySegmenter(Segmenter::new(first, &pairs, priority.to_vec())))
    }

    #[pyo3(signature = (table, items, starts, stops, *, way, threads))]
    #[allow(clippy::too_many_arguments)]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        table: PyReadonlyArray2<'py, u32>,
        items: PyReadonlyArray1<'py, i64>,
        starts: PyReadonlyArray1<'py, i64>,
        stops: PyReadonlyArray1<'py, i64>,
        way: GivenWay<'py>,
        threads: usize,
    ) -> PyResult<Encoded<'py>> {
        let sequences = sequences(&table, &items, &starts, &stops)?;
        let way = match &way {
            GivenWay::Shuffled(seed, epoch, rows) => {
                let (seed, epoch, rows) = (*seed, *epoch, rows.as_slice()?);
                if rows.len() != sequences.starts.len() {
                    let counts = format!("{} rows for {} sequences", rows.len(), sequences.starts.len());
                    return Err(PyValueError::new_err(counts));
                }
                Way::Shuffled { seed, epoch, rows }
            }
            GivenWay::Named(name) if name == "given" => Way::Given,
            GivenWay::Named(name) if name == "weighed" => Way::Weighed,
            GivenWay::Named(name) => {
                return Err(PyValueError::new_err(format!("way={name:?}: expected given or weighed")));
            }
        };
        let (ids, ends) = py.detach(|| self.0.encode(sequences, way, threads));
        Ok((ids.into_pyarray(py), ends.into_pyarray(py)))
    }
}
