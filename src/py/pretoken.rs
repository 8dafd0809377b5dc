//! `split_text` and its regex twin: where the pretokens of a text end.

use super::to_py;
use crate::error::Result;
use crate::pretoken::{Split, reference_for_each};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

/// Where each pretoken of `text` ends, in bytes of its UTF-8.
#[pyfunction]
fn split_text<'py>(py: Python<'py>, text: &str, split: &str) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let ends = py.detach(|| ends(split, |split, each| split.for_each(text, each))).map_err(to_py)?;
    Ok(ends.into_pyarray(py))
}

/// As `split_text`, by the regex that defines the split.
#[pyfunction]
fn split_text_reference<'py>(py: Python<'py>, text: &str, split: &str) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let ends = py.detach(|| ends(split, |split, each| reference_for_each(split, text, each))).map_err(to_py)?;
    Ok(ends.into_pyarray(py))
}

/// The regex of `split`; None for "none".
#[pyfunction]
fn split_pattern(split: &str) -> PyResult<Option<String>> {
    Ok(Split::new(split).map_err(to_py)?.pattern().map(str::to_owned))
}

fn ends(split: &str, run: impl FnOnce(&Split, &mut dyn FnMut(&[u8])) -> Result<()>) -> Result<Vec<i64>> {
    let mut ends = Vec::new();
    let mut end = 0;
    run(&Split::new(split)?, &mut |pretoken| {
        end += pretoken.len() as i64;
        ends.push(end);
    })?;
    Ok(ends)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(split_text, module)?)?;
    module.add_function(wrap_pyfunction!(split_text_reference, module)?)?;
    module.add_function(wrap_pyfunction!(split_pattern, module)?)
}
