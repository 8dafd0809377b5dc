//! Learning vocabularies of actions: `train_actions`, `LearnedActions`, `python_set_order`.

use super::progress::PyProgress;
use super::to_py;
use crate::actions::{Arithmetic, Corpus, Counts, Ended, Learned, Plan, Weights, set_order, train};
use crate::error::Error;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

#[pyfunction]
#[pyo3(signature = (features, items, ends, n_init, vocab_size, counts, arithmetic, min_pair_weight, threads, progress))]
#[allow(clippy::too_many_arguments)] // flat arrays and the fields of the plan
fn train_actions(
    py: Python<'_>,
    features: PyReadonlyArray2<'_, u32>,
    items: PyReadonlyArray1<'_, u32>,
    ends: PyReadonlyArray1<'_, u64>,
    n_init: u32,
    vocab_size: u32,
    counts: &str,
    arithmetic: &str,
    min_pair_weight: f64,
    threads: usize,
    progress: &PyProgress,
) -> PyResult<PyLearnedActions> {
    let counts = match counts {
        "published" => Counts::Published,
        "current" => Counts::Current,
        other => return Err(unknown("counts", other, "published or current")),
    };
    let arithmetic = match arithmetic {
        "exact" => Arithmetic::Exact,
        "float64" => Arithmetic::Float64,
        other => return Err(unknown("arithmetic", other, "exact or float64")),
    };
    let n_features = features.as_array().ncols();
    let plan = Plan { vocab_size, n_init, counts, arithmetic, min_pair_weight, threads };
    let corpus =
        Corpus { features: features.as_slice()?, n_features, items: items.as_slice()?, ends: ends.as_slice()? };
    py.detach(|| train(&corpus, &plan, &progress.0)).map(PyLearnedActions).map_err(to_py)
}

fn unknown(option: &str, given: &str, expected: &str) -> PyErr {
    to_py(Error::Plan(format!("{option}={given:?}: expected {expected}.")))
}

#[pyfunction]
fn python_set_order<'py>(py: Python<'py>, inserted: PyReadonlyArray1<'py, u32>) -> PyResult<Bound<'py, PyArray1<u32>>> {
    Ok(set_order(inserted.as_slice()?).to_pyarray(py))
}

#[pyclass(name = "LearnedActions", frozen, module = "piecemill._core")]
pub struct PyLearnedActions(Learned);

#[pymethods]
impl PyLearnedActions {
    #[getter]
    fn merges<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u32>>> {
        let flat: Vec<u32> = self.0.merges.iter().flat_map(|&(left, right)| [left, right]).collect();
        flat.to_pyarray(py).reshape([self.0.merges.len(), 2])
    }

    #[getter]
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        match &self.0.weights {
            Weights::Exact { numerators, .. } => PyList::new(py, numerators),
            Weights::Float64(weights) => PyList::new(py, weights),
        }
    }

    #[getter]
    fn denominator(&self) -> i128 {
        match self.0.weights {
            Weights::Exact { denominator, .. } => denominator,
            Weights::Float64(_) => 1,
        }
    }

    #[getter]
    fn touched<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.0.touched.to_pyarray(py)
    }

    #[getter]
    fn full(&self) -> bool {
        self.0.ended == Ended::Full
    }

    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = &self.0.stats;
        let dict = PyDict::new(py);
        dict.set_item("visited", stats.visited)?;
        dict.set_item("touched", stats.touched)?;
        dict.set_item("pairs", stats.pairs)?;
        dict.set_item("queued", stats.queued)?;
        dict.set_item("peak_queue", stats.peak_queue)?;
        dict.set_item("listed", stats.listed)?;
        dict.set_item("count_seconds", stats.count_seconds)?;
        dict.set_item("merge_seconds", stats.merge_seconds)?;
        Ok(dict)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyLearnedActions>()?;
    module.add_function(wrap_pyfunction!(train_actions, module)?)?;
    module.add_function(wrap_pyfunction!(python_set_order, module)?)
}
