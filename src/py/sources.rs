//! The loops of `piecemill.sources`.

use super::to_py;
use crate::sources::{self, Problems, Taken, alphabet, files, integers, jsonl, sequences, split, utf8, walk};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

type ByteArray<'py> = Bound<'py, PyArray1<u8>>;
type Longs<'py> = Bound<'py, PyArray1<i64>>;
type Listed = (Vec<(u64, String)>, u64);
type Grouped<'py> = ((Longs<'py>, Longs<'py>, u64, Listed), u64, Bound<'py, PyArray1<u64>>, HashMap<u64, String>);
type Documents<'py> = (ByteArray<'py>, Longs<'py>, Longs<'py>, u64, Listed);

fn listed(problems: Problems) -> Listed {
    (problems.listed.into_iter().map(|problem| (problem.index, problem.reason)).collect(), problems.count)
}

fn hand_over(py: Python<'_>, taken: Taken) -> Documents<'_> {
    let Taken { data, ends, origins, empty, problems, .. } = taken;
    (data.into_pyarray(py), ends.into_pyarray(py), origins.into_pyarray(py), empty, listed(problems))
}

type Walked<'py> = (Vec<OsString>, Vec<u64>, Bound<'py, PyDict>, Vec<(OsString, String)>, Vec<usize>);

fn hand_over_found(py: Python<'_>, found: walk::Found) -> PyResult<Walked<'_>> {
    let walk::LeftOut { hidden, ignored, excluded, not_included, folder_links, special, own } = found.left_out;
    let left_out = [
        ("hidden", hidden),
        ("ignored", ignored),
        ("excluded", excluded),
        ("not_included", not_included),
        ("folder_links", folder_links),
        ("special", special),
        ("own", own),
    ]
    .into_py_dict(py)?;
    let paths = found.paths.into_iter().map(PathBuf::into_os_string).collect();
    let problems = found.problems.into_iter().map(|(path, why)| (path.into_os_string(), why)).collect();
    Ok((paths, found.sizes, left_out, problems, found.excluded_by.into_iter().collect()))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
#[pyo3(signature = (folder, *, only, include, exclude, gitignore, hidden, out=None))]
pub fn walk_folder<'py>(
    py: Python<'py>,
    folder: PathBuf,
    only: Option<String>,
    include: Vec<String>,
    exclude: Vec<String>,
    gitignore: bool,
    hidden: bool,
    out: Option<PathBuf>,
) -> PyResult<Walked<'py>> {
    let rules = walk::Rules::new(only.as_deref(), &include, &exclude, gitignore, hidden).map_err(to_py)?.without(out);
    let found = py.detach(|| walk::walk(&folder, &rules));
    hand_over_found(py, found)
}

#[pyfunction]
#[pyo3(signature = (paths, sizes, gitignores, *, only, include, exclude, gitignore, hidden, out=None))]
#[allow(clippy::too_many_arguments)]
pub fn walk_listing<'py>(
    py: Python<'py>,
    paths: Vec<String>,
    sizes: Vec<u64>,
    gitignores: Vec<(String, Vec<u8>)>,
    only: Option<String>,
    include: Vec<String>,
    exclude: Vec<String>,
    gitignore: bool,
    hidden: bool,
    out: Option<PathBuf>,
) -> PyResult<Walked<'py>> {
    let rules = walk::Rules::new(only.as_deref(), &include, &exclude, gitignore, hidden).map_err(to_py)?.without(out);
    let found = py.detach(|| {
        let mut listing = walk::Listing::default();
        paths.into_iter().zip(sizes).for_each(|(path, size)| listing.add(path, size));
        gitignores.into_iter().for_each(|(folder, text)| listing.add_gitignore(&folder, text));
        walk::walk_listing(&listing, &rules)
    });
    hand_over_found(py, found)
}

#[pyfunction]
#[pyo3(signature = (paths, sizes, named, raw=false))]
pub fn read_texts(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    sizes: Vec<u64>,
    named: bool,
    raw: bool,
) -> PyResult<(Documents<'_>, u64)> {
    let texts = py.detach(|| files::read_texts(&paths, &sizes, named, raw)).map_err(|(number, error)| {
        PyOSError::new_err((error.raw_os_error(), error.to_string(), paths[number].as_os_str().to_owned()))
    })?;
    Ok((hand_over(py, texts.taken), texts.binary))
}

#[pyfunction]
pub fn number_keys<'py>(py: Python<'py>, values: PyReadonlyArray1<'py, f64>) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let values = values.as_slice()?;
    Ok(py.detach(|| sources::number_keys(values)).into_pyarray(py))
}

#[pyclass(name = "TextBuffer", module = "piecemill._core")]
pub struct PyTextBuffer {
    text: Vec<u8>,
    capacity: usize,
}

#[pymethods]
impl PyTextBuffer {
    /// `capacity` is how many bytes it usually holds: more make it grow.
    #[new]
    fn new(capacity: usize) -> Self {
        Self { text: Vec::new(), capacity: capacity.saturating_add(jsonl::REGISTER) }
    }

    fn __len__(&self) -> usize {
        self.text.len()
    }

