//! Learning vocabularies of actions: `train_actions`, `LearnedActions`, `python_set_order`.

use super::arrays::pairs;
use super::progress::PyProgress;
use super::to_py;
use crate::actions::{Arithmetic, Corpus, Counts, Learned, Plan, Weights, set_order, train};
use crate::error::Error;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

#[pyfunction]
#[pyo3(signature = (features, items, ends, n_init, vocab_size, counts, arithmetic, min_pair_weight, threads, progress))]
#[allow(clippy::too_many_arguments)] // flat arrays and the fields of the plan
pub fn train_actions(
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
    PyLearnedActions::new(py, py.detach(|| train(&corpus, &plan, &progress.0)).map_err(to_py)?)
}

fn unknown(option: &str, given: &str, expected: &str) -> PyErr {
    to_py(Error::Plan(format!("{option}={given:?}: expected {expected}.")))
}

#[pyfunction]
pub fn python_set_order<'py>(
    py: Python<'py>,
    inserted: PyReadonlyArray1<'py, u32>,
) -> PyResult<Bound<'py, PyArray1<u32>>> {
    Ok(set_order(inserted.as_slice()?).to_pyarray(py))
}

#[pyclass(name = "LearnedActions", frozen, get_all, module = "piecemill._core")]
pub struct PyLearnedActions {
    merges: Py<PyArray2<u32>>,
    weights: Py<PyList>,
    denominator: i128,
    touched: Py<PyArray1<u32>>,
    full: bool,
    stats: Py<PyDict>,
}

impl PyLearnedActions {
    fn new(py: Python<'_>, learned: Learned) -> PyResult<Self> {
        let (weights, denominator) = match &learned.weights {
            Weights::Exact { numerators, denominator } => (PyList::new(py, numerators)?, *denominator),
            Weights::Float64(weights) => (PyList::new(py, weights)?, 1),
        };
        let stats = PyDict::new(py);
        stats.set_item("visited", learned.stats.visited)?;
        stats.set_item("touched", learned.stats.touched)?;
        stats.set_item("pairs", learned.stats.pairs)?;
        stats.set_item("queued", learned.stats.queued)?;
        stats.set_item("peak_queue", learned.stats.peak_queue)?;
        stats.set_item("listed", learned.stats.listed)?;
        stats.set_item("count_seconds", learned.stats.count_seconds)?;
        stats.set_item("merge_seconds", learned.stats.merge_seconds)?;
        Ok(PyLearnedActions {
            merges: pairs(py, learned.merges)?.unbind(),
            weights: weights.unbind(),
            denominator,
            touched: learned.touched.into_pyarray(py).unbind(),
            full: learned.full,
            stats: stats.unbind(),
        })
    }
}
