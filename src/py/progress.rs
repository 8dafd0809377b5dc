//! `Progress`: counters of a running loop, read from another thread.

use crate::lock;
use crate::progress::Progress;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::atomic::Ordering::Relaxed;

#[pyclass(name = "Progress", frozen, module = "piecemill._core")]
pub struct PyProgress(pub Progress);

#[pymethods]
impl PyProgress {
    #[new]
    fn new() -> Self {
        PyProgress(Progress::default())
    }

    fn stop(&self) {
        self.0.stop.store(true, Relaxed);
    }

    #[getter]
    fn stopped(&self) -> bool {
        self.0.stop.load(Relaxed)
    }

    #[getter]
    fn merges(&self) -> u64 {
        self.0.merges.load(Relaxed)
    }

    #[getter]
    fn occurrences(&self) -> u64 {
        self.0.occurrences.load(Relaxed)
    }

    #[getter]
    fn pair_count(&self) -> u64 {
        self.0.pair_count.load(Relaxed)
    }

    #[getter]
    fn pair(&self) -> (u32, u32) {
        let pair = self.0.pair.load(Relaxed);
        ((pair >> 32) as u32, pair as u32)
    }

    #[getter]
    fn token<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &lock(&self.0.token))
    }

    #[getter]
    fn floor(&self) -> u64 {
        self.0.floor.load(Relaxed)
    }

    #[getter]
    fn rounds_begun(&self) -> u64 {
        self.0.rounds_begun.load(Relaxed)
    }

    #[getter]
    fn rounds_ready(&self) -> u64 {
        self.0.rounds_ready.load(Relaxed)
    }

    #[getter]
    fn round_seconds(&self) -> f64 {
        self.0.round_nanos.load(Relaxed) as f64 / 1e9
    }

    #[getter]
    fn pair_weight(&self) -> f64 {
        f64::from_bits(self.0.pair_weight.load(Relaxed))
    }

    #[getter]
    fn visited(&self) -> u64 {
        self.0.visited.load(Relaxed)
    }
}