    fn take<'py>(&mut self, py: Python<'py>, size: usize) -> PyResult<ByteArray<'py>> {
        let rest = self.text.get(size..).ok_or_else(|| PyValueError::new_err("size: more than the buffer holds"))?;
        let mut left = Vec::new();
        if !rest.is_empty() {
            left.reserve(self.capacity.max(rest.len()));
            left.extend_from_slice(rest);
        }
        self.text.truncate(size);
        Ok(std::mem::replace(&mut self.text, left).into_pyarray(py))
    }
}

#[pyfunction]
#[pyo3(signature = (lines, text, field, group=None, integers=false))]
pub fn extract_lines<'py>(
    py: Python<'py>,
    lines: PyReadonlyArray1<'py, u8>,
    mut text: PyRefMut<'py, PyTextBuffer>,
    field: &str,
    group: Option<&str>,
    integers: bool,
) -> PyResult<Grouped<'py>> {
    let lines = lines.as_slice()?;
    let mut given = std::mem::take(&mut text.text);
    if given.capacity() == 0 {
        given.reserve(text.capacity);
    }
    let found = py.detach(|| jsonl::extract(lines, field, group, integers, given));
    let Taken { data, ends, origins, empty, problems, .. } = found.taken;
    text.text = data;
    let taken = (ends.into_pyarray(py), origins.into_pyarray(py), empty, listed(problems));
    Ok((taken, found.newlines, found.keys.into_pyarray(py), found.names))
}

#[pyfunction]
#[pyo3(signature = (text, separator, base, last, raw=false))]
pub fn cut_text<'py>(
    py: Python<'py>,
    text: &[u8],
    separator: &[u8],
    base: u64,
    last: bool,
    raw: bool,
) -> (Documents<'py>, usize) {
    let (taken, done) = py.detach(|| split::split(text, separator, base, last, raw));
    (hand_over(py, taken), done)
}

fn form(fastq: bool) -> sequences::Form {
    if fastq { sequences::Form::Fastq } else { sequences::Form::Fasta }
}

#[pyfunction]
#[pyo3(signature = (buffer, *, fastq, base, stop, last, upper))]
#[allow(clippy::too_many_arguments)]
pub fn take_sequences<'py>(
    py: Python<'py>,
    buffer: &[u8],
    fastq: bool,
    base: u64,
    stop: Option<u64>,
    last: bool,
    upper: bool,
) -> (Documents<'py>, usize, bool) {
    let stop = stop.unwrap_or(u64::MAX);
    let found = py.detach(|| sequences::take(buffer, form(fastq), base, stop, last, upper));
    (hand_over(py, found.taken), found.done, found.ended)
}

#[pyfunction]
pub fn first_sequence(buffer: &[u8], fastq: bool) -> Option<usize> {
    sequences::first_record(buffer, form(fastq))
}

#[pyfunction]
pub fn write_integers<'py>(
    py: Python<'py>,
    values: PyReadonlyArray1<'py, i64>,
    ends: PyReadonlyArray1<'py, i64>,
) -> PyResult<(ByteArray<'py>, Longs<'py>)> {
    let (values, ends) = (values.as_slice()?, ends.as_slice()?);
    if !crate::arrays::ends_fit(values.len(), ends) {
        return Err(PyValueError::new_err("ends: expected rising ends that finish where the values do"));
    }
    let (data, ends) = py.detach(|| integers::write(values, ends));
    Ok((data.into_pyarray(py), ends.into_pyarray(py)))
}

type Integers<'py> = (Longs<'py>, Longs<'py>, Vec<(u64, u64)>);

#[pyfunction]
pub fn read_integers<'py>(
    py: Python<'py>,
    data: PyReadonlyArray1<'py, u8>,
    ends: PyReadonlyArray1<'py, i64>,
) -> PyResult<Integers<'py>> {
    let (data, ends) = super::arrays::documents(&data, &ends)?;
    let (values, ends, problems) = py.detach(|| integers::read(data, ends));
    Ok((values.into_pyarray(py), ends.into_pyarray(py), problems))
}

#[pyfunction]
pub fn bytes_seen<'py>(py: Python<'py>, data: PyReadonlyArray1<'py, u8>) -> PyResult<Bound<'py, PyBytes>> {
    let data = data.as_slice()?;
    let seen = py.detach(|| alphabet::bytes_seen(data));
    Ok(PyBytes::new(py, &(0..=255).filter(|&byte| seen[usize::from(byte)]).collect::<Vec<u8>>()))
}

#[pyfunction]
pub fn documents_outside(
    py: Python<'_>,
    data: PyReadonlyArray1<'_, u8>,
    ends: PyReadonlyArray1<'_, i64>,
    allowed: &[u8],
) -> PyResult<Vec<(u64, u64)>> {
    let (data, ends) = super::arrays::documents(&data, &ends)?;
    Ok(py.detach(|| alphabet::documents_outside(data, ends, allowed)))
}

#[pyfunction]
pub fn invalid_documents(
    py: Python<'_>,
    data: PyReadonlyArray1<'_, u8>,
    ends: PyReadonlyArray1<'_, i64>,
) -> PyResult<Vec<(u64, u64)>> {
    let (data, ends) = super::arrays::documents(&data, &ends)?;
    Ok(py.detach(|| utf8::invalid_documents(data, ends)))
}
