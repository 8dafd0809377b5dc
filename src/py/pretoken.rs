//! `splits`, the table of named splits; `resolve_split`; `split_text` and its regex twin.

use super::to_py;
use crate::encode::nfc_leaves;
use crate::error::Result;
use crate::pretoken::{Split, TABLE, classes};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// What Python gives for a split: a name or a regex, or a list of them to be applied one after another.
#[derive(FromPyObject)]
pub enum SplitSpec {
    One(String),
    Sequence(Vec<String>),
}

impl SplitSpec {
    pub fn resolve(&self) -> Result<Split> {
        match self {
            SplitSpec::One(spec) => Split::new(spec),
            SplitSpec::Sequence(specs) => Split::sequence(specs),
        }
    }
}

#[pyfunction]
pub fn splits(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let row = |named: &crate::pretoken::Named| {
        let row = PyDict::new(py);
        row.set_item("name", named.name)?;
        row.set_item("aliases", PyTuple::new(py, named.aliases)?)?;
        row.set_item("patterns", PyTuple::new(py, named.patterns)?)?;
        row.set_item("cuts_at_spaces", named.cuts_at_spaces)?;
        Ok(row)
    };
    TABLE.iter().map(row).collect()
}

#[pyfunction]
pub fn resolve_split(py: Python<'_>, split: SplitSpec) -> PyResult<(&'static str, Bound<'_, PyTuple>)> {
    let split = split.resolve().map_err(to_py)?;
    Ok((split.name(), PyTuple::new(py, split.patterns())?))
}

#[pyfunction]
pub fn code_points(py: Python<'_>) -> Bound<'_, PyArray1<u8>> {
    let flagged = |(point, &class): (usize, &u8)| class | u8::from(!nfc_leaves(point)) << 4;
    classes().iter().enumerate().map(flagged).collect::<Vec<u8>>().into_pyarray(py)
}

#[pyfunction]
pub fn split_text<'py>(py: Python<'py>, text: &str, split: SplitSpec) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let ends = py.detach(|| ends(&split, |split, each| split.for_each(text, each))).map_err(to_py)?;
    Ok(ends.into_pyarray(py))
}

#[pyfunction]
pub fn split_text_reference<'py>(py: Python<'py>, text: &str, split: SplitSpec) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let ends = py.detach(|| ends(&split, |split, each| split.reference_for_each(text, each))).map_err(to_py)?;
    Ok(ends.into_pyarray(py))
}

fn ends(split: &SplitSpec, run: impl FnOnce(&Split, &mut dyn FnMut(&[u8])) -> Result<()>) -> Result<Vec<i64>> {
    let mut ends = Vec::new();
    let mut end = 0;
    run(&split.resolve()?, &mut |pretoken| {
        end += pretoken.len() as i64;
        ends.push(end);
    })?;
    Ok(ends)
}
