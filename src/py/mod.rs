//! The binding: extract, let go of the interpreter, call, translate the error. No decision lives here.
//! What each function and class does is said once, in `python/piecemill/_core.pyi`.

mod actions_encode;
mod actions_train;
mod arrays;
mod encode;
mod loading;
mod preparing;
mod pretoken;
mod progress;
mod sources;
mod tokenizer_json;
mod training;

use crate::error::Error;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The exception of `piecemill.errors` that fits `error`.
fn to_py(error: Error) -> PyErr {
    let name = match &error {
        Error::Source(_) => "SourceError",
        Error::Split(_) => "PretokenizerError",
        Error::Plan(_) => "PlanError",
        Error::Training(_) => "TrainingError",
        Error::Tokenizer(_) => "TokenizerError",
        Error::Stopped => return PyKeyboardInterrupt::new_err(()),
    };
    let message = error.to_string();
    Python::attach(|py| {
        let class = py.import("piecemill.errors").and_then(|errors| errors.getattr(name));
        match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
            Ok(class) => PyErr::from_type(class, message),
            Err(broken) => broken,
        }
    })
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    actions_encode::register(module)?;
    actions_train::register(module)?;
    arrays::register(module)?;
    encode::register(module)?;
    loading::register(module)?;
    preparing::register(module)?;
    pretoken::register(module)?;
    progress::register(module)?;
    sources::register(module)?;
    tokenizer_json::register(module)?;
    training::register(module)?;
    Ok(())
}
